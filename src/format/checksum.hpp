// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The checksum of a message's bodies (FORMAT.md, "Checksums"): a sum over blocks, so that blocks can
/// be hashed side by side, or where they are written.

#include <cstddef>
#include <cstdint>

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo::format {

inline constexpr std::size_t kChecksumBlock = 4096;

/// The checksum of the first `count` blocks of some bodies, hashed while they were written.
struct HashedBlocks {
  std::uint64_t count = 0, sum = 0;
};

/// What block `index`, of kChecksumBlock bytes, adds.
[[nodiscard]] std::uint64_t block_checksum(const std::byte* block, std::uint64_t index) noexcept;

/// The checksum of all bodies, of which some blocks are hashed. Runs on the executor, which may be
/// null.
[[nodiscard]] std::uint64_t body_checksum(ConstBytes bodies, const HashedBlocks& hashed,
                                          Executor* executor) noexcept;

}  // namespace atomo::format
