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

/// \throws std::runtime_error naming the file that is missing or wrong, and the package that holds
/// Fashion-MNIST.
[[nodiscard]] std::unique_ptr<Task> make_image_task(const std::string& folder);

}  // namespace train
