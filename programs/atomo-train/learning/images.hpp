// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Labelled images from disk: MNIST and Fashion-MNIST (idx files, plain or gzip), CIFAR-10 (binary
/// version).

#include <memory>
#include <string>

#include "learning/task.hpp"

namespace train {

inline constexpr const char* kFashionMnist = "/usr/share/datasets/fashion-mnist";

/// `plain`: pixels stay in [0, 1]; else each channel gets the mean 0 and the deviation 1.
/// \throws std::runtime_error naming the file that is missing or wrong, and the package that holds
/// Fashion-MNIST.
[[nodiscard]] std::unique_ptr<Task> make_image_task(const std::string& folder, bool plain);

}  // namespace train
