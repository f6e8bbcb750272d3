// SPDX-License-Identifier: Apache-2.0
/// Segments of coordinates in two lists, which meet from either end of the content.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cpu/coordinate.hpp"
#include "cpu/coordinate_read.hpp"
#include "cpu/coordinate_write.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

using namespace model;

std::vector<std::byte> encode_body(const std::vector<float>& x, float step) {
  const CoordinateConfig config{step};
  std::vector<std::byte> workspace(cpu::workspace_bytes(config, x.size()));
  std::vector<std::byte> body(cpu::max_encoded_bytes(config, x.size()));
  std::size_t bytes = 0;
  EXPECT_EQ(cpu::encode(config, x.data(), x.size(), {}, workspace, nullptr, body, bytes),
            Status::ok);
  body.resize(bytes);
  return body;
}

Status decode_body(ConstBytes body, float step, std::vector<float>& y) {
  const CoordinateConfig config{step};
  std::vector<std::byte> workspace(cpu::workspace_bytes(config, y.size()));
  return cpu::decode(config, body, y.data(), y.size(), workspace, nullptr);
}

/// Where the two lists of a segment of m entries end.
std::pair<std::uint64_t, std::uint64_t> ends_of_lists(ConstBytes content, const SegmentWord& word,
                                                      std::size_t m) {
  const BitReader in(content.data(), content.size());
  cpu::SegmentStream<Direction::upward> up{in, word.wide() ? 32u : 0u};
  cpu::SegmentStream<Direction::downward> down{in, 8 * content.size()};
  const auto found = [](std::size_t, std::int64_t) { return true; };
  EXPECT_TRUE(cpu::read_list<false>(up, word, m, word.ones, 1, found));
  EXPECT_TRUE(cpu::read_list<true>(down, word, m, word.others, 2, found));
  return {up.bit, down.bit};
}

/// The first list ends where the second does, which comes from the other side.
TEST(CoordinateLists, TwoListsMeetAndOnlyZerosLieBetween) {
  std::set<std::uint64_t> paddings;
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    const auto x = test::heavy_tailed(300, seed, 20);
    const auto body = encode_body(x, 0.15f);
    const auto word = SegmentWord::unpack(load_le<std::uint32_t>(body.data()));
    if (word.mode != SegmentMode::two_lists) continue;
    const auto [up, down] = ends_of_lists(ConstBytes(body).subspan(4), word, x.size());
    ASSERT_LE(up, down);
    ASSERT_LT(down - up, 8u);
    paddings.insert(down - up);
    std::vector<float> y(x.size());
    EXPECT_EQ(decode_body(body, 0.15f, y), Status::ok);
    for (std::uint64_t bit = up; bit < down; ++bit) {
      auto damaged = body;
      damaged[4 + bit / 8] |= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_EQ(decode_body(damaged, 0.15f, y), Status::corrupt);
    }
    // A byte more, or less, between the lists.
    SegmentWord other = word;
    for (const std::uint32_t bytes : {word.bytes - 1, word.bytes + 1}) {
      auto moved = body;
      if (bytes < word.bytes)
        moved.erase(moved.begin() + 4 + static_cast<std::ptrdiff_t>(up / 8));
      else
        moved.insert(moved.begin() + 4 + static_cast<std::ptrdiff_t>((up + 7) / 8), std::byte{0});
      other.bytes = bytes;
      store_le(moved.data(), other.pack());
      EXPECT_EQ(decode_body(moved, 0.15f, y), Status::corrupt);
    }
  }
  EXPECT_GE(paddings.size(), 6u);
}

/// Levels as a sum has them.
struct SomeLevels {
  std::vector<std::int64_t> levels;
  [[nodiscard]] std::uint64_t at(std::size_t place) const {
    return static_cast<std::uint64_t>(std::abs(levels[place]));
  }
  [[nodiscard]] std::uint64_t negative(std::size_t place) const {
    return levels[place] < 0 ? 1 : 0;
  }
};

TEST(CoordinateLists, WideSegmentsOfTwoListsComeBack) {
  std::mt19937_64 generator(5);
  for (const unsigned width : {30u, 41u, 53u}) {
    for (const std::size_t m : {50u, 3000u, 32768u}) {
      SomeLevels levels{std::vector<std::int64_t>(m)};
      for (auto& level : levels.levels) {
        const std::uint64_t draw = generator();
        level = draw % 4 == 0 ? 1 : 0;
        if (draw % 97 == 0) level = static_cast<std::int64_t>(generator() >> (64 - width) | 2);
        if (draw >> 63 != 0) level = -level;
      }
      levels.levels[m / 2] = std::int64_t{1} << (width - 1);
      std::vector<std::uint16_t> nonzero(m), ones(m), others(m);
      const auto lists = cpu::list_segment(levels, m, {nonzero, ones, others});
      SegmentPlan plan = cpu::choose_word(levels, lists, m, width);
      ASSERT_EQ(plan.word.mode, SegmentMode::two_lists) << width << " " << m;
      plan.word.bytes = static_cast<std::uint32_t>((plan.bits + 7) / 8 + 4);
      std::vector<std::byte> content(plan.word.bytes + 16, std::byte{0xAA});
      cpu::write_content(content.data(), levels, lists, m, plan.word);
      for (std::size_t i = 0; i < 16; ++i) ASSERT_EQ(content[plan.word.bytes + i], std::byte{0xAA});
      content.resize(plan.word.bytes);
      std::vector<std::int64_t> read(m);
      const auto found = [&](std::size_t place, std::int64_t level) {
        read[place] = level;
        return true;
      };
      ASSERT_TRUE(cpu::read_segment(content, SegmentWord::unpack(plan.word.pack()), m, found));
      EXPECT_EQ(read, levels.levels);
    }
  }
}

}  // namespace
}  // namespace atomo
