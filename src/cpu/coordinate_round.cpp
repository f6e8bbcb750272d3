// SPDX-License-Identifier: Apache-2.0
/// The entries of a chunk stand in rows of 256 columns and are visited column by column, so that the
/// running sums of a vector's columns go on side by side: one pass finds levels, P and the columns'
/// sums, a second starts each column where the one before it ends.
#include "cpu/coordinate_round.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/coordinate_round.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef ATOMO_CPU_COORDINATE_ROUND_ONCE
#define ATOMO_CPU_COORDINATE_ROUND_ONCE
namespace atomo::cpu {
namespace {

constexpr std::size_t kColumns = kCoordinateColumns;

struct ChunkParts {
  alignas(64) std::uint32_t part[kCoordinateChunk];  ///< P of a place
  alignas(64) std::uint32_t sums[kColumns];          ///< of the P of a column, then where it begins
};

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// T = ⌊|x| scale + 1/2⌋, not above 2^62, as its upper and lower words.
template <class D>
HWY_INLINE void split_fixed(D d, hn::Vec<D> fixed, std::uint32_t* high,
                            hn::Vec<hn::Rebind<std::uint32_t, D>>& low) {
  const hn::Rebind<std::uint32_t, D> du;
#if HWY_TARGET <= HWY_AVX3
  const hn::RebindToSigned<D> wide;
  const hn::RebindToUnsigned<D> bits;
  const auto whole = hn::BitCast(bits, hn::ConvertTo(wide, fixed));
  hn::StoreU(hn::TruncateTo(du, hn::ShiftRight<32>(whole)), du, high);
  low = hn::TruncateTo(du, whole);
#else  // in f64, where both are exact
  const hn::Rebind<std::int32_t, D> di;
  const auto level = hn::Floor(hn::Mul(fixed, hn::Set(d, 0x1p-32)));
  const auto part = hn::Floor(hn::Sub(fixed, hn::Mul(level, hn::Set(d, 0x1p32))));
  hn::StoreU(hn::BitCast(du, hn::DemoteTo(di, level)), du, high);
  low = hn::Xor(hn::BitCast(du, hn::DemoteTo(di, hn::Sub(part, hn::Set(d, 0x1p31)))),
                hn::Set(du, 0x80000000u));
#endif
}

/// Levels before they are rounded up, and P, of whole rows; the sums of P, from 0. Returns the
/// largest T.
double fix_rows(const float* x, std::size_t rows, double scale, std::uint32_t* levels,
                ChunkParts* parts) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::Rebind<std::uint32_t, decltype(d)> du;
  const auto by = hn::Set(d, scale), half = hn::Set(d, 0.5), most = hn::Set(d, 0x1p62);
  auto top = hn::Zero(d);
  std::memset(parts->sums, 0, sizeof parts->sums);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < kColumns; c += hn::Lanes(d)) {
      const std::size_t k = r * kColumns + c;
      const auto magnitude = hn::Abs(hn::PromoteTo(d, hn::LoadU(df, x + k)));
      const auto fixed = hn::Min(hn::Add(hn::Mul(magnitude, by), half), most);
      top = hn::Max(top, fixed);
      auto low = hn::Zero(du);
      split_fixed(d, fixed, levels + k, low);
      hn::StoreU(low, du, parts->part + k);
      hn::StoreU(hn::Add(hn::LoadU(du, parts->sums + c), low), du, parts->sums + c);
    }
  }
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

/// Bits of a mask into a bit map of zeros, from place k on.
template <class D, class M>
HWY_INLINE void store_bits(D d, M mask, std::size_t k, std::uint64_t* words) {
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(d, mask, bits);
  const std::uint64_t word = std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 8;
  words[k / 64] |= word << (k % 64);
}

/// Rounds up where the running sum carries.
void draw_rows(std::size_t rows, ChunkParts* parts, const RoundedChunk* out) {
  const hn::CappedTag<std::uint32_t, 16> d;
  const auto zero = hn::Zero(d), one = hn::Set(d, 1u);
  for (std::size_t c = 0; c < kColumns; c += hn::Lanes(d)) {
    auto sum = hn::Load(d, parts->sums + c);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t k = r * kColumns + c;
      const auto next = hn::Add(sum, hn::Load(d, parts->part + k));
      const auto carried = hn::IfThenElseZero(hn::Lt(next, sum), one);
      const auto level = hn::Add(hn::LoadU(d, out->levels + k), carried);
      sum = next;
      hn::StoreU(level, d, out->levels + k);
      store_bits(d, hn::Ne(level, zero), k, out->nonzero);
      store_bits(d, hn::Gt(level, one), k, out->large);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(fix_rows);
HWY_EXPORT(draw_rows);

namespace {

/// Levels and P where the largest level may decode beyond the largest f32.
void fix_at_top(const float* x, std::size_t m, double step, std::uint32_t* levels,
                ChunkParts& parts) noexcept {
  const double scale = grid_scale(step);
  std::memset(parts.sums, 0, sizeof parts.sums);
  for (std::size_t k = 0; k < m; ++k) {
    const std::uint64_t fixed = grid_fixed_at_top(x[k], step, scale);
    levels[k] = static_cast<std::uint32_t>(fixed >> 32);
    parts.part[k] = static_cast<std::uint32_t>(fixed);
    parts.sums[k % kColumns] += parts.part[k];
  }
}

}  // namespace

bool round_chunk(const float* x, std::size_t m, double step, std::uint32_t u,
                 const RoundedChunk& out) noexcept {
  ChunkParts parts;
  const std::size_t rows = (m + kColumns - 1) / kColumns;
  const std::size_t whole = m / kColumns;
  float padded[kCoordinateChunk];
  if (whole < rows) {
    std::memcpy(padded, x, m * sizeof(float));
    std::fill(padded + m, padded + rows * kColumns, 0.0f);
    x = padded;
  }
  const double top = HWY_DYNAMIC_DISPATCH(fix_rows)(x, rows, grid_scale(step), out.levels, &parts);
  const std::uint64_t level = static_cast<std::uint64_t>(top) >> 32;
  if (level >= kMaxLevel) return false;
  if (grid_at_top(level, step)) fix_at_top(x, rows * kColumns, step, out.levels, parts);
  std::uint32_t before = u;
  for (std::uint32_t& sum : parts.sums) before += std::exchange(sum, before);
  std::memset(out.nonzero, 0, kCoordinateChunk / 8);
  std::memset(out.large, 0, kCoordinateChunk / 8);
  HWY_DYNAMIC_DISPATCH(draw_rows)(rows, &parts, &out);
  return true;
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
