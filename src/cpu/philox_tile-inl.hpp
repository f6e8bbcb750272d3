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

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/philox.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {

inline constexpr std::size_t kPhiloxTile = 16;                    ///< blocks of a tile
inline constexpr std::size_t kPhiloxTileWords = 4 * kPhiloxTile;  ///< words of a tile

#if HWY_TARGET == HWY_SCALAR

/// The words of the blocks first + l, l < 16, one block after the other, as words or as halves of
/// words, the low one first.
class PhiloxTiles {
 public:
  explicit PhiloxTiles(const Philox& draws) noexcept : draws_(draws) {}

  template <typename T>
  void operator()(std::uint64_t first, T* words) const noexcept {
    for (std::size_t l = 0; l < kPhiloxTile; ++l) {
      const PhiloxWords block = draws_(first + l);
      std::memcpy(words + 16 / sizeof(T) * l, block.data(), sizeof block);
    }
  }

 private:
  Philox draws_;
};

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

/// The words of the blocks first + l, l < 16, one block after the other, as words or as halves of
/// words, the low one first. The blocks' counters differ in their low word alone, as they do where
/// `first` is a multiple of 16.
///
/// Lane 4 q + j of L works on block (L / 4) j + q: the four words of the blocks of one j are then
/// neighbours after two interleavings within 128 bits, and no lane crosses them.
class PhiloxTiles {
 public:
  explicit PhiloxTiles(const Philox& draws) noexcept : draws_(draws), keys_(draws.round_keys()) {}

  template <typename T>
  HWY_INLINE void operator()(std::uint64_t first, T* HWY_RESTRICT words) const noexcept {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::CappedTag<std::uint32_t, kPhiloxTile> d32;
    const hn::Repartition<std::uint64_t, decltype(d32)> d64;
    const hn::Repartition<T, decltype(d32)> out;
    const PhiloxWords counter = draws_.counter(first);
    const std::size_t lanes = hn::Lanes(d32);
    const auto lane = hn::Iota(d32, 0u);
    const auto stride = hn::Set(d32, static_cast<std::uint32_t>(lanes / 4));
    const auto block =
        hn::Add(hn::Mul(hn::And(lane, hn::Set(d32, 3u)), stride), hn::ShiftRight<2>(lane));
    for (std::size_t l = 0; l < kPhiloxTile; l += lanes) {
      const auto low = hn::Add(block, hn::Set(d32, counter[0] + static_cast<std::uint32_t>(l)));
      const auto c1 = hn::Set(d64, counter[1]), c2 = hn::Set(d64, counter[2]),
                 c3 = hn::Set(d64, counter[3]);
      PhiloxLanes<hn::Vec<decltype(d64)>> even{hn::BitCast(d64, low), c1, c2, c3};
      PhiloxLanes<hn::Vec<decltype(d64)>> odd{hn::ShiftRight<32>(hn::BitCast(d64, low)), c1, c2,
                                              c3};
      for (std::size_t round = 0; round < keys_.size() / 2; ++round) {
        const auto k0 = hn::Set(d64, keys_[2 * round]), k1 = hn::Set(d64, keys_[2 * round + 1]);
        philox_round(d64, even, k0, k1);
        philox_round(d64, odd, k0, k1);
      }
      const auto join = [&](auto a, auto b) {
        const auto upper = hn::BitCast(d32, hn::ShiftLeft<32>(b));
        return hn::BitCast(d64, hn::OddEven(upper, hn::BitCast(d32, a)));
      };
      const auto store = [&](std::size_t j, auto v) {
        hn::StoreU(hn::BitCast(out, v), out, words + (4 * l + lanes * j) * (4 / sizeof(T)));
      };
      const auto even01 = join(even.c0, even.c1), even23 = join(even.c2, even.c3);
      const auto odd01 = join(odd.c0, odd.c1), odd23 = join(odd.c2, odd.c3);
      store(0, hn::InterleaveLower(d64, even01, even23));
      store(1, hn::InterleaveLower(d64, odd01, odd23));
      store(2, hn::InterleaveUpper(d64, even01, even23));
      store(3, hn::InterleaveUpper(d64, odd01, odd23));
    }
  }

 private:
  Philox draws_;
  std::array<std::uint32_t, 20> keys_;
};

#endif

/// Calls visit(first, count, entries, words) for the tiles of the entries [begin, end) of x, a word of the
/// draws each: `count` entries from `first` on, zeros behind them. `begin` is a multiple of a tile.
template <class Visit>
HWY_INLINE void visit_drawn_tiles(const float* x, const Philox& draws, std::size_t begin,
                                  std::size_t end, const Visit& visit) {
  const PhiloxTiles tiles(draws);
  alignas(64) std::uint32_t words[kPhiloxTileWords];
  float padded[kPhiloxTileWords];
  for (std::size_t first = begin; first < end; first += kPhiloxTileWords) {
    const std::size_t count = std::min(kPhiloxTileWords, end - first);
    const float* entries = x + first;
    if (count < kPhiloxTileWords) {
      std::fill(std::copy_n(entries, count, padded), padded + kPhiloxTileWords, 0.0f);
      entries = padded;
    }
    tiles(first / 4, words);
    visit(first, count, entries, words);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#endif
