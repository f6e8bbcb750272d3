// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Text from disk, as bytes: a network predicts each from those before it.

#include <memory>
#include <string>

#include "learning/task.hpp"

namespace train {

/// The manual of the CMake that built the trainer, 2.6 MB of English in Debian's `cmake-data`.
inline constexpr const char* kCMakeManual = ATOMO_TRAIN_TEXT;

/// `path` is a file (plain or gzip), or a folder, all files of which count, in the order of their
/// paths. Every tenth block of 4 KiB is kept for the test. A sample is a window of 64 characters;
/// windows follow each other, so that an epoch predicts every character once.
/// \throws std::runtime_error when it cannot be read or is too short.
[[nodiscard]] std::unique_ptr<Task> make_text_task(const std::string& path);

}  // namespace train
