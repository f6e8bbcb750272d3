// SPDX-License-Identifier: Apache-2.0
/// Sixteen consecutive Philox blocks at once, for each SIMD target. Included once a target: no
/// `#pragma once`.

#if defined(ATOMO_CPU_PHILOX_TILE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef ATOMO_CPU_PHILOX_TILE_INL_HPP
#undef ATOMO_CPU_PHILOX_TILE_INL_HPP
#else
#define ATOMO_CPU_PHILOX_TILE_INL_HPP
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "core/philox.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {

inline constexpr std::size_t kPhiloxTile = 16;                    ///< blocks of a tile
inline constexpr std::size_t kPhiloxTileWords = 4 * kPhiloxTile;  ///< words of a tile

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void philox_tile(const Philox& draws, std::uint64_t first, std::uint32_t* words) {
  for (std::size_t l = 0; l < kPhiloxTile; ++l) {
    const PhiloxWords block = draws(first + l);
    for (std::size_t w = 0; w < 4; ++w) words[kPhiloxTile * w + l] = block[w];
  }
}

#else

/// Four counter words, each in the low half of a 64-bit lane: the multiplication reads nothing
/// else, so the upper halves may hold anything.
template <class V>
struct PhiloxLanes {
  V c0, c1, c2, c3;
};

template <class D64, class V>
HWY_INLINE void philox_round(D64 /*tag*/, PhiloxLanes<V>& s, V key0, V key1) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Repartition<std::uint32_t, D64> d32;
  const V p = hn::MulEven(hn::BitCast(d32, s.c0), hn::Set(d32, 0xD2511F53u));
  const V q = hn::MulEven(hn::BitCast(d32, s.c2), hn::Set(d32, 0xCD9E8D57u));
  s.c0 = hn::Xor3(hn::ShiftRight<32>(q), s.c1, key0);
  s.c1 = q;
  s.c2 = hn::Xor3(hn::ShiftRight<32>(p), s.c3, key1);
  s.c3 = p;
}

/// words[16 w + l] = word w of block first + l, for l < 16. `first` is a multiple of 16, so that
/// the blocks' counters differ in their low word alone.
HWY_INLINE void philox_tile(const Philox& draws, std::uint64_t first,
                            std::uint32_t* HWY_RESTRICT words) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<std::uint32_t, kPhiloxTile> d32;
  const hn::Repartition<std::uint64_t, decltype(d32)> d64;
  const PhiloxWords counter = draws.counter(first);
  for (std::size_t l = 0; l < kPhiloxTile; l += hn::Lanes(d32)) {
    const auto low = hn::Iota(d32, counter[0] + static_cast<std::uint32_t>(l));
    const auto c1 = hn::Set(d64, counter[1]), c2 = hn::Set(d64, counter[2]),
               c3 = hn::Set(d64, counter[3]);
    PhiloxLanes<hn::Vec<decltype(d64)>> even{hn::BitCast(d64, low), c1, c2, c3};
    PhiloxLanes<hn::Vec<decltype(d64)>> odd{hn::ShiftRight<32>(hn::BitCast(d64, low)), c1, c2, c3};
    std::uint32_t key0 = draws.key0(), key1 = draws.key1();
    for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
      const auto k0 = hn::Set(d64, key0), k1 = hn::Set(d64, key1);
      philox_round(d64, even, k0, k1);
      philox_round(d64, odd, k0, k1);
    }
    const auto join = [&](auto e, auto o) {
      return hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(o)), hn::BitCast(d32, e));
    };
    hn::StoreU(join(even.c0, odd.c0), d32, words + l);
    hn::StoreU(join(even.c1, odd.c1), d32, words + kPhiloxTile + l);
    hn::StoreU(join(even.c2, odd.c2), d32, words + 2 * kPhiloxTile + l);
    hn::StoreU(join(even.c3, odd.c3), d32, words + 3 * kPhiloxTile + l);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#endif
