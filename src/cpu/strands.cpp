// SPDX-License-Identifier: Apache-2.0
// This file is compiled once for each instruction set: foreach_target.h includes it again and
// again.
#include "cpu/strands.hpp"

#include <bit>

#include "cpu/fma_targets-inl.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/strands.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "coding/duo_code_words.hpp"
#include "cpu/dither_lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr std::size_t kStrandDuos = kStrandEntries / 2;

/// A pair of a piece that was read by itself.
struct PlacedDuo {
  std::uint32_t place;
  DecodedDuo pair;
};

/// Pieces on strands that are read side by side.
template <std::size_t kStrands>
struct Strands {
  const std::uint16_t* words;  ///< of all codings, by direction
  std::uint64_t bit[kStrands];
  std::uint32_t limit[kStrands];
  /// Where the words of the levels of a tile begin.
  alignas(64) std::uint32_t level[kStrands][kTileDuos];
  std::uint16_t entry[kStrands][kStrandDuos];  ///< of the table
  std::uint32_t count[kStrands];               ///< pairs that were read by themselves
  PlacedDuo apart[kStrands][kStrandDuos];
};

/// What stands of a piece after it was read.
struct ReadPiece {
  const std::uint16_t* entry;
  const PlacedDuo *apart, *end;
};

/// A tile's levels: nibble `shift` / 4 of 16 words.
struct TileLevels {
  const std::uint32_t* word;
  std::uint32_t shift;

  TileLevels(const StrandPiece& piece, std::uint32_t tile)
      : word(piece.levels[(piece.first_tile + tile) / kDitherTiles].word),
        shift(4 * ((piece.first_tile + tile) % kDitherTiles)) {}
};

[[nodiscard]] HWY_INLINE std::uint32_t pairs_of_tile(std::uint32_t entries, std::uint32_t tile) {
  return (std::min(kTile, entries - tile * kTile) + 1) / 2;
}

HWY_INLINE void place_levels(const StrandPiece& piece, std::uint32_t tile, std::uint32_t* place) {
  const TileLevels levels(piece, tile);
  const std::uint32_t mask = piece.coding->level_mask & 7u, begin = piece.coding->decode_begin;
  const auto limit = static_cast<int>(piece.coding->limit);
#if HWY_TARGET == HWY_SCALAR
  for (std::uint32_t l = 0; l < kTileDuos; ++l)
    place[l] = begin + ((levels.word[l] >> levels.shift & mask) << limit);
#else
  const U32 d;
  for (std::size_t l = 0; l < kTileDuos; l += hn::Lanes(d)) {
    const VU shifted =
        hn::ShiftRightSame(hn::Load(d, levels.word + l), static_cast<int>(levels.shift));
    const VU level = hn::And(shifted, hn::Set(d, mask));
    hn::Store(hn::Add(hn::ShiftLeftSame(level, limit), hn::Set(d, begin)), d, place + l);
  }
#endif
}

/// A pair by itself, with what follows its word.
template <Direction kDirection, std::size_t kStrands>
HWY_INLINE void read_duo(const BitReader& in, const DuoCoding& coding, Strands<kStrands>& strands,
                         std::size_t s, std::uint32_t tile, std::uint32_t l) {
  const std::uint32_t place = tile * kTileDuos + l;
  std::uint64_t& bit = strands.bit[s];
  const std::uint64_t window = in.window<kDirection>(bit);
  const std::uint32_t entry =
      strands.words[strands.level[s][l] + word_index<kDirection>(window, coding.limit)];
  strands.entry[s][place] = static_cast<std::uint16_t>(entry);
  const unsigned length = entry & DecodeEntry::kLength;
  bit = moved<kDirection>(bit, length);
  if (DecodeEntry::escaped(entry)) {
    strands.apart[s][strands.count[s]++] = {place,
                                            get_escaped<kDirection>(in, coding.escape_bits, bit)};
  }
}

/// The pairs of a short tile, of one near the ends of the buffer, or of codes with raw bits.
template <Direction kDirection, std::size_t kStrands>
HWY_NOINLINE void read_apart(const BitReader& in, const StrandPiece* pieces,
                             Strands<kStrands>& strands, std::uint32_t tile, std::uint32_t pairs,
                             bool plain) {
  for (std::size_t s = 0; s < kStrands; ++s)
    std::fill_n(strands.entry[s] + tile * kTileDuos, kTileDuos, 0);
  for (std::uint32_t l = 0; l < pairs; ++l) {
    for (std::size_t s = 0; s < kStrands; ++s) {
      const DuoCoding& coding = *pieces[s].coding;
      if (plain) {
        read_duo<kDirection>(in, coding, strands, s, tile, l);
        continue;
      }
      const TileLevels levels(pieces[s], tile);
      const std::uint32_t level = levels.word[l] >> levels.shift & 15u;
      strands.apart[s][strands.count[s]++] = {
          tile * kTileDuos + l, get_duo<kDirection>(in, coding, level, strands.bit[s])};
    }
  }
}

/// `kDuos` pairs of each strand to a look at the bits. The last bit of each window is set: the
/// zeros that were shifted in behind it count the bits that were read. An escape makes them too
/// many.
template <Direction kDirection, std::size_t kDuos, std::size_t kStrands>
HWY_INLINE void read_duos(const BitReader& in, const StrandPiece* pieces,
                          Strands<kStrands>& strands, std::uint32_t tile, std::uint32_t from) {
  // A window has 56 bits beside the mark, and words without an escape take fewer than this.
  constexpr auto kMost = static_cast<int>(std::min<std::size_t>(56, DecodeEntry::kEscape + kDuos));
  constexpr bool kUp = kDirection == Direction::upward;
  std::uint64_t window[kStrands];
  const std::uint16_t* const words = strands.words;
  HWY_UNROLL(8)
  for (std::size_t s = 0; s < kStrands; ++s)
    window[s] = in.look<kDirection>(strands.bit[s]) | (kUp ? std::uint64_t{1} << 63 : 1);
  HWY_UNROLL(8)
  for (std::uint32_t k = 0; k < kDuos; ++k) {
    HWY_UNROLL(8)
    for (std::size_t s = 0; s < kStrands; ++s) {
      const std::uint32_t entry =
          words[strands.level[s][from + k] + word_index<kDirection>(window[s], strands.limit[s])];
      strands.entry[s][tile * kTileDuos + from + k] = static_cast<std::uint16_t>(entry);
      window[s] = behind<kDirection>(window[s], entry & DecodeEntry::kShift);
    }
  }
  int read[kStrands];
  bool good = true;
  for (std::size_t s = 0; s < kStrands; ++s) {
    read[s] = kUp ? std::countl_zero(window[s]) : std::countr_zero(window[s]);
    good &= read[s] < kMost;
  }
  for (std::size_t s = 0; s < kStrands; ++s) {
    if (good || read[s] < kMost) [[likely]] {
      strands.bit[s] = moved<kDirection>(strands.bit[s], static_cast<unsigned>(read[s]));
    } else {
      for (std::uint32_t l = from; l < from + kDuos; ++l)
        read_duo<kDirection>(in, *pieces[s].coding, strands, s, tile, l);
    }
  }
}

#if HWY_TARGET == HWY_SCALAR

/// Values of a tile all of whose pairs have table entries.
template <bool kAdd>
HWY_INLINE void decode_entries(const std::uint16_t* entry, const TileLevels& levels,
                               std::uint32_t swaps, const TileOutput& c, float* y) {
  std::int32_t q0[kTileDuos], q1[kTileDuos];
  for (std::uint32_t l = 0; l < kTileDuos; ++l) {
    const bool swapped = (levels.word[l] >> levels.shift & swaps) != 0;
    const std::int32_t h0 = DecodeEntry::first(entry[l]), h1 = DecodeEntry::second(entry[l]);
    q0[l] = swapped ? h1 : h0;
    q1[l] = swapped ? h0 : h1;
  }
  dequantise_tile<kAdd>(q0, q1, levels.word, static_cast<int>(levels.shift), c, y, y + kTileDuos);
}

#else

/// The same: 32 q is 32 times the five bits of an entry, less 512.
template <bool kAdd>
HWY_INLINE void decode_entries(const std::uint16_t* entry, const TileLevels& levels,
                               std::uint32_t swaps, const TileOutput& c, float* y) {
  const U32 d;
  const I32 di;
  const F32 df;
  const hn::Rebind<std::uint16_t, U32> narrow;
  const VF step = hn::Set(df, c.step), unrange = hn::Set(df, c.unrange),
           alpha = hn::Set(df, c.alpha);
  const VU five = hn::Set(d, 31u << 5);
  const auto value = [&](VU n, VU twice_level) HWY_ATTR {
    const VI centred = hn::Sub(hn::BitCast(di, n), hn::BitCast(di, twice_level));
    const VI all = hn::Add(centred, hn::Set(di, 15 - 32 * DecodeEntry::kCentre));
    return hn::Mul(hn::Mul(hn::ConvertTo(df, all), step), unrange);
  };
  for (std::size_t l = 0; l < kTileDuos; l += hn::Lanes(d)) {
    const VU e = hn::PromoteTo(d, hn::LoadU(narrow, entry + l));
    const VU level =
        hn::ShiftRightSame(hn::Load(d, levels.word + l), static_cast<int>(levels.shift));
    const auto swapped = hn::Ne(hn::And(level, hn::Set(d, swaps)), hn::Zero(d));
    const VU h0 = hn::And(hn::ShiftRight<DecodeEntry::kFirstShift - 5>(e), five);
    const VU h1 = hn::And(hn::ShiftRight<DecodeEntry::kSecondShift - 5>(e), five);
    const VU twice = hn::And(hn::Add(level, level), hn::Set(d, 30u));
    VF v0 = value(hn::IfThenElse(swapped, h1, h0), twice);
    VF v1 = value(hn::IfThenElse(swapped, h0, h1), hn::Xor(twice, hn::Set(d, 2 * kMateDither)));
    if constexpr (kAdd) {
      v0 = hn::Add(hn::LoadU(df, y + l), hn::Mul(alpha, v0));
      v1 = hn::Add(hn::LoadU(df, y + kTileDuos + l), hn::Mul(alpha, v1));
    }
    hn::StoreU(v0, df, y + l);
    hn::StoreU(v1, df, y + kTileDuos + l);
  }
}

#endif

/// Values of a tile, and moves past its pairs that were read by themselves.
template <bool kAdd>
HWY_INLINE void decode_tile(ReadPiece& read, const StrandPiece& piece, std::uint32_t tile,
                            const TileOutput& output, float* y) {
  const std::uint16_t* const entry = read.entry + tile * kTileDuos;
  const TileLevels levels(piece, tile);
  const std::uint32_t swaps = piece.coding->level_mask & kMateDither;
  const auto apart = [&] {
    return read.apart != read.end && read.apart->place / kTileDuos == tile;
  };
  if (!apart()) [[likely]]
    return decode_entries<kAdd>(entry, levels, swaps, output, y);
  float old[kTile];
  if (kAdd) std::memcpy(old, y, sizeof old);
  decode_entries<kAdd>(entry, levels, swaps, output, y);
  for (; apart(); ++read.apart) {
    const std::uint32_t l = read.apart->place % kTileDuos;
    const std::uint32_t level = levels.word[l] >> levels.shift & 15u;
    const auto put = [&](std::uint32_t i, std::int32_t q, std::uint32_t j) {
      const float v = dequantise<float>(q, j, output.step * 32.0f) * output.unrange;
      y[i] = kAdd ? old[i] + (output.alpha * v) : v;
    };
    put(l, read.apart->pair.q0, level);
    put(kTileDuos + l, read.apart->pair.q1, level ^ kMateDither);
  }
}

/// From entries of the table to values.
template <bool kAdd>
void finish_piece(ReadPiece read, const StrandPiece& piece, float alpha) {
  const TileOutput output{piece.scale.step * 0.03125f, 1.0f / piece.scale.range, alpha};
  const std::uint32_t tiles = tiles_of_piece(piece.entries), short_tile = piece.entries % kTile;
  alignas(64) float padded[kTile] = {};
  for (std::uint32_t u = 0; u < tiles; ++u) {
    float* const place = piece.y + std::size_t{u} * kTile;
    const bool whole = u + 1 < tiles || short_tile == 0;
    float* const y = whole ? place : padded;
    if (kAdd && !whole) spread_tile(place, short_tile, padded);
    decode_tile<kAdd>(read, piece, u, output, y);
    if (!whole) gather_tile(padded, short_tile, place);
  }
}

/// Pieces of one size, side by side.
template <Direction kDirection, std::size_t kStrands>
void decode_together(const BitReader& stream, StrandPiece* pieces, DecodeMode mode) {
  const BitReader in = stream;
  Strands<kStrands> strands;
  const DuoCoding& any = *pieces[0].coding;
  strands.words = any.decode[static_cast<unsigned>(kDirection)] - any.decode_begin;
  bool plain = true, eight = true;
  for (std::size_t s = 0; s < kStrands; ++s) {
    strands.bit[s] = pieces[s].bit;
    strands.limit[s] = pieces[s].coding->limit;
    strands.count[s] = 0;
    plain &= pieces[s].coding->raw == 0;
    eight &= strands.limit[s] < kLongestWord;
  }
  const std::uint32_t entries = pieces[0].entries, tiles = tiles_of_piece(entries);
  for (std::uint32_t u = 0; u < tiles; ++u) {
    const std::uint32_t pairs = pairs_of_tile(entries, u);
    bool inside = plain && pairs == kTileDuos;
    for (std::size_t s = 0; s < kStrands; ++s) {
      place_levels(pieces[s], u, strands.level[s]);
      inside &= in.holds<kDirection>(strands.bit[s], kTileDuos * kLongestWord);
    }
    if (!inside) [[unlikely]] {
      read_apart<kDirection>(in, pieces, strands, u, pairs, plain);
    } else if (eight) {
      for (std::uint32_t l = 0; l < kTileDuos; l += 8)
        read_duos<kDirection, 8>(in, pieces, strands, u, l);
    } else {
      for (std::uint32_t l = 0; l < kTileDuos; l += 4)
        read_duos<kDirection, 4>(in, pieces, strands, u, l);
    }
  }
  for (std::size_t s = 0; s < kStrands; ++s) {
    pieces[s].bit = strands.bit[s];
    const ReadPiece read{strands.entry[s], strands.apart[s], strands.apart[s] + strands.count[s]};
    if (mode.add) {
      finish_piece<true>(read, pieces[s], mode.alpha);
    } else {
      finish_piece<false>(read, pieces[s], mode.alpha);
    }
  }
}

template <Direction kDirection>
void decode_in(const BitReader& in, StrandPiece* pieces, std::size_t count, DecodeMode mode) {
  while (count > 0) {
    std::size_t same = 1;
    while (same < count && same < 8 && pieces[same].entries == pieces[0].entries) ++same;
    const std::size_t together = std::bit_floor(same);
    if (together == 8) {
      decode_together<kDirection, 8>(in, pieces, mode);
    } else if (together == 4) {
      decode_together<kDirection, 4>(in, pieces, mode);
    } else if (together == 2) {
      decode_together<kDirection, 2>(in, pieces, mode);
    } else {
      decode_together<kDirection, 1>(in, pieces, mode);
    }
    pieces += together;
    count -= together;
  }
}

void DecodeStrands(const BitReader& in, Direction direction, StrandPiece* pieces, std::size_t count,
                   DecodeMode mode) {
  if (direction == Direction::upward) {
    decode_in<Direction::upward>(in, pieces, count, mode);
  } else {
    decode_in<Direction::downward>(in, pieces, count, mode);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace atomo::cpu {

HWY_EXPORT(DecodeStrands);

void decode_strands(const BitReader& in, Direction direction, StrandPiece* pieces,
                    std::size_t count, DecodeMode mode) noexcept {
  HWY_DYNAMIC_DISPATCH(DecodeStrands)(in, direction, pieces, count, mode);
}

}  // namespace atomo::cpu
#endif  // HWY_ONCE
