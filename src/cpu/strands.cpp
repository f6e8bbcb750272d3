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

/// The pairs of a short tile, or of one near the ends of the buffer.
template <Direction kDirection, std::size_t kStrands>
HWY_NOINLINE void read_tile(const BitReader& in, const StrandPiece* pieces,
                            Strands<kStrands>& strands, std::uint32_t tile, std::uint32_t pairs) {
  for (std::size_t s = 0; s < kStrands; ++s)
    std::fill_n(strands.entry[s] + tile * kTileDuos, kTileDuos, 0);
  for (std::uint32_t l = 0; l < pairs; ++l) {
    for (std::size_t s = 0; s < kStrands; ++s)
      read_duo<kDirection>(in, *pieces[s].coding, strands, s, tile, l);
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
template <bool kAdd, bool kCentred>
HWY_INLINE void decode_entries(const std::uint16_t* entry, const TileLevels& levels,
                               std::uint32_t swaps, const TileOutput<kCentred>& c, float* y) {
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
template <bool kAdd, bool kCentred>
HWY_INLINE void decode_entries(const std::uint16_t* entry, const TileLevels& levels,
                               std::uint32_t swaps, const TileOutput<kCentred>& c, float* y) {
  const U32 d;
  const I32 di;
  const F32 df;
  const hn::Rebind<std::uint16_t, U32> narrow;
  const VF alpha = hn::Set(df, c.alpha);
  const VU five = hn::Set(d, 31u << 5);
  const auto value = [&](VU n, VU twice_level) HWY_ATTR {
    const VI all = hn::Sub(hn::BitCast(di, n), hn::Set(di, 32 * DecodeEntry::kCentre));
    return values_of(all, hn::BitCast(di, twice_level), c);
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

/// A piece as entries of the table, and its pairs that were read by themselves.
struct EntryTiles {
  const std::uint16_t* entry;
  const PlacedDuo *apart, *end;

  /// Values of a tile; tiles come in order.
  template <bool kAdd, bool kCentred>
  HWY_INLINE void put(const StrandPiece& piece, std::uint32_t tile,
                      const TileOutput<kCentred>& output, float* y) {
    const std::uint16_t* const own = entry + tile * kTileDuos;
    const TileLevels levels(piece, tile);
    const std::uint32_t swaps = piece.coding->level_mask & kMateDither;
    const auto is_apart = [&] { return apart != end && apart->place / kTileDuos == tile; };
    if (!is_apart()) [[likely]]
      return decode_entries<kAdd>(own, levels, swaps, output, y);
    float old[kTile];
    if (kAdd) std::memcpy(old, y, sizeof old);
    decode_entries<kAdd>(own, levels, swaps, output, y);
    for (; is_apart(); ++apart) {
      const std::uint32_t l = apart->place % kTileDuos;
      const std::uint32_t level = levels.word[l] >> levels.shift & 15u;
      const auto put_one = [&](std::uint32_t i, std::int32_t q, std::uint32_t j) {
        const float v = dequantise_one(q, j, output);
        y[i] = kAdd ? old[i] + (output.alpha * v) : v;
      };
      put_one(l, apart->pair.q0, level);
      put_one(kTileDuos + l, apart->pair.q1, level ^ kMateDither);
    }
  }
};

/// A piece as integers.
struct IntegerTiles {
  const std::int32_t *q0, *q1;

  template <bool kAdd, bool kCentred>
  HWY_INLINE void put(const StrandPiece& piece, std::uint32_t tile,
                      const TileOutput<kCentred>& output, float* y) const {
    const TileLevels levels(piece, tile);
    dequantise_tile<kAdd>(q0 + tile * kTileDuos, q1 + tile * kTileDuos, levels.word,
                          static_cast<int>(levels.shift), output, y, y + kTileDuos);
  }
};

template <bool kAdd, bool kCentred, typename Tiles>
HWY_INLINE void put_tiles(Tiles read, const StrandPiece& piece, DecodeMode mode) {
  const TileOutput<kCentred> output{piece.scale.step * 0.03125f, 1.0f / piece.scale.range,
                                    mode.alpha, piece.coding->offset};
  const std::uint32_t tiles = tiles_of_piece(piece.entries), short_tile = piece.entries % kTile;
  alignas(64) float padded[kTile] = {};
  for (std::uint32_t u = 0; u < tiles; ++u) {
    float* const place = piece.y + std::size_t{u} * kTile;
    const bool whole = u + 1 < tiles || short_tile == 0;
    float* const y = whole ? place : padded;
    if (kAdd && !whole) spread_tile(place, short_tile, padded);
    read.template put<kAdd>(piece, u, output, y);
    if (!whole) gather_tile(padded, short_tile, place);
  }
}

/// The values of a piece that was read.
template <typename Tiles>
void put_values(const Tiles& read, const StrandPiece& piece, DecodeMode mode) {
  const bool centred = piece.coding->centred();
  if (mode.add) {
    centred ? put_tiles<true, true>(read, piece, mode) : put_tiles<true, false>(read, piece, mode);
  } else {
    centred ? put_tiles<false, true>(read, piece, mode)
            : put_tiles<false, false>(read, piece, mode);
  }
}

/// Codes with raw bits are the same at all levels: no entries are exchanged.
static_assert([] {
  for (const CodingStep& step : kCodingSteps) {
    if (step.raw != 0 && kCodeLengths[step.table].levels != 1) return false;
  }
  return true;
}());

/// A pair of a code with raw bits, where the buffer holds its longest.
template <Direction kDirection>
HWY_INLINE DecodedDuo read_raw(const BitReader& in, const DuoCoding& coding, std::uint64_t& bit) {
  const std::uint64_t window = in.look<kDirection>(bit);
  const std::uint32_t entry =
      coding
          .decode[static_cast<unsigned>(kDirection)][word_index<kDirection>(window, coding.limit)];
  const unsigned length = entry & DecodeEntry::kLength;
  if (DecodeEntry::escaped(entry)) [[unlikely]] {
    bit = moved<kDirection>(bit, length);
    return get_escaped<kDirection>(in, coding.escape_bits, bit);
  }
  const DecodedDuo low = two_numbers<kDirection>(behind<kDirection>(window, length), coding.raw);
  const std::int32_t centre = 1 << (coding.raw - 1);
  bit = moved<kDirection>(bit, length + 2 * coding.raw);
  return {(DecodeEntry::first(entry) << coding.raw) + low.q0 - centre,
          (DecodeEntry::second(entry) << coding.raw) + low.q1 - centre};
}

/// Pieces of one size under codes with raw bits, side by side.
template <Direction kDirection, std::size_t kStrands>
void decode_raw_together(const BitReader& stream, StrandPiece* pieces, DecodeMode mode) {
  const BitReader in = stream;
  alignas(64) std::int32_t q0[kStrands][kStrandDuos], q1[kStrands][kStrandDuos];
  DuoCoding coding[kStrands];
  std::uint64_t bit[kStrands];
  for (std::size_t s = 0; s < kStrands; ++s) {
    coding[s] = *pieces[s].coding;
    bit[s] = pieces[s].bit;
  }
  const std::uint32_t entries = pieces[0].entries, tiles = tiles_of_piece(entries);
  for (std::uint32_t u = 0; u < tiles; ++u) {
    const std::uint32_t pairs = pairs_of_tile(entries, u), first = u * kTileDuos;
    bool inside = true;
    for (std::size_t s = 0; s < kStrands; ++s) {
      inside &= in.holds<kDirection>(bit[s], kTileDuos * 64);
      std::fill_n(q0[s] + first + pairs, kTileDuos - pairs, 0);
      std::fill_n(q1[s] + first + pairs, kTileDuos - pairs, 0);
    }
    for (std::uint32_t i = first; i < first + pairs; ++i) {
      for (std::size_t s = 0; s < kStrands; ++s) {
        const DecodedDuo pair = inside ? read_raw<kDirection>(in, coding[s], bit[s])
                                       : get_duo<kDirection>(in, coding[s], 0, bit[s]);
        q0[s][i] = pair.q0;
        q1[s][i] = pair.q1;
      }
    }
  }
  for (std::size_t s = 0; s < kStrands; ++s) {
    pieces[s].bit = bit[s];
    put_values(IntegerTiles{q0[s], q1[s]}, pieces[s], mode);
  }
}

/// Pieces of one size under codes without raw bits, side by side.
template <Direction kDirection, std::size_t kStrands>
void decode_together(const BitReader& stream, StrandPiece* pieces, DecodeMode mode) {
  const BitReader in = stream;
  Strands<kStrands> strands;
  const DuoCoding& any = *pieces[0].coding;
  strands.words = any.decode[static_cast<unsigned>(kDirection)] - any.decode_begin;
  bool eight = true;
  for (std::size_t s = 0; s < kStrands; ++s) {
    strands.bit[s] = pieces[s].bit;
    strands.limit[s] = pieces[s].coding->limit;
    strands.count[s] = 0;
    eight &= strands.limit[s] < kLongestWord;
  }
  const std::uint32_t entries = pieces[0].entries, tiles = tiles_of_piece(entries);
  for (std::uint32_t u = 0; u < tiles; ++u) {
    const std::uint32_t pairs = pairs_of_tile(entries, u);
    bool inside = pairs == kTileDuos;
    for (std::size_t s = 0; s < kStrands; ++s) {
      place_levels(pieces[s], u, strands.level[s]);
      inside &= in.holds<kDirection>(strands.bit[s], kTileDuos * kLongestWord);
    }
    if (!inside) [[unlikely]] {
      read_tile<kDirection>(in, pieces, strands, u, pairs);
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
    put_values(EntryTiles{strands.entry[s], strands.apart[s], strands.apart[s] + strands.count[s]},
               pieces[s], mode);
  }
}

template <Direction kDirection, std::size_t kStrands>
void decode_some(const BitReader& in, StrandPiece* pieces, DecodeMode mode) {
  if (pieces[0].coding->raw != 0) {
    decode_raw_together<kDirection, kStrands>(in, pieces, mode);
  } else {
    decode_together<kDirection, kStrands>(in, pieces, mode);
  }
}

template <Direction kDirection>
void decode_in(const BitReader& in, StrandPiece* pieces, std::size_t count, DecodeMode mode) {
  while (count > 0) {
    const auto is_alike = [&](const StrandPiece& other) {
      return other.entries == pieces[0].entries &&
             (other.coding->raw != 0) == (pieces[0].coding->raw != 0);
    };
    std::size_t alike = 1;
    while (alike < count && alike < 8 && is_alike(pieces[alike])) ++alike;
    const std::size_t together = std::bit_floor(alike);
    if (together == 8) {
      decode_some<kDirection, 8>(in, pieces, mode);
    } else if (together == 4) {
      decode_some<kDirection, 4>(in, pieces, mode);
    } else if (together == 2) {
      decode_some<kDirection, 2>(in, pieces, mode);
    } else {
      decode_some<kDirection, 1>(in, pieces, mode);
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
