// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Files written whole or not at all.

#include <string>
#include <string_view>

namespace train {

/// Writes a file beside `path`, flushes it to disk and renames it.
/// \throws std::runtime_error naming the path and the reason.
void write_whole_file(const std::string& path, std::string_view content);

/// Tries what write_whole_file(path) will do, and leaves nothing.
/// \throws std::runtime_error naming the path and the reason.
void check_writable(const std::string& path);

/// \throws std::runtime_error naming the path and the reason.
[[nodiscard]] std::string read_whole_file(const std::string& path);

}  // namespace train
