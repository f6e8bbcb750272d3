// SPDX-License-Identifier: Apache-2.0
#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <set>

namespace atomo {

using namespace model;
namespace {

TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0, 0),
            (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, ones, ones),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, RunsAtCompileTime) {
  static_assert(philox4x32({0, 0, 0, 0}, 0, 0)[0] == 0x6627e8d5);
  static_assert(Philox(Key{}, Purpose::select_block).counter(0)[1] == 0x100);
}

TEST(Philox, LaysTheCounterOutByField) {
  const Key key{.seed = 0x1122334455667788,
                .step = 0x99aabbcc,
                .tensor = 0xddee,
                .worker = 0x1357,
                .channel = 0x2468};
  const Philox draws(key, Purpose::dither_u);
  EXPECT_EQ(draws.counter(0xab'01234567),
            (PhiloxWords{0x01234567, 0x246800ab | 10u << 8, 0x99aabbcc, 0x1357ddee}));
  EXPECT_EQ(draws.key0(), 0x55667788u);
  EXPECT_EQ(draws.key1(), 0x11223344u);
  EXPECT_EQ(draws(7), philox4x32(draws.counter(7), 0x55667788, 0x11223344));
}

TEST(Philox, EveryFieldChangesTheCounter) {
  std::set<PhiloxWords> seen;
  for (unsigned bit = 0; bit < 16; ++bit) {
    const auto one = static_cast<std::uint16_t>(1u << bit);
    seen.insert(Philox(Key{.tensor = one}, Purpose::qsgd).counter(0));
    seen.insert(Philox(Key{.worker = one}, Purpose::qsgd).counter(0));
    seen.insert(Philox(Key{.channel = one}, Purpose::qsgd).counter(0));
  }
  for (unsigned bit = 0; bit < 32; ++bit)
    seen.insert(Philox(Key{.step = 1u << bit}, Purpose::qsgd).counter(0));
  for (unsigned bit = 0; bit < 40; ++bit)
    seen.insert(Philox(Key{}, Purpose::qsgd).counter(std::uint64_t{1} << bit));
  for (int purpose = 1; purpose <= 23; ++purpose)
    seen.insert(Philox(Key{}, Purpose(purpose)).counter(0));
  EXPECT_EQ(seen.size(), 3 * 16 + 32 + 40 + 23u);
}

}  // namespace
}  // namespace atomo
