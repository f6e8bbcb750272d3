// SPDX-License-Identifier: Apache-2.0
/// Sums of messages, whose levels need more bits than a message's, decode on the device to the
/// values of the CPU; damaged ones are refused alike.
#include <gtest/gtest.h>

#include "cuda/tuning.hpp"
#include "support/grid_messages.hpp"
#include "support/mutated_messages.hpp"
#include "support/on_cpu.hpp"

namespace atomo::test {

using namespace model;
namespace {

const char* const kSpec = "atomo:atoms=coordinate,delta=1";

/// Levels of up to `bits` bits, `share` of them not zero, some of them 1.
Levels levels_like(std::size_t n, double share, unsigned bits, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> kept(0, 1);
  Levels levels(n);
  for (auto& level : levels) {
    if (kept(generator) >= share) continue;
    level = std::int64_t{1} << generator() % bits;
    if (generator() % 2 == 0) level = -level;
  }
  return levels;
}

/// A message doubled until its largest level is near 2^53, with fresh levels added at the end.
Buffer doubled(std::size_t n, double share, unsigned bits) {
  const Buffer once = message_of(levels_like(n, share, bits, n));
  Buffer sum = once;
  for (unsigned i = bits; i < 51; ++i) sum = sum_of({sum, sum}).bytes;
  return sum_of({sum, once, once}).bytes;
}

struct Case {
  std::size_t n;
  double share;
  unsigned bits;
};
constexpr Case kCases[] = {{1, 1, 1},         {33, 1, 20},     {700, 0.02, 1}, {32769, 0.3, 27},
                           {70001, 0.001, 9}, {40001, 0.2, 2}, {5000, 1, 28}};

TEST(DeviceSums, ValuesAreTheCpus) {
  const Codec codec = Codec::parse(kSpec);
  bool wide = false;
  for (const Case& c : kCases) {
    const Shape shape{static_cast<std::int64_t>(c.n)};
    const Buffer sum = doubled(c.n, c.share, c.bits);
    wide = wide || word_of(sum, 0).wide();
    const auto before = entries_of(heavy_tailed(c.n, 9, 20), DType::f32);
    for (const bool add : {false, true}) {
      const auto expected = decode_on_cpu(codec, sum, before, DType::f32, shape, add, -0.7f);
      ASSERT_EQ(expected.status, Status::ok);
      for (std::size_t shift = 0; shift < 4; ++shift) {
        for (const unsigned warps : {1u, 4u, 8u}) {
          cuda::warps_per_block = warps;
          const auto found = decode_bytes(codec, sum, before, DType::f32, shape, add, -0.7f, shift);
          ASSERT_EQ(found.status, Status::ok) << c.n;
          ASSERT_TRUE(found.values == expected.values) << c.n << " shift " << shift;
        }
      }
    }
  }
  EXPECT_TRUE(wide);
  cuda::warps_per_block = 4;
}

TEST(DeviceSums, DamagedOnesAreRefusedAlike) {
  const Codec codec = Codec::parse(kSpec);
  std::size_t accepted = 0, refused = 0;
  for (const Case& c : {Case{150, 1, 28}, Case{150, 0.3, 3}, Case{150, 0.1, 1}}) {
    const Shape shape{static_cast<std::int64_t>(c.n)};
    const Buffer sum = doubled(c.n, c.share, c.bits);
    const auto before = entries_of(heavy_tailed(c.n, 9, 20), DType::f32);
    for (std::uint64_t trial = 0; trial < 300; ++trial) {
      const Buffer damaged = mutated_message(sum, trial);
      const auto on_cpu = decode_on_cpu(codec, damaged, before, DType::f32, shape);
      const auto found = decode_bytes(codec, damaged, before, DType::f32, shape);
      ASSERT_EQ(found.status, on_cpu.status) << trial;
      (failed(found.status) ? refused : accepted) += 1;
      if (!failed(found.status)) {
        ASSERT_TRUE(found.values == on_cpu.values) << trial;
      }
    }
  }
  EXPECT_GT(accepted, 30u);
  EXPECT_GT(refused, 30u);
}

}  // namespace
}  // namespace atomo::test
