// SPDX-License-Identifier: Apache-2.0
/// The two strands of groups: written and read by themselves, on damaged bits, and in bodies.
#include "cpu/strands.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <random>
#include <vector>

#include "support/atom_layers.hpp"

namespace atomo::cpu {
namespace {

constexpr Key kKey{.seed = 5, .step = 2};
constexpr VectorScale kScale{1, 0.5f, 2};

/// A piece of one class with values of up to `reach` steps, many of which are escaped.
struct OnePiece {
  DuoCoding coding;
  Piece piece;
  std::vector<float> x;
  std::vector<DitherWords> levels;

  OnePiece(std::size_t atom_class, std::uint32_t entries)
      : coding(duo_coding(kAtomClasses[atom_class].step,
                          escape_bits(entries, kAtomClasses[atom_class].reach))),
        piece{7, tiles_of_piece(entries), 0, entries},
        x(entries),
        levels(dither_groups(entries)) {
    std::mt19937_64 random(entries);
    std::normal_distribution<float> normal;
    const auto reach = static_cast<float>(kAtomClasses[atom_class].reach);
    const float largest = reach * std::sqrt(static_cast<float>(entries));
    for (float& v : x) {
      v = reach * normal(random) / (random() % 9 == 0 ? 0.2f : 1.0f);
      v = kScale.step * std::clamp(v, -largest, largest);
    }
    std::vector<std::uint64_t> bases(levels.size());
    for (std::size_t g = 0; g < bases.size(); ++g) bases[g] = dither_base(piece) + g;
    draw_dither(Philox(kKey, Purpose::dither_row), bases.data(), bases.size(), levels.data());
  }

  void write(std::uint32_t upward, GroupWriter& out) const {
    encode_piece(x.data(), piece, upward, kScale, coding, Philox(kKey, Purpose::pre_round_row),
                 levels.data(), out);
  }

  /// The ends of the strands of a group from `begin` to `end` that it alone is in.
  std::pair<std::uint64_t, std::uint64_t> read(const BitReader& in, std::uint32_t upward,
                                               std::uint64_t begin, std::uint64_t end, float* y,
                                               DecodeMode mode = {}) const {
    const std::uint32_t turn = std::min(piece.entries, upward * kTile);
    StrandPiece up{begin, 0, turn, kScale, &coding, levels.data(), y};
    StrandPiece down{end, upward, piece.entries - turn, kScale, &coding, levels.data(), y + turn};
    if (up.entries != 0) decode_strands(in, Direction::upward, &up, 1, mode);
    if (down.entries != 0) decode_strands(in, Direction::downward, &down, 1, mode);
    return {up.bit, down.bit};
  }
};

/// Tiles that may go upward.
std::vector<std::uint32_t> turns_of(std::uint32_t entries) {
  const std::uint32_t tiles = tiles_of_piece(entries);
  if (entries > kStrandEntries) return {(tiles + 1) / 2, tiles / 2};
  return {0, 1, (tiles + 1) / 2, tiles};
}

/// Values do not depend on the strand that they stand on; adding adds them.
TEST(Strands, EveryClassAndSizeComesBack) {
  for (std::size_t c = 0; c < std::size(kAtomClasses); ++c) {
    for (const std::uint32_t entries : {1u, 2u, 15u, 31u, 32u, 33u, 63u, 64u, 65u, 96u, 255u, 256u,
                                        257u, 289u, 512u, 1000u, 1023u, 1024u}) {
      const OnePiece one(c, entries);
      std::vector<float> first;
      for (const std::uint32_t upward : turns_of(entries)) {
        Guarded bytes(8 * 513, 3);
        GroupWriter out(bytes.span().data(), bytes.span().size());
        out.upward().put(5, 3);  // an odd place to start
        ASSERT_EQ(out.end_group(), 3u);
        one.write(upward, out);
        const std::uint64_t bits = out.end_group();
        ASSERT_EQ(out.finish(), bits + 3);
        ASSERT_TRUE(bytes.intact());
        const BitReader in(bytes.span().data(), (bits + 10) / 8);
        Guarded y(entries * sizeof(float), 4);
        const auto [up, down] = one.read(in, upward, 3, 3 + bits, y.data<float>());
        ASSERT_EQ(up, down) << "class " << c << ", " << entries << ", " << upward << " upward";
        ASSERT_TRUE(y.intact());
        std::vector<float> values(y.data<float>(), y.data<float>() + entries), sums(entries, 3.0f);
        if (first.empty()) first = values;
        ASSERT_EQ(values, first) << "class " << c << ", " << entries << ", " << upward;
        for (std::uint32_t i = 0; i < entries; ++i)
          ASSERT_NEAR(values[i], one.x[i], 1.01f * kScale.step) << "class " << c << " at " << i;
        one.read(in, upward, 3, 3 + bits, sums.data(), {.add = true, .alpha = 0.75f});
        for (std::uint32_t i = 0; i < entries; ++i)
          ASSERT_EQ(sums[i], 3.0f + (0.75f * values[i])) << i;
      }
    }
  }
}

/// Side by side as alone, in whatever numbers and codes.
TEST(Strands, NeighboursDoNotMatter) {
  for (const std::uint32_t entries : {40u, 256u, 512u}) {
    for (const std::size_t classes : {std::size_t{4}, std::size(kAtomClasses)}) {
      for (std::size_t count = 1; count <= 19; ++count) {
        std::vector<OnePiece> pieces;
        std::vector<std::vector<float>> y(count), alone(count);
        std::vector<std::uint64_t> ends{0};
        std::vector<std::byte> bytes(count * 8 * 513);
        GroupWriter out(bytes.data(), bytes.size());
        for (std::size_t i = 0; i < count; ++i) {
          pieces.emplace_back(i % classes, entries);
          pieces.back().write(i % 2 == 0 ? tiles_of_piece(entries) : 0, out);
          ends.push_back(ends.back() + out.end_group());
        }
        const BitReader in(bytes.data(), (out.finish() + 7) / 8);
        std::vector<StrandPiece> upward, downward;
        for (std::size_t i = 0; i < count; ++i) {
          y[i].resize(entries);
          alone[i].resize(entries);
          pieces[i].read(in, i % 2 == 0 ? tiles_of_piece(entries) : 0, ends[i], ends[i + 1],
                         alone[i].data());
          (i % 2 == 0 ? upward : downward)
              .push_back({ends[i + i % 2], 0, entries, kScale, &pieces[i].coding,
                          pieces[i].levels.data(), y[i].data()});
        }
        decode_strands(in, Direction::upward, upward.data(), upward.size(), {});
        decode_strands(in, Direction::downward, downward.data(), downward.size(), {});
        ASSERT_EQ(y, alone);
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ((i % 2 == 0 ? upward : downward)[i / 2].bit, ends[i + 1 - i % 2]);
      }
    }
  }
}

/// Any bits, from any place on, even outside of the buffer, are read as some pairs.
TEST(Strands, DamagedOnesStayInTheBuffer) {
  std::mt19937_64 random(1);
  for (std::size_t c = 0; c < std::size(kAtomClasses); ++c) {
    for (const std::size_t size : {0u, 1u, 7u, 8u, 9u, 40u, 200u}) {
      std::vector<std::byte> bytes(size);
      for (std::byte& b : bytes) b = static_cast<std::byte>(random());
      const BitReader in(bytes.data(), bytes.size());
      const OnePiece one(c, 1000);
      Guarded y(1000 * sizeof(float), 4);
      for (const std::uint64_t bit : {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{8 * size},
                                      std::uint64_t{8 * size + 900}, ~std::uint64_t{0}}) {
        const auto [up, down] = one.read(in, 16, bit, bit, y.data<float>());
        ASSERT_GE(up - bit, 256u);
        ASSERT_GE(bit - down, 244u);
      }
      ASSERT_TRUE(y.intact());
    }
  }
}

/// A writer that is full says so, and stays in its buffer.
TEST(Strands, WritersStayInTheBuffer) {
  const OnePiece one(3, 1000);
  Guarded whole(8 * 513);
  GroupWriter all(whole.span().data(), whole.span().size());
  one.write(16, all);
  const std::size_t needed = (all.end_group() + 7) / 8;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, needed / 2, needed - 1, needed}) {
    Guarded bytes(size, 1);
    GroupWriter out(bytes.span().data(), size);
    one.write(16, out);
    const std::uint64_t bits = out.end_group();
    EXPECT_EQ(out.finish(), size < needed ? ~std::uint64_t{0} : bits);
    EXPECT_TRUE(bytes.intact());
  }
}

/// FORMAT.md, "Strands": atoms that share a group alternate, any other group is halved.
TEST(Strands, GroupsAreDividedAsTheFormatSays) {
  const GroupShape blocks = GroupShape::of(256), longest = GroupShape::of(512);
  EXPECT_EQ(blocks.upward_tiles(0, 8), 8u);
  EXPECT_EQ(blocks.upward_tiles(1, 8), 0u);
  EXPECT_EQ(blocks.upward_tiles(2, 8), 8u);
  EXPECT_EQ(longest.upward_tiles(1, 16), 0u);
  const GroupShape one = GroupShape::of(513), pieces = GroupShape::of(4096);
  EXPECT_EQ(one.upward_tiles(0, 17), 9u);
  EXPECT_EQ(pieces.upward_tiles(0, 32), 16u);
  EXPECT_EQ(pieces.upward_tiles(0, 1), 1u);
}

/// Lengths that add up as before, but move bits from a group to its neighbour. Strands that begin at a
/// wrong bit often fall into step, and then meet; their values differ.
TEST(Strands, LengthsThatDoNotFitAreRefused) {
  int moves = 0, refused = 0;
  for (const std::uint64_t length : {16u, 100u, 256u, 512u, 600u, 1024u, 2500u}) {
    const AtomLayout layout = AtomLayout::rows(length == 16 ? 300 : length < 600 ? 60 : 12, length);
    const Layer layer(make(layout, Data::heavy, length), layout, 2.0);
    const std::vector<std::byte> bytes = layer.encode(kKey);
    MarksReader marks;
    BodyIndex index;
    ASSERT_TRUE(index.open(bytes, layout, marks));
    ASSERT_GE(index.groups, 2u);
    const std::vector<float> y = layer.decode(bytes, kKey);
    std::vector<float> other(y.size());
    const auto move_bits = [&](std::uint64_t group, int bits) {
      std::vector<std::byte> moved = bytes;
      for (const std::uint64_t i : {group, group + 1}) {
        std::byte* const place = moved.data() + index.lengths + 2 * i;
        const int was = load_le<std::uint16_t>(place), change = i == group ? bits : -bits;
        store_le(place, static_cast<std::uint16_t>(was + change));
      }
      return decode_atoms(moved, layout, layer.price.a, kKey, other.data(), {}, nullptr);
    };
    for (std::uint64_t g = 0; g + 1 < index.groups; ++g) {
      for (const int bits : {-1, 1, 9}) {
        ++moves;
        if (move_bits(g, bits) == Status::ok) {
          ASSERT_NE(other, y);
        } else {
          ++refused;
        }
      }
      const int all = load_le<std::uint16_t>(bytes.data() + index.lengths + 2 * g);
      ASSERT_EQ(move_bits(g, -all), Status::corrupt) << "rows of " << length << ", group " << g;
    }
  }
  EXPECT_GT(refused, moves / 2) << moves;
}

}  // namespace
}  // namespace atomo::cpu
