// SPDX-License-Identifier: Apache-2.0
#include "coding/duo_code.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <vector>

#include "math/dither.hpp"

namespace atomo::detail {

using namespace model;
namespace {

constexpr std::size_t kSteps = std::size(kCodingSteps);

std::uint64_t bits_of(const DuoCoding& coding, std::uint32_t level, std::int32_t q0,
                      std::int32_t q1) {
  std::byte buffer[32];
  BitWriter out(buffer, sizeof buffer);
  put_duo(out, coding, duo_entry(coding, level, q0, q1), q0, q1);
  return out.position();
}

template <Direction kDirection>
void expect_round_trip(std::size_t step, const DuoCoding& coding, std::uint32_t level,
                       std::int32_t q0, std::int32_t q1) {
  std::byte buffer[32];
  DirectedBitWriter<kDirection> out(buffer, sizeof buffer);
  out.put(5, 3);  // an odd place to start
  put_duo(out, coding, duo_entry(coding, level, q0, q1), q0, q1);
  const std::uint64_t end = out.position();
  out.finish();
  const bool up = kDirection == Direction::upward;
  const std::uint64_t all = 8 * sizeof buffer;
  std::uint64_t bit = up ? 3 : all - 3;
  const DecodedDuo pair = get_duo<kDirection>(BitReader(buffer, sizeof buffer), coding, level, bit);
  ASSERT_EQ(pair.q0, q0) << "step " << step << " level " << level;
  ASSERT_EQ(pair.q1, q1) << "step " << step << " level " << level;
  ASSERT_EQ(up ? bit : all - bit, end);
  ASSERT_LE(end - 3, max_duo_bits(step, coding.escape_bits));
}

void expect_round_trips(std::size_t step, const DuoCoding& coding, std::uint32_t level,
                        std::int32_t q0, std::int32_t q1) {
  expect_round_trip<Direction::upward>(step, coding, level, q0, q1);
  expect_round_trip<Direction::downward>(step, coding, level, q0, q1);
}

TEST(DuoCode, EveryCellOfEveryStepComesBack) {
  for (std::size_t step = 0; step < kSteps; ++step) {
    const DuoCoding coding = duo_coding(step, 20);
    const int stride = 1 << coding.raw, reach = 1 << (coding.width - 1);
    for (std::uint32_t level = 0; level < 16; level += coding.level_mask == 0 ? 15 : 1) {
      for (int h0 = -reach - 2; h0 <= reach + 2; ++h0) {
        for (int h1 = -reach - 2; h1 <= reach + 2; ++h1) {
          expect_round_trips(step, coding, level, h0 * stride + stride / 3,
                             h1 * stride - stride / 3);
        }
      }
    }
  }
}

TEST(DuoCode, EscapesReachBothEnds) {
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (const unsigned bits : {3u, 5u, 17u, kMaxEscapeBits}) {
      if ((1 << (bits - 1)) <= (1 << (duo_coding(step, bits).raw + 3))) continue;
      const std::int32_t end = 1 << (bits - 1);
      for (const auto& [q0, q1] :
           {std::pair(-end, end - 1), std::pair(end - 1, -end), std::pair(0, -end)}) {
        expect_round_trips(step, duo_coding(step, bits), 3, q0, q1);
      }
    }
  }
}

/// A decoder must meet a word whatever the bits are: the lengths of a level fill the code exactly.
TEST(DuoCode, CodesAreComplete) {
  for (const CodeLengths& table : kCodeLengths) {
    for (unsigned level = 0; level < table.levels; ++level) {
      std::uint64_t sum = 0;
      for (const char* c = table.lengths[level]; *c != 0; ++c) {
        const unsigned length = static_cast<unsigned>(*c <= '9' ? *c - '0' : *c - 'a' + 10);
        ASSERT_LE(length, table.limit);
        if (length != 0) sum += std::uint64_t{1} << (table.limit - length);
      }
      EXPECT_EQ(sum, std::uint64_t{1} << table.limit);
    }
  }
}

TEST(DuoCode, LevelsEightApartSwapTheEntries) {
  for (std::size_t step = 0; step < kSteps; ++step) {
    const DuoCoding coding = duo_coding(step, 12);
    if (coding.level_mask == 0) continue;
    for (std::uint32_t level = 0; level < 8; ++level) {
      for (int q0 = -4; q0 < 4; ++q0) {
        for (int q1 = -4; q1 < 4; ++q1) {
          ASSERT_EQ(bits_of(coding, level, q0, q1), bits_of(coding, level + 8, q1, q0));
        }
      }
    }
  }
}

/// FORMAT.md, "Conventions": a word is laid down in its own order, a number of a downward stream with
/// its highest bit highest.
TEST(DuoCode, DownwardBitsAreInTheOrderOfTheFormat) {
  for (const std::size_t step : {0u, 17u, 18u, 40u}) {
    const DuoCoding coding = duo_coding(step, 20);
    for (const auto& [q0, q1] : {std::pair(0, 1), std::pair(5, -7), std::pair(-400'000, 300'001)}) {
      std::byte up[16] = {}, down[16] = {};
      BitWriter upward(up, sizeof up);
      DownwardBitWriter downward(down, sizeof down);
      const std::uint32_t entry = duo_entry(coding, 6, q0, q1);
      put_duo(upward, coding, entry, q0, q1);
      put_duo(downward, coding, entry, q0, q1);
      upward.finish();
      downward.finish();
      ASSERT_EQ(upward.position(), downward.position());
      const BitReader upper(up, sizeof up), lower(down, sizeof down);
      const unsigned length = EncodeEntry::length(entry);
      const bool escaped = (entry & EncodeEntry::kEscape) != 0;
      const unsigned bits = escaped ? coding.escape_bits : coding.raw;
      const std::uint64_t end = 8 * sizeof down;
      for (unsigned i = 0; i < length; ++i)
        ASSERT_EQ(upper.bits(i, 1), lower.bits(end - 1 - i, 1)) << "step " << step;
      for (unsigned number = 0; number < 2; ++number) {
        const unsigned from = length + number * bits;
        ASSERT_EQ(upper.bits(from, bits), lower.bits(end - from - bits, bits)) << "step " << step;
      }
    }
  }
}

double normal_below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

/// The committed costs against the code itself, over all pairs of a Gaussian of rms 1.
TEST(DuoCode, CostsAreWhatTheCodeSpends) {
  for (std::size_t step = 0; step < 22; ++step) {
    const double d = kCodingSteps[step].d;
    const DuoCoding coding = duo_coding(step, escape_bits(256, 1.2 / d));
    const int reach = static_cast<int>(6.0 / d) + 2;
    double bits = 0;
    for (std::uint32_t level = 0; level < 16; ++level) {
      const auto probability = [&](int q, std::uint32_t j) {
        const double edge = (q - (j + 0.5) / 16) * d;
        return normal_below(edge + d) - normal_below(edge);
      };
      for (int q0 = -reach; q0 <= reach; ++q0) {
        const double p0 = probability(q0, level);
        for (int q1 = -reach; q1 <= reach; ++q1) {
          bits += p0 * probability(q1, level ^ kMateDither) *
                  static_cast<double>(bits_of(coding, level, q0, q1)) / 32;
        }
      }
    }
    EXPECT_NEAR(bits * 256, kStepCost256[step][0], 0.01 * bits * 256) << "step " << step;
  }
}

/// Centred content costs no more than a hundredth beyond what a search for a price takes it for.
TEST(DuoCode, CostsOfCentredLayersAreNearThoseOfDither) {
  for (std::size_t step = 0; step < 22; ++step) {
    const double d = kCodingSteps[step].d;
    const DuoCoding coding = duo_coding(step, escape_bits(256, 1.2 / d), true);
    EXPECT_EQ(coding.level_mask, 0u);
    const int reach = static_cast<int>(6.0 / d) + 2;
    const auto probability = [&](int q) {
      return normal_below((q + 0.5) * d) - normal_below((q - 0.5) * d);
    };
    double bits = 0;
    for (int q0 = -reach; q0 <= reach; ++q0) {
      for (int q1 = -reach; q1 <= reach; ++q1)
        bits +=
            probability(q0) * probability(q1) * static_cast<double>(bits_of(coding, 0, q0, q1)) / 2;
    }
    EXPECT_LT(bits * 256, 1.015 * kStepCost256[step][0]) << "step " << step;
    EXPECT_GT(bits * 256, 0.92 * kStepCost256[step][0]) << "step " << step;
  }
}

TEST(DuoCode, EscapeBitsHoldWhatAClassCanReach) {
  for (const std::uint64_t entries : {1ull, 16ull, 31ull, 256ull, 5000ull, 1ull << 22}) {
    for (std::size_t c = 0; c < std::size(kAtomClasses); ++c) {
      const AtomClass& row = kAtomClasses[c];
      const double top =
          c == 0 ? 2.0 : std::ldexp(c % 2 == 0 ? 2.0 : 1.5, static_cast<int>((c - 1) / 2));
      const double largest =
          std::sqrt(static_cast<double>(entries)) * top / static_cast<double>(row.delta);
      const unsigned w = escape_bits(entries, row.reach);
      EXPECT_GE(std::ldexp(1.0, static_cast<int>(w) - 1), largest + 3)
          << "class " << c << " of " << entries;
      if (w > 3) {
        EXPECT_LT(std::ldexp(1.0, static_cast<int>(w) - 2), 1.002 * largest + 3);
      }
      EXPECT_NEAR(static_cast<double>(row.delta), kCodingSteps[row.step].d * kClassMiddle[c], 1e-6);
    }
  }
}

TEST(Bits, WriterStopsAtItsEndAndReaderSeesZerosBeyond) {
  for (std::size_t capacity = 0; capacity < 20; ++capacity) {
    std::vector<std::byte> buffer(capacity + 16, std::byte{0xAA});
    BitWriter out(buffer.data(), capacity);
    for (int i = 0; i < 30; ++i) out.put(0x15u, 5);
    out.finish();
    EXPECT_EQ(out.overflowed(), capacity < 19);
    for (std::size_t i = capacity; i < buffer.size(); ++i) ASSERT_EQ(buffer[i], std::byte{0xAA});
    const BitReader in(buffer.data(), capacity);
    for (std::uint64_t bit = 0; bit < 30 * 5; bit += 5) {
      if (bit + 5 <= capacity * 8) {
        ASSERT_EQ(in.bits(bit, 5), 0x15u);
      }
    }
    EXPECT_EQ(in.peek(capacity * 8), 0u);
    EXPECT_EQ(in.peek(capacity * 8 + 1000), 0u);
  }
}

TEST(Bits, ValuesOfAnyLengthComeBack) {
  std::vector<std::byte> buffer(4096);
  BitWriter out(buffer.data(), buffer.size());
  for (unsigned length = 0; length <= 56; ++length)
    out.put(((std::uint64_t{1} << length) - 1) & 0x5A5A5A5A5A5A5A5A, length);
  const std::size_t bytes = out.finish();
  const BitReader in(buffer.data(), bytes);
  std::uint64_t bit = 0;
  for (unsigned length = 0; length <= 56; bit += length++) {
    ASSERT_EQ(in.bits(bit, length), ((std::uint64_t{1} << length) - 1) & 0x5A5A5A5A5A5A5A5A);
  }
  EXPECT_EQ(bytes, (bit + 7) / 8);
}

TEST(Bits, DownwardWriterStopsAtItsBeginAndReaderSeesZerosOutside) {
  for (std::size_t capacity = 0; capacity < 20; ++capacity) {
    std::vector<std::byte> buffer(capacity + 16, std::byte{0xAA});
    DownwardBitWriter out(buffer.data() + 16, capacity);
    for (int i = 0; i < 30; ++i) out.put(0x13u, 5);
    out.finish();
    EXPECT_EQ(out.overflowed(), capacity < 19);
    for (std::size_t i = 0; i < 16; ++i) ASSERT_EQ(buffer[i], std::byte{0xAA});
    const BitReader in(buffer.data() + 16, capacity);
    for (std::uint64_t bit = 8 * capacity, i = 0; bit >= 5 && i < 30; bit -= 5, ++i)
      ASSERT_EQ(in.peek_below(bit) >> 59, 0x13u);
    EXPECT_EQ(in.peek_below(0), 0u);
    EXPECT_EQ(in.peek_below(capacity * 8 + 64), 0u);
    EXPECT_EQ(in.peek_below(capacity * 8 + 1000), 0u);
    EXPECT_EQ(in.peek_below(~std::uint64_t{0} - 3), 0u);
  }
}

TEST(Bits, DownwardValuesOfAnyLengthComeBack) {
  std::vector<std::byte> buffer(4096);
  DownwardBitWriter out(buffer.data(), buffer.size());
  const auto value_of = [](unsigned length) {
    return ((std::uint64_t{1} << length) - 1) & 0x6996A55A3CC35A5A;
  };
  for (unsigned length = 0; length <= 56; ++length) out.put(value_of(length), length);
  const std::uint64_t bits = out.position();
  const std::size_t bytes = out.finish();
  const BitReader in(buffer.data(), buffer.size());
  std::uint64_t bit = 8 * buffer.size();
  for (unsigned length = 1; length <= 56; bit -= length++) {
    ASSERT_EQ(in.peek_below(bit) >> (64 - length), value_of(length));
  }
  EXPECT_EQ(bits, 8 * buffer.size() - bit);
  EXPECT_EQ(bytes, (bits + 7) / 8);
}

}  // namespace
}  // namespace atomo::detail
