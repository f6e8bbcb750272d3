// SPDX-License-Identifier: Apache-2.0
/// Rounds f32 to halves and widens halves to f32, in tasks of 65,536 entries on the caller's
/// executor. Integers alone, as in core/half.hpp, which says what an entry becomes.
#include "cpu/halves.hpp"

#include <atomic>
#include <cmath>
#include <cstring>

#include "core/half.hpp"
#include "core/run_tasks.hpp"
#include "core/short_draw.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/halves.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/philox_tile-inl.hpp"

#ifndef ATOMO_CPU_HALVES_ONCE
#define ATOMO_CPU_HALVES_ONCE
namespace atomo::cpu {
namespace {

constexpr std::size_t kHalfTile = 128;  ///< entries whose draws are 16 Philox blocks

/// The tile's entries one after the other: where a draw ties or a value leaves the halves' range.
template <bool kF16>
void round_each(const float* x, const std::uint16_t* random, const Philox& further,
                std::uint64_t first, std::uint16_t* halves, RoundedHalves& found) noexcept {
  for (std::size_t e = 0; e < kHalfTile; ++e) {
    const ShortDraw draw{random[e], &further, first + e};
    halves[e] = kF16 ? draw_f16(x[e], draw, found.overflow) : draw_bf16(x[e], draw, found.overflow);
    found.non_finite |= !std::isfinite(x[e]);
  }
}

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using HalfLanes = hn::CappedTag<std::uint32_t, 16>;

/// The magnitude as an f16 with 16 bits more behind it. From 2^-14 on a half is the f32's bits with
/// another exponent; below, a multiple of 2^-24, and bits below the sixteen may be lost. What is
/// too large becomes infinite.
template <class V>
HWY_INLINE V f16_and_16_bits(V magnitude) {
  const HalfLanes d;
  const auto smallest = hn::Set(d, 0x38800000u), bias = hn::Set(d, 0x38000000u);
  const V normal = hn::ShiftLeft<3>(hn::Sub(hn::Min(magnitude, hn::Set(d, 0x47800000u)), bias));
  const V mantissa =
      hn::Or(hn::ShiftLeft<2>(hn::And(magnitude, hn::Set(d, 0x7FFFFFu))), hn::Set(d, 0x2000000u));
  const auto is_small = hn::Lt(magnitude, smallest);
  const V small = hn::IfThenElse(is_small, magnitude, bias);
  const V shift = hn::Min(hn::Sub(hn::Set(d, 112u), hn::ShiftRight<23>(small)), hn::Set(d, 31u));
  return hn::IfThenElse(is_small, hn::Shr(mantissa, shift), normal);
}

/// Rounds 128 entries. False where they have to be rounded one by one.
template <bool kF16>
HWY_INLINE bool round_tile(const float* HWY_RESTRICT x, const std::uint16_t* HWY_RESTRICT random,
                           std::uint16_t* HWY_RESTRICT halves) {
  const HalfLanes d;
  const hn::Rebind<float, HalfLanes> df;
  const hn::Rebind<std::uint16_t, HalfLanes> d16;
  const auto low16 = hn::Set(d, 0xFFFFu);
  auto largest = hn::Zero(d), ties = hn::Zero(d);
  for (std::size_t e = 0; e < kHalfTile; e += hn::Lanes(d)) {
    const auto bits = hn::BitCast(d, hn::LoadU(df, x + e));
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFFu));
    const auto draw = hn::PromoteTo(d, hn::LoadU(d16, random + e));
    // threshold + (65535 - draw) carries exactly when the draw is below the threshold, and is all
    // ones on a tie.
    auto wide = magnitude;
    if constexpr (kF16) wide = f16_and_16_bits(magnitude);
    const auto sum = hn::Add(wide, hn::Xor(draw, low16));
    const auto half = hn::ShiftRight<16>(sum);
    if constexpr (kF16) ties = hn::Max(ties, hn::And(sum, low16));
    largest = hn::Max(largest, half);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000u));
    hn::StoreU(hn::TruncateTo(d16, hn::Or(half, sign)), d16, halves + e);
  }
  const auto beyond = hn::Gt(largest, hn::Set(d, kF16 ? 0x7BFFu : 0x7F7Fu));
  return hn::AllFalse(d, hn::Or(beyond, hn::Eq(ties, low16)));
}

template <bool kF16>
HWY_INLINE RoundedHalves round_range(const float* x, std::size_t n, const Philox& draws,
                                     const Philox& further, std::uint64_t entry, std::byte* out) {
  const PhiloxTiles tiles(draws);
  alignas(64) std::uint16_t random[kHalfTile], halves[kHalfTile];
  float padded[kHalfTile];
  RoundedHalves found;
  for (std::size_t first = 0; first < n; first += kHalfTile) {
    const std::size_t count = std::min(kHalfTile, n - first);
    const float* in = x + first;
    if (count < kHalfTile) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, in, count * sizeof(float));
      in = padded;
    }
    tiles((entry + first) / 8, random);
    if (!round_tile<kF16>(in, random, halves))
      round_each<kF16>(in, random, further, entry + first, halves, found);
    std::memcpy(out + 2 * first, halves, 2 * count);
  }
  return found;
}

RoundedHalves round_halves(DType dtype, const float* x, std::size_t n, const Philox& draws,
                           const Philox& further, std::uint64_t entry, std::byte* out) {
  return dtype == DType::f16 ? round_range<true>(x, n, draws, further, entry, out)
                             : round_range<false>(x, n, draws, further, entry, out);
}

template <bool kF16>
HWY_INLINE auto widen(hn::Vec<HalfLanes> half) {
  const HalfLanes d;
  const hn::Rebind<float, HalfLanes> df;
  if constexpr (!kF16) {
    return hn::BitCast(df, hn::ShiftLeft<16>(half));
  } else {
    const hn::RebindToSigned<HalfLanes> di;
    const auto bias = hn::Set(d, 0x38000000u);
    const auto magnitude = hn::And(half, hn::Set(d, 0x7FFFu));
    const auto special = hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(d, 0x7BFFu)), bias);
    const auto normal = hn::Add(hn::Add(hn::ShiftLeft<13>(magnitude), bias), special);
    // A whole number of 2^-24: exact, and far from the subnormals of f32.
    const auto small =
        hn::Mul(hn::ConvertTo(df, hn::BitCast(di, magnitude)), hn::Set(df, 0x1p-24f));
    const auto is_small = hn::Lt(magnitude, hn::Set(d, 0x400u));
    const auto value = hn::IfThenElse(is_small, hn::BitCast(d, small), normal);
    return hn::BitCast(df, hn::Or(value, hn::ShiftLeft<16>(hn::Xor(half, magnitude))));
  }
}

template <bool kF16, bool kAdd>
HWY_INLINE void widen_range(const std::byte* from, std::size_t n, float alpha, float* to) {
  const HalfLanes d;
  const hn::Rebind<float, HalfLanes> df;
  const hn::Rebind<std::uint16_t, HalfLanes> d16;
  const std::size_t lanes = hn::Lanes(d);
  const auto some = [&](const std::byte* in, float* out) {
    const auto half = hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(in)));
    auto v = widen<kF16>(half);
    if constexpr (kAdd) v = hn::Add(hn::LoadU(df, out), hn::Mul(hn::Set(df, alpha), v));
    hn::StoreU(v, df, out);
  };
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) some(from + 2 * i, to + i);
  if (i == n) return;
  std::byte last[32] = {};
  float values[16] = {};
  std::memcpy(last, from + 2 * i, 2 * (n - i));
  if constexpr (kAdd) std::memcpy(values, to + i, (n - i) * sizeof(float));
  some(last, values);
  std::memcpy(to + i, values, (n - i) * sizeof(float));
}

void set_range(DType dtype, const std::byte* from, std::size_t n, float* to) {
  dtype == DType::f16 ? widen_range<true, false>(from, n, 1, to)
                      : widen_range<false, false>(from, n, 1, to);
}
void add_range(DType dtype, const std::byte* from, std::size_t n, float alpha, float* to) {
  dtype == DType::f16 ? widen_range<true, true>(from, n, alpha, to)
                      : widen_range<false, true>(from, n, alpha, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(round_halves);
HWY_EXPORT(set_range);
HWY_EXPORT(add_range);

namespace {

constexpr std::size_t kGrain = 65536;  ///< entries of a task, whole tiles

}  // namespace

RoundedHalves round_to_half(const float* x, std::size_t n, const Philox& draws,
                            const Philox& further, std::uint64_t entry, DType dtype,
                            void* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(round_halves)(dtype, x, n, draws, further, entry,
                                            static_cast<std::byte*>(out));
}

RoundedHalves round_to_half(const float* x, std::size_t n, const Key& key, HalfDraws purposes,
                            DType dtype, void* out, Executor* executor) noexcept {
  const Philox draws(key, purposes.first), further(key, purposes.further);
  std::atomic<bool> overflow = false, non_finite = false;
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    const RoundedHalves found = round_to_half(x + begin, end - begin, draws, further, begin, dtype,
                                              static_cast<std::byte*>(out) + 2 * begin);
    if (found.overflow) overflow = true;
    if (found.non_finite) non_finite = true;
  });
  return {overflow, non_finite};
}

void widen_halves(const void* from, DType dtype, std::size_t n, float* to,
                  Executor* executor) noexcept {
  const auto* const halves = static_cast<const std::byte*>(from);
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(set_range)(dtype, halves + 2 * begin, end - begin, to + begin);
  });
}

void add_halves(const void* from, DType dtype, std::size_t n, float alpha, float* to,
                Executor* executor) noexcept {
  const auto* const halves = static_cast<const std::byte*>(from);
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(add_range)(dtype, halves + 2 * begin, end - begin, alpha, to + begin);
  });
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
