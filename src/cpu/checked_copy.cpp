// SPDX-License-Identifier: Apache-2.0
/// A block of 4 KiB is copied, then hashed from the near cache that the copy left it in.
#include "cpu/checked_copy.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/run_tasks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/checked_copy.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Copies n entries and returns the largest magnitude as an integer: that of Inf or more where one is
/// not finite. `stream`: past the caches, to an address that is a multiple of a vector's size.
std::uint32_t CopyEntries(const float* x, std::size_t n, std::byte* out, bool stream) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(d, 0x7FFFFFFFu);
  const auto* const in = reinterpret_cast<const std::uint32_t*>(x);
  auto* const to = reinterpret_cast<std::uint32_t*>(out);
  auto low = hn::Zero(d), high = low;
  std::size_t i = 0;
  const auto copy = [&](auto put) {
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      const auto a = hn::LoadU(d, in + i), b = hn::LoadU(d, in + i + lanes);
      put(a, to + i);
      put(b, to + i + lanes);
      low = hn::Max(low, hn::And(a, magnitude));
      high = hn::Max(high, hn::And(b, magnitude));
    }
  };
  if (stream) {
    copy([&](auto words, std::uint32_t* at) { hn::Stream(words, d, at); });
  } else {
    copy([&](auto words, std::uint32_t* at) { hn::StoreU(words, d, at); });
  }
  std::uint32_t top = hn::GetLane(hn::MaxOfLanes(d, hn::Max(low, high)));
  for (; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    std::memcpy(out + i * sizeof bits, &bits, sizeof bits);
    top = std::max(top, bits & 0x7FFFFFFFu);
  }
  return top;
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {

HWY_EXPORT(CopyEntries);

namespace {

constexpr std::size_t kBlock = format::kChecksumBlock / sizeof(float);  ///< entries
/// Entries of a task, whole blocks.
constexpr std::size_t kGrain = 256 * kBlock;
/// From as many entries on no cache would still hold the copy when it is read.
constexpr std::size_t kStreamed = std::size_t{1} << 22;
constexpr std::size_t kLine = 64;
constexpr std::uint32_t kInfinity = 0x7F800000u;

/// Entries before the next one that goes to a multiple of a cache line; false where none does.
bool entries_to_line(const std::byte* out, std::size_t& entries) noexcept {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(out) % kLine;
  entries = (kLine - past) % kLine / sizeof(float);
  return past % sizeof(float) == 0;
}

}  // namespace

bool copy_checked(const float* x, std::size_t n, std::byte* out, HashedBlocks* hashed,
                  Executor* executor) noexcept {
  std::size_t lead = 0;
  const bool stream = n >= kStreamed && entries_to_line(out, lead);
  if (!stream) lead = 0;
  std::atomic<std::uint32_t> largest{HWY_DYNAMIC_DISPATCH(CopyEntries)(x, lead, out, false)};
  std::atomic<std::uint64_t> sum{0};
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    std::uint32_t top = 0;
    std::uint64_t part = 0;
    for (std::size_t at = begin; at < end; at += kBlock) {
      // Blocks as they are copied begin at a line, those that are hashed where the layer does.
      const std::size_t from = std::min(n, at + lead), to = std::min(n, at + kBlock + lead);
      top = std::max(top, HWY_DYNAMIC_DISPATCH(CopyEntries)(x + from, to - from,
                                                            out + from * sizeof(float), stream));
      if (hashed != nullptr && at + kBlock <= n)
        part += format::block_checksum(reinterpret_cast<const std::byte*>(x + at), at / kBlock);
    }
    if (stream) hwy::FlushStream();
    if (top >= kInfinity) largest = kInfinity;
    sum += part;
  });
  if (hashed != nullptr) *hashed = {n / kBlock, sum};
  return largest < kInfinity;
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
