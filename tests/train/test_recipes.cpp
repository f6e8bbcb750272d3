// SPDX-License-Identifier: Apache-2.0
/// Schedules of the learning rate, moved images, and steps of epochs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "learning/augment.hpp"
#include "learning/data_order.hpp"
#include "learning/schedule.hpp"
#include "learning/sparsity_warmup.hpp"

namespace train {
namespace {

/// What a call throws; empty when nothing.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST(Schedules, FallAsTheyAreNamed) {
  Schedule schedule{.name = "constant", .rate = 0.5, .steps = 8, .decay = 0.25};
  for (const std::uint32_t step : {0U, 3U, 7U}) EXPECT_EQ(schedule(step), 0.5);

  schedule.name = "cosine";
  EXPECT_EQ(schedule(0), 0.5);
  EXPECT_NEAR(schedule(4), 0.25, 1e-12);
  EXPECT_NEAR(schedule(2), 0.25 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_GT(schedule(7), 0);

  schedule.name = "trapezoid";
  schedule.decay_at = {0.5};
  const std::vector<double> falling = {0.5, 0.5, 0.5, 0.5, 0.5, 0.375, 0.25, 0.125};
  for (std::uint32_t step = 0; step < 8; ++step) EXPECT_EQ(schedule(step), falling[step]) << step;

  schedule.name = "exponential";
  EXPECT_EQ(schedule(0), 0.5);
  EXPECT_EQ(schedule(1), 0.125);
  EXPECT_EQ(schedule(3), 0.5 / 64);

  schedule.name = "step";
  schedule.decay_at = {0.5, 0.75};
  const std::vector<double> expected = {0.5, 0.5, 0.5, 0.5, 0.125, 0.125, 0.03125, 0.03125};
  for (std::uint32_t step = 0; step < 8; ++step) EXPECT_EQ(schedule(step), expected[step]) << step;
}

TEST(SparsityWarmup, RaisesSharesToAQuarterOfTheOneBefore) {
  const std::string policy =
      "*.bias = identity # keep all\n*.a = dgc:momentum=0.9+topk:keep=0.01+blosc\n* = "
      "topk:keep=1.0";
  const auto with = [&](const std::string& share) {
    auto text = policy;
    return text.replace(text.find("0.01"), 4, share);
  };
  EXPECT_EQ(warmed_up(policy, 0), with("0.25"));
  EXPECT_EQ(warmed_up(policy, 2), with("0.015625"));
  for (const std::uint32_t stage : {3U, 4U, 100U, 4000000000U})
    EXPECT_EQ(warmed_up(policy, stage), policy) << stage;
  EXPECT_EQ(warmed_up("* = topk:keep=1e-9", 9), "* = topk:keep=9.5367431640625e-07");
  EXPECT_EQ(error_of([] { (void)warmed_up("* = topk:keep=12", 0); }),
            "keep=12 is a count: a share is expected, such as keep=0.01");
  EXPECT_EQ(error_of([] { (void)warmed_up("* = sign", 0); }),
            "the policy has no keep=: a codec that keeps a share is expected, such as "
            "dgc+topk:keep=0.01");
}

TEST(Schedules, RiseWithEveryName) {
  for (const char* name : {"constant", "cosine", "trapezoid", "step", "exponential"}) {
    Schedule risen{.name = name, .rate = 1, .steps = 100, .decay = 0.5, .decay_at = {0.9}};
    Schedule rising = risen;
    rising.warmup = 4;
    for (const std::uint32_t step : {0U, 1U, 2U, 3U, 4U, 50U, 95U})
      EXPECT_DOUBLE_EQ(rising(step), std::min(1.0, (step + 1) / 4.0) * risen(step)) << name << step;
    for (const std::uint32_t step : {0U, 2U, 50U, 95U})
      EXPECT_EQ(rising.left(step), risen(step)) << name << step;
  }
}

TEST(Schedules, RefuseWhatIsNoShare) {
  EXPECT_EQ(parse_decay_at("0.5,0.75"), (std::vector<double>{0.5, 0.75}));
  EXPECT_EQ(parse_decay_at("0.3"), (std::vector<double>{0.3}));
  for (const auto& [text, part] : std::map<std::string, std::string>{{"0.5,1", "'1'"},
                                                                     {"0,0.5", "'0'"},
                                                                     {"half", "'half'"},
                                                                     {"0.5x", "'0.5x'"},
                                                                     {"0.5,,0.7", "''"},
                                                                     {"", "''"},
                                                                     {"0.5,", "''"},
                                                                     {"0.75,0.5", "'0.5'"},
                                                                     {"0.5,0.5", "'0.5'"},
                                                                     {"nan", "'nan'"}}) {
    const std::string error = error_of([&] { (void)parse_decay_at(text); });
    EXPECT_NE(error.find(part), error.npos) << text << ": " << error;
    EXPECT_NE(error.find("0.5,0.75"), error.npos) << text << ": " << error;
  }
}

/// 2 channels of 6 x 7, no value twice.
constexpr ImageShape kShape{2, 6, 7};
std::vector<float> numbered_image() {
  std::vector<float> image(kShape.pixels());
  std::iota(image.begin(), image.end(), 1.0F);
  return image;
}
constexpr float kBlack[] = {-1, -2};

TEST(Moves, TakeTheImageFromWhereTheySay) {
  for (const Move move : {Move{}, Move{.down = 2}, Move{.right = -3}, Move{.mirrored = true},
                          Move{.down = -4, .right = 4, .mirrored = true}}) {
    auto image = numbered_image();
    const auto before = image;
    move_image(move, kShape, kBlack, image);
    for (int c = 0; c < 2; ++c) {
      for (int row = 0; row < 6; ++row) {
        for (int column = 0; column < 7; ++column) {
          const int from = row + move.down;
          const int at = (move.mirrored ? 6 - column : column) + move.right;
          const bool inside = from >= 0 && from < 6 && at >= 0 && at < 7;
          EXPECT_EQ(image[static_cast<std::size_t>((c * 6 + row) * 7 + column)],
                    inside ? before[static_cast<std::size_t>((c * 6 + from) * 7 + at)] : kBlack[c])
              << c << " " << row << " " << column;
        }
      }
    }
  }
}

TEST(Moves, MirroredTwiceIsTheImage) {
  auto image = numbered_image();
  for (int k = 0; k < 2; ++k) move_image({.mirrored = true}, kShape, kBlack, image);
  EXPECT_EQ(image, numbered_image());
}

TEST(Moves, AreDrawnEvenlyAndByTheirKeyAlone) {
  const auto both = Augmentation::parse("crop,flip");
  std::map<int, int> downs, rights;
  int mirrored = 0, with_down = 0;
  constexpr int kDraws = 9000;
  for (std::uint32_t sample = 0; sample < kDraws; ++sample) {
    const Move move = draw_move(both, 1, 0, sample);
    EXPECT_EQ(move, draw_move(both, 1, 0, sample));
    ++downs[move.down];
    ++rights[move.right];
    mirrored += move.mirrored;
    with_down += move.mirrored && move.down > 0;
  }
  for (const auto& counts : {downs, rights}) {
    EXPECT_EQ(counts.begin()->first, -kMostMove);
    EXPECT_EQ(counts.size(), 9U);
    for (const auto& [shift, count] : counts) EXPECT_NEAR(count, 1000, 150) << shift;  // 5 sigma
  }
  EXPECT_NEAR(mirrored, kDraws / 2, 240);
  EXPECT_NEAR(with_down, kDraws * 2 / 9, 200) << "mirroring depends on the shift";
}

TEST(Moves, DifferBySeedEpochAndSample) {
  const auto both = Augmentation::parse("flip,crop");
  const auto draws = [&](std::uint64_t seed, std::uint64_t epoch, std::uint32_t from) {
    std::vector<Move> moves;
    for (std::uint32_t k = 0; k < 20; ++k) moves.push_back(draw_move(both, seed, epoch, from + k));
    return moves;
  };
  EXPECT_NE(draws(1, 0, 0), draws(2, 0, 0));
  EXPECT_NE(draws(1, 0, 0), draws(1, 1, 0));
  EXPECT_NE(draws(1, 0, 0), draws(1, 0, 100));
}

TEST(Moves, HaveThePartsThatAreAskedFor) {
  bool moved = false, mirrored = false;
  for (std::uint32_t sample = 0; sample < 50; ++sample) {
    const Move crop = draw_move(Augmentation::parse("crop"), 1, 0, sample);
    const Move flip = draw_move(Augmentation::parse("flip"), 1, 0, sample);
    EXPECT_FALSE(crop.mirrored);
    EXPECT_TRUE(flip.down == 0 && flip.right == 0);
    moved = moved || crop.down != 0;
    mirrored = mirrored || flip.mirrored;
    EXPECT_EQ(draw_move(Augmentation::parse(""), 1, 0, sample), Move{});
  }
  EXPECT_TRUE(moved && mirrored);
  for (const auto& [text, part] :
       std::map<std::string, std::string>{{"zoom", "'zoom'"},
                                          {"crop,", "''"},
                                          {"crop,crop", "'crop' is there twice"},
                                          {"crop flip", "'crop flip'"}}) {
    const std::string error = error_of([&] { (void)Augmentation::parse(text); });
    EXPECT_NE(error.find(part), error.npos) << text << ": " << error;
  }
}

std::vector<std::uint16_t> labels(std::size_t count) {
  std::vector<std::uint16_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint16_t>(i % 10);
  return values;
}

TEST(Epochs, AreWholePassesOfTheLargestShare) {
  const auto classes = labels(640);
  const Samples samples{classes.size(), classes, 10};
  EXPECT_EQ(steps_of_epochs(3, SplitSpec::parse("iid"), samples, 16, 1, 1), 120U);
  EXPECT_EQ(steps_of_epochs(3, SplitSpec::parse("iid"), samples, 16, 4, 1), 30U);
  EXPECT_EQ(steps_of_epochs(1, SplitSpec::parse("iid"), samples, 30, 2, 1), 10U);
  const auto uneven = SplitSpec::parse("classes:k=3,shift=2");
  std::size_t largest = 0, smallest = classes.size();
  for (std::size_t k = 0; k < 4; ++k) {
    const std::size_t size = share_of(uneven, samples, k, 4, 1).samples.size();
    largest = std::max(largest, size);
    smallest = std::min(smallest, size);
  }
  ASSERT_GT(largest / 4, smallest / 4) << "the shares say nothing";
  EXPECT_EQ(steps_of_epochs(2, uneven, samples, 4, 4, 1), 2 * (largest / 4));
}

TEST(Epochs, EndWhereTheDataOrderBeginsItsNext) {
  std::vector<std::uint32_t> pool(50);
  std::iota(pool.begin(), pool.end(), 0U);
  DataOrder order({.samples = pool}, 8, 1);
  EXPECT_EQ(order.epoch(0), 0U);
  EXPECT_EQ(order.epoch(5), 0U);
  EXPECT_EQ(order.epoch(6), 1U);
  std::set<std::uint32_t> seen;
  for (std::uint32_t step = 0; step < 6; ++step) {
    const auto samples = order.samples(step);
    seen.insert(samples.begin(), samples.end());
  }
  EXPECT_EQ(seen.size(), 48U);
}

TEST(Epochs, RefuseMoreThanARunCanHave) {
  const Samples samples{640, {}};
  const std::string error = error_of(
      [&] { (void)steps_of_epochs(4'000'000'000U, SplitSpec::parse("iid"), samples, 16, 2, 1); });
  EXPECT_NE(error.find("4000000000 epochs of 20 steps"), error.npos) << error;
  EXPECT_NE(error.find("at most 214748364"), error.npos) << error;
}

}  // namespace
}  // namespace train
