// SPDX-License-Identifier: Apache-2.0
#include "coding/marks.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace atomo::detail {

using namespace model;
namespace {

std::vector<std::uint64_t> random_marks(std::uint64_t atoms, double density,
                                        std::mt19937_64& random) {
  std::vector<std::uint64_t> marks(marks_words(atoms));
  std::bernoulli_distribution kept(density);
  for (std::uint64_t i = 0; i < atoms; ++i)
    marks[i / 64] |= std::uint64_t{kept(random)} << (i % 64);
  marks[0] |= 1;  // a section always keeps something
  return marks;
}

std::vector<std::byte> written(const std::vector<std::uint64_t>& marks, std::uint64_t atoms) {
  const MarksChoice plan = choose_marks(marks, atoms);
  std::vector<std::byte> bytes(plan.bytes + 8, std::byte{0xAA});
  write_marks(plan, marks, atoms, bytes.data());
  for (std::size_t i = plan.bytes; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], std::byte{0xAA});
  bytes.resize(plan.bytes);
  return bytes;
}

/// False when the section is refused.
bool read(ConstBytes bytes, std::uint64_t atoms, std::vector<std::uint64_t>& marks) {
  MarksReader reader;
  if (!reader.open(bytes, atoms)) return false;
  marks.clear();
  SegmentMarks segment;
  std::uint64_t kept = 0;
  for (std::uint64_t s = 0; s < marks_segments(atoms); ++s) {
    if (!reader.next(segment)) return false;
    for (const std::uint64_t word : segment)
      kept += static_cast<std::uint64_t>(std::popcount(word));
    marks.insert(marks.end(), segment.begin(), segment.end());
  }
  marks.resize(marks_words(atoms));
  return reader.bytes() <= bytes.size() && kept == reader.kept();
}

TEST(Marks, EveryDensityComesBackAndIsNoLongerThanTheMap) {
  std::mt19937_64 random(1);
  for (const std::uint64_t atoms :
       {1ull, 7ull, 8ull, 63ull, 64ull, 65ull, 4095ull, 4096ull, 4097ull, 20011ull}) {
    for (const double density : {0.0, 0.0005, 0.01, 0.1, 0.3, 0.7, 1.0}) {
      const auto marks = random_marks(atoms, density, random);
      const auto bytes = written(marks, atoms);
      EXPECT_LE(bytes.size(), max_marks_bytes(atoms));
      EXPECT_EQ(bytes.size() % 2, 0u);
      std::vector<std::uint64_t> back;
      ASSERT_TRUE(read(bytes, atoms, back)) << atoms << " at " << density;
      EXPECT_EQ(back, marks);
    }
  }
}

TEST(Marks, SparseOnesTakeGapsNearTheEntropy) {
  std::mt19937_64 random(2);
  const std::uint64_t atoms = 400000;
  for (const double p : {0.002, 0.02, 0.1}) {
    const auto bytes = written(random_marks(atoms, p, random), atoms);
    EXPECT_NE(bytes[0], std::byte{0});
    const double entropy =
        -(p * std::log2(p) + (1 - p) * std::log2(1 - p)) * static_cast<double>(atoms) / 8;
    const double heads = 4.0 * static_cast<double>(marks_segments(atoms));
    EXPECT_LT(static_cast<double>(bytes.size()), 1.06 * entropy + heads);
  }
}

/// Any bytes are refused or read; never more than there are.
TEST(Marks, DamageIsRefusedOrRead) {
  std::mt19937_64 random(3);
  for (const double density : {0.01, 0.5}) {
    const std::uint64_t atoms = 9001;
    const auto bytes = written(random_marks(atoms, density, random), atoms);
    std::vector<std::uint64_t> marks;
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const std::vector<std::byte> cut(bytes.begin(),
                                       bytes.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_FALSE(read(cut, atoms, marks));
    }
    for (int i = 0; i < 20000; ++i) {
      auto damaged = bytes;
      damaged[random() % std::min<std::size_t>(damaged.size(), i % 2 == 0 ? 16 : damaged.size())] ^=
          static_cast<std::byte>(1u << (random() % 8));
      read(damaged, atoms, marks);
    }
  }
}

TEST(Marks, PaddingAndModesAreChecked) {
  std::mt19937_64 random(4);
  std::vector<std::uint64_t> marks;
  auto map = written(random_marks(13, 0.9, random), 13);
  ASSERT_EQ(map[0], std::byte{0});
  ASSERT_EQ(map.size(), 4u);
  EXPECT_TRUE(read(map, 13, marks));
  map[2] |= std::byte{0x20};  // a mark beyond the last atom
  EXPECT_FALSE(read(map, 13, marks));
  map[2] &= std::byte{0x1F};
  map[3] = std::byte{1};  // padding
  EXPECT_FALSE(read(map, 13, marks));
  map[3] = std::byte{0};
  map[0] = std::byte{14};  // a parameter beyond 12
  EXPECT_FALSE(read(map, 13, marks));
  map[0] = map[1] = map[2] = std::byte{0};  // nothing kept has no section
  EXPECT_FALSE(read(map, 13, marks));
}

}  // namespace
}  // namespace atomo::detail
