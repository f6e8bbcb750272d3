// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace train {

/// The bytes of a file, plain or gzip. \throws std::runtime_error naming the path and the reason.
[[nodiscard]] std::vector<std::uint8_t> read_unpacked_file(const std::string& path);

}  // namespace train
