// SPDX-License-Identifier: Apache-2.0
/// XXH3 of blocks of 4 KiB, each seeded with its number.
#include "format/checksum.hpp"

#include <atomic>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/run_tasks.hpp"

namespace atomo::format {
namespace {

/// Blocks that a task hashes: 1 MiB.
constexpr std::size_t kGrain = 256;

}  // namespace

std::uint64_t block_checksum(const std::byte* block, std::uint64_t index) noexcept {
  return XXH3_64bits_withSeed(block, kChecksumBlock, index);
}

std::uint64_t body_checksum(ConstBytes bodies, const HashedBlocks& hashed,
                            Executor* executor) noexcept {
  const std::size_t whole = bodies.size() / kChecksumBlock;
  const auto first = static_cast<std::size_t>(hashed.count);
  std::atomic<std::uint64_t> sum{hashed.sum};
  core::run_ranges(executor, whole - first, kGrain, [&](std::size_t begin, std::size_t end) {
    std::uint64_t part = 0;
    for (std::size_t i = first + begin; i < first + end; ++i)
      part += block_checksum(bodies.data() + i * kChecksumBlock, i);
    sum += part;
  });
  if (const std::size_t rest = bodies.size() % kChecksumBlock; rest > 0) {
    std::byte last[kChecksumBlock] = {};
    std::memcpy(last, bodies.data() + whole * kChecksumBlock, rest);
    sum += block_checksum(last, whole);
  }
  return sum;
}

}  // namespace atomo::format
