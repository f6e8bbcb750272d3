// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Labelled images from disk: MNIST and Fashion-MNIST (idx files, plain or gzip), CIFAR-10 and CIFAR-100
/// (binary versions), SVHN (cropped digits) and folders of images.

#include <memory>
#include <string>

#include "learning/task.hpp"

namespace train {

inline constexpr const char* kFashionMnist = "/usr/share/datasets/fashion-mnist";

/// `plain`: pixels stay in [0, 1]; else each channel gets the mean 0 and the deviation 1. `side`:
/// images are made that high and wide (0: they stay as they are).
/// \throws std::runtime_error naming the file that is missing or wrong, and the package that holds
/// Fashion-MNIST.
[[nodiscard]] std::unique_ptr<Task> make_image_task(const std::string& folder, bool plain,
                                                    std::int64_t side);

}  // namespace train
