// SPDX-License-Identifier: Apache-2.0
/// Tiles of 128 entries, whose draws are 16 Philox blocks: `math::int8_step` for each SIMD target.
#include "cpu/int8_blocks.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/short_draw.hpp"
#include "math/kept_values.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/int8_blocks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/philox_tile-inl.hpp"

#ifndef ATOMO_CPU_INT8_BLOCKS_ONCE
#define ATOMO_CPU_INT8_BLOCKS_ONCE
namespace atomo::cpu {
namespace {

constexpr std::size_t kInt8Tile = 128;  ///< entries whose draws are 16 Philox blocks

/// The tile's entries one after the other: where a draw ties.
void int8_each(const float* x, float scale, const std::uint16_t* random, const Philox& further,
               std::uint64_t entry, std::int8_t* codes) noexcept {
  for (std::size_t e = 0; e < kInt8Tile; ++e)
    codes[e] = math::int8_code(x[e], scale, core::ShortDraw{random[e], &further, entry + e});
}

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The largest magnitude of 128 entries.
HWY_INLINE float largest_of_tile(const float* HWY_RESTRICT x) {
  const hn::CappedTag<float, 16> d;
  auto largest = hn::Zero(d);
  for (std::size_t e = 0; e < kInt8Tile; e += hn::Lanes(d))
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + e)));
  return math::int8_magnitude(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

/// Rounds 128 entries. False where they have to be rounded one by one.
HWY_INLINE bool int8_tile(const float* HWY_RESTRICT x, float scale,
                          const std::uint16_t* HWY_RESTRICT random,
                          std::int8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto most = hn::Set(d, std::numeric_limits<float>::max());
  const auto largest = hn::Set(d, scale), levels = hn::Set(d, float{math::kInt8Levels});
  auto ties = hn::Zero(di);
  for (std::size_t e = 0; e < kInt8Tile; e += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, x + e);
    const auto counted = hn::Mul(hn::Div(hn::Min(hn::Abs(v), most), largest), levels);
    const auto level = hn::ConvertTo(di, counted);
    const auto rest = hn::Sub(counted, hn::ConvertTo(d, level));
    const auto threshold = hn::ConvertTo(di, hn::Mul(rest, hn::Set(d, 0x1p16f)));
    const auto draw = hn::PromoteTo(di, hn::LoadU(d16, random + e));
    const auto up = hn::VecFromMask(di, hn::Lt(draw, threshold));
    ties = hn::Or(ties, hn::VecFromMask(di, hn::Eq(draw, threshold)));
    const auto drawn = hn::Sub(level, up);
    const auto negative = hn::VecFromMask(di, hn::RebindMask(di, hn::Lt(v, hn::Zero(d))));
    hn::StoreU(hn::DemoteTo(d8, hn::Sub(hn::Xor(drawn, negative), negative)), d8, codes + e);
  }
  return hn::AllTrue(di, hn::Eq(ties, hn::Zero(di)));
}

void int8_range(const float* x, std::size_t n, const Philox& draws, const Philox& further,
                std::uint64_t entry, std::byte* scales, std::byte* codes) {
  const PhiloxTiles tiles(draws);
  alignas(64) std::uint16_t random[kInt8Tile];
  std::int8_t rounded[kInt8Tile];
  float padded[math::kInt8Block];
  for (std::size_t first = 0; first < n; first += math::kInt8Block) {
    const std::size_t count = std::min(math::kInt8Block, n - first);
    const float* in = x + first;
    if (count < math::kInt8Block) {
      std::fill(std::copy_n(in, count, padded), padded + math::kInt8Block, 0.0f);
      in = padded;
    }
    const float scale = std::max(largest_of_tile(in), largest_of_tile(in + kInt8Tile));
    std::memcpy(scales + first / math::kInt8Block * sizeof scale, &scale, sizeof scale);
    if (scale == 0) {
      std::memset(codes + first, 0, count);
      continue;
    }
    for (std::size_t at = 0; at < count; at += kInt8Tile) {
      tiles((entry + first + at) / 8, random);
      if (!int8_tile(in + at, scale, random, rounded))
        int8_each(in + at, scale, random, further, entry + first + at, rounded);
      std::memcpy(codes + first + at, rounded, std::min(kInt8Tile, count - at));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(int8_range);

void round_to_int8(const float* x, std::size_t n, const Philox& draws, const Philox& further,
                   std::uint64_t entry, std::byte* scales, std::byte* codes) noexcept {
  HWY_DYNAMIC_DISPATCH(int8_range)(x, n, draws, further, entry, scales, codes);
}

void widen_int8(const std::byte* scales, const std::byte* codes, std::size_t n,
                float* to) noexcept {
  for (std::size_t first = 0; first < n; first += math::kInt8Block) {
    float scale = 0;
    std::memcpy(&scale, scales + first / math::kInt8Block * sizeof scale, sizeof scale);
    const std::size_t end = std::min(first + math::kInt8Block, n);
    for (std::size_t i = first; i < end; ++i)
      to[i] = math::int8_value(static_cast<std::int8_t>(codes[i]), scale);
  }
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
