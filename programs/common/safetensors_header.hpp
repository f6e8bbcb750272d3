// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How .safetensors begins: the length of a JSON header (u64, little-endian) and the header. The
/// tensors' bytes follow.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace atomo::programs {

inline constexpr std::size_t kHeaderLengthBytes = 8;
/// Lists and objects in one another that are read: a header needs 3.
inline constexpr int kMostNested = 8;

/// The length and the header, filled with spaces so that data begins at a multiple of 8.
[[nodiscard]] std::string with_length(std::string header);

/// How long a file's header is by its own account.
[[nodiscard]] std::uint64_t header_length(
    std::span<const std::byte, kHeaderLengthBytes> start_of_file);

}  // namespace atomo::programs
