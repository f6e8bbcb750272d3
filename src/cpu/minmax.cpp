// SPDX-License-Identifier: Apache-2.0
/// Tiles of 128 entries, 32 blocks of draws. A tile is estimated in f32; the entries whose estimate may
/// be wrong, one of 4,096 at 8 bits, are coded again in f64.

#include "cpu/minmax.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/minmax.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/level_tile-inl.hpp"

#ifndef ATOMO_CPU_MINMAX_ONCE
#define ATOMO_CPU_MINMAX_ONCE
namespace atomo::cpu {
namespace {

/// What the entries of a bucket have in common.
struct MinmaxBucket {
  math::MinmaxGrid grid;
  double inverse;
  std::uint32_t levels;
  math::MinmaxEstimate estimate;
};

/// Codes again, exactly, the entries of a tile whose distance is above what is sure.
void code_doubtful(const MinmaxBucket& bucket, const float* x, const std::uint32_t* random,
                   const float* distance, std::uint8_t* codes) noexcept {
  for (std::size_t e = 0; e < kLevelTile; ++e) {
    if (distance[e] > bucket.estimate.sure)
      codes[e] = static_cast<std::uint8_t>(
          math::minmax_code(bucket.grid, bucket.inverse, bucket.levels, x[e], random[e]));
  }
}

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

bool find_ends(const float* x, std::size_t n, float& least, float& largest) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const std::size_t lanes = hn::Lanes(d), whole = n / lanes * lanes;
  auto low = hn::Set(d, x[0]), high = low;
  auto top = hn::Zero(du);  // of the magnitudes' bits
  const auto take = [&](const float* from) {
    const auto v = hn::LoadU(d, from);
    low = hn::Min(low, v);
    high = hn::Max(high, v);
    top = hn::Max(top, hn::BitCast(du, hn::Abs(v)));
  };
  for (std::size_t i = 0; i < whole; i += lanes) take(x + i);
  if (whole < n) {
    float last[16];
    for (std::size_t i = 0; i < lanes; ++i) last[i] = x[std::min(whole + i, n - 1)];
    take(last);
  }
  least = hn::GetLane(hn::MinOfLanes(d, low));
  largest = hn::GetLane(hn::MaxOfLanes(d, high));
  return hn::GetLane(hn::MaxOfLanes(du, top)) < 0x7F800000u;
}

/// Estimates the codes of 128 entries; whether one of them is in doubt.
HWY_INLINE bool estimate_tile(const math::MinmaxEstimate& estimate, const float* HWY_RESTRICT x,
                              const std::uint32_t* HWY_RESTRICT random,
                              float* HWY_RESTRICT distance, std::uint8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const auto low = hn::Set(d, estimate.low), inverse = hn::Set(d, estimate.inverse);
  const auto half = hn::Set(d, 0.5f), unit = hn::Set(d, 0x1p-24f);
  auto farthest = hn::Zero(d);
  for (std::size_t e = 0; e < kLevelTile; e += hn::Lanes(d)) {
    const auto word = hn::ShiftRight<8>(hn::Load(du, random + e));
    const auto draw = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, word)), unit);
    const auto s = hn::Sub(hn::Mul(hn::Sub(hn::LoadU(d, x + e), low), inverse), draw);
    const auto up = hn::Ceil(s);
    const auto far = hn::Abs(hn::Sub(hn::Sub(up, s), half));
    farthest = hn::Max(farthest, far);
    hn::Store(far, d, distance + e);
    // Of an estimate in doubt any byte may come out.
    hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, hn::ConvertTo(di, up))), d8, codes + e);
  }
  return !hn::AllFalse(d, hn::Gt(farthest, hn::Set(d, estimate.sure)));
}

void code_bucket(const MinmaxBucket& bucket, int bits, bool estimates, const float* x,
                 const Philox& draws, std::size_t begin, std::size_t end, std::byte* out) {
  const PhiloxTiles tiles(draws);
  alignas(64) std::uint32_t random[kLevelTile];
  alignas(64) float distance[kLevelTile];
  alignas(64) std::uint8_t codes[kLevelTile];
  std::byte packed[kLevelTile + 8];
  float padded[kLevelTile];
  if (!estimates) std::fill_n(distance, kLevelTile, 1.0f);
  for (std::size_t first = begin; first < end; first += kLevelTile) {
    const std::size_t count = std::min(kLevelTile, end - first);
    const float* in = x + first;
    if (count < kLevelTile) {
      std::fill(std::copy_n(in, count, padded), padded + kLevelTile, bucket.grid.low);
      in = padded;
    }
    for (std::size_t part = 0; part < kLevelTile; part += kPhiloxTileWords)
      tiles((first + part) / 4, random + part);
    if (!estimates || estimate_tile(bucket.estimate, in, random, distance, codes))
      code_doubtful(bucket, in, random, distance, codes);
    if (bits == 8) {
      std::memcpy(out + first, codes, count);
      continue;
    }
    if (count < kLevelTile) std::memset(codes + count, 0, kLevelTile - count);
    pack_tile(codes, 4, packed);
    std::memcpy(out + first / 2, packed, count / 2 + count % 2);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(find_ends);
HWY_EXPORT(code_bucket);

bool minmax_ends(const float* x, std::size_t n, float& least, float& largest) noexcept {
  return HWY_DYNAMIC_DISPATCH(find_ends)(x, n, least, largest);
}

void minmax_codes(const math::MinmaxGrid& grid, float largest, int bits, const float* x,
                  const Philox& draws, std::size_t begin, std::size_t end,
                  std::byte* codes) noexcept {
  MinmaxBucket bucket{grid, math::minmax_inverse(grid), (1u << bits) - 1, {}};
  const bool estimates = math::minmax_estimate(grid, largest, bucket.levels, bucket.estimate);
  HWY_DYNAMIC_DISPATCH(code_bucket)(bucket, bits, estimates, x, draws, begin, end, codes);
}

}  // namespace atomo::cpu
#endif
