// SPDX-License-Identifier: Apache-2.0
// Which samples each worker has, and in which order it sees them.

#include "learning/split.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "learning/data_order.hpp"

namespace {

using train::DataOrder;
using train::Share;
using train::share_of;
using train::SplitSpec;

constexpr std::size_t kSamples = 6000, kClasses = 10;
constexpr std::uint64_t kSeed = 3;

const std::vector<std::uint16_t>& labels() {
  static const auto all = [] {
    std::vector<std::uint16_t> of(kSamples);
    for (std::size_t k = 0; k < kSamples; ++k)
      of[k] = static_cast<std::uint16_t>(k * 7 % 31 % kClasses);
    return of;
  }();
  return all;
}

std::vector<Share> shares(const std::string& spec, std::size_t workers,
                          std::uint64_t seed = kSeed) {
  std::vector<Share> all;
  for (std::size_t k = 0; k < workers; ++k)
    all.push_back(
        share_of(SplitSpec::parse(spec), {kSamples, labels(), kClasses}, k, workers, seed));
  return all;
}

std::array<std::size_t, kClasses> histogram(const Share& share) {
  std::array<std::size_t, kClasses> counts{};
  for (const auto k : share.samples) ++counts[labels()[k]];
  return counts;
}

std::array<std::size_t, kClasses> all_samples_by_class() {
  std::array<std::size_t, kClasses> counts{};
  for (const auto label : labels()) ++counts[label];
  return counts;
}

/// How many workers have each sample.
std::vector<int> owners(const std::vector<Share>& all) {
  std::vector<int> counts(kSamples);
  for (const auto& share : all) {
    EXPECT_EQ(std::set<std::uint32_t>(share.samples.begin(), share.samples.end()).size(),
              share.samples.size())
        << "a worker has a sample twice";
    for (const auto k : share.samples) ++counts[k];
  }
  return counts;
}

std::string message_of(const std::string& spec, std::size_t workers = 4) {
  try {
    (void)shares(spec, workers);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

TEST(Split, SpecsAreRead) {
  const auto split = SplitSpec::parse("classes:shift=2,samples=500,k=3");
  EXPECT_EQ(split.kind, SplitSpec::Kind::classes);
  EXPECT_EQ(split.classes, 3U);
  EXPECT_EQ(split.shift, 2U);
  EXPECT_EQ(split.samples, 500U);
  EXPECT_EQ(SplitSpec::parse("dirichlet:alpha=0.25").alpha, 0.25);
  EXPECT_EQ(SplitSpec::parse("blocks:r=3").r, 3U);
  EXPECT_EQ(SplitSpec::parse("iid").samples, 0U);
  EXPECT_EQ(SplitSpec::parse("iid,samples=7").samples, 7U);
}

TEST(Split, BadSpecsNameTheKeyAndWhatIsRight) {
  for (const auto& [spec, expected] : std::map<std::string, std::string>{
           {"random", "there are iid, classes, dirichlet, blocks, duplicate"},
           {"", "there is no split ''"},
           {"iid:r=2", "there is no key 'r'; iid takes samples"},
           {"classes:m=3", "there is no key 'm'; classes takes k, shift, samples"},
           {"classes:", "there is no key ''"},
           {"classes:k=3,", "there is no key ''"},
           {"classes:k=11", "k=11,shift=4: the data have 10 classes; k is at most that"},
           {"classes:k=65537", "k is '65537', it has to be a whole number from 1 to 65536"},
           {"classes:k=0", "k is '0'"},
           {"classes:k", "k is ''"},
           {"classes:k=3x", "k is '3x'"},
           {"classes:shift=-1", "shift is '-1', it has to be a whole number from 0 to 65535"},
           {"classes:shift=10", "k=8,shift=10: the data have 10 classes"},
           {"dirichlet:alpha=0", "alpha is '0', it has to be a number above 0"},
           {"dirichlet:alpha=nan", "alpha is 'nan'"},
           {"blocks:r=0", "r is '0'"},
           {"duplicate:r=2,samples=0", "samples is '0'"}}) {
    EXPECT_NE(message_of(spec).find(expected), std::string::npos)
        << spec << ": " << message_of(spec);
  }
}

TEST(Split, WorkersAndSamplesThatDoNotFitAreRefused) {
  for (const auto& [spec, expected] : std::map<std::string, std::string>{
           {"duplicate:r=3", "needs a multiple of 3 workers, there are 4"},
           {"blocks:r=5", "sets of 5 workers, there are 4"},
           {"iid:samples=1501", "needs 6004 samples, the training set has 6000"},
           {"dirichlet:samples=1501", "needs 6004 samples, the training set has 6000"},
           {"duplicate:r=2,samples=3001", "2 blocks of 3000 samples, a worker wants 3001"},
           {"classes:k=1,samples=1000", "needs 1000 of class 0, the training set has"}}) {
    EXPECT_NE(message_of(spec).find(expected), std::string::npos)
        << spec << ": " << message_of(spec);
  }
  EXPECT_NE(message_of("blocks:r=10", 20).find("more blocks than the 6000 samples"),
            std::string::npos);
  EXPECT_EQ(message_of("blocks:r=2,samples=2000"), "");
}

TEST(Split, ClassesAndProportionsNeedLabels) {
  for (const char* spec : {"classes:k=8", "dirichlet:alpha=1"}) {
    try {
      (void)share_of(SplitSpec::parse(spec), {100, {}}, 0, 2, kSeed);
      FAIL();
    } catch (const std::runtime_error& e) {
      EXPECT_NE(std::string(e.what()).find("needs samples with labels"), std::string::npos);
    }
  }
  for (const char* spec : {"iid", "blocks:r=2", "duplicate:r=2"})
    EXPECT_FALSE(share_of(SplitSpec::parse(spec), {100, {}}, 0, 2, kSeed).samples.empty());
}

TEST(Split, ClassesAreSharedOutAmongTheirWorkers) {
  const auto all = shares("classes:k=8,shift=4", 8);
  const auto there = all_samples_by_class();
  for (const int count : owners(all)) EXPECT_EQ(count, 1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto counts = histogram(all[i]);
    for (std::size_t c = 0; c < kClasses; ++c) {
      const bool has = (c + 10 * kClasses - 4 * i) % kClasses < 8;
      std::size_t holders = 0;
      for (std::size_t w = 0; w < 8; ++w) holders += (c + 10 * kClasses - 4 * w) % kClasses < 8;
      const double fair = static_cast<double>(there[c]) / static_cast<double>(holders);
      EXPECT_NEAR(static_cast<double>(counts[c]), has ? fair : 0, has ? 1 : 0) << i << " " << c;
    }
  }
}

TEST(Split, CutsAreBalancedOverClasses) {
  const auto all = shares("classes:k=3,shift=1,samples=100", 4);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto counts = histogram(all[i]);
    EXPECT_EQ(all[i].samples.size(), 100U);
    EXPECT_EQ(counts[i], 34U);
    EXPECT_EQ(counts[i + 1], 33U);
    EXPECT_EQ(counts[i + 2], 33U);
  }
  for (const int count : owners(all)) EXPECT_LE(count, 1);
}

TEST(Split, MoreOfAClassThanThereIsForEachIsShared) {
  const auto all = shares("classes:k=10,shift=0,samples=3000", 4);
  const auto counts = owners(all);
  for (const auto& share : all) EXPECT_EQ(share.samples.size(), 3000U);
  EXPECT_EQ(*std::max_element(counts.begin(), counts.end()), 3);
  EXPECT_GE(*std::min_element(counts.begin(), counts.end()), 1);
}

TEST(Split, ProportionsFollowTheDirichletDistribution) {
  for (const double alpha : {0.1, 1.0, 100.0}) {
    // Variance of a proportion: (1/10)(9/10) / (10 alpha + 1). The first worker alone, of many
    // seeds: it draws from all classes. Small samples, so that no class runs out.
    double squares = 0;
    constexpr int kDraws = 400, kEach = 400;
    for (int draw = 0; draw < kDraws; ++draw) {
      const auto share =
          share_of(SplitSpec::parse("dirichlet:alpha=" + std::to_string(alpha) + ",samples=400"),
                   {kSamples, labels(), kClasses}, 0, 2, static_cast<std::uint64_t>(draw));
      EXPECT_EQ(share.samples.size(), 400U);
      for (const auto count : histogram(share)) {
        const double off = static_cast<double>(count) / kEach - 0.1;
        squares += off * off / (kDraws * kClasses);
      }
    }
    const double of_proportions = 0.09 / (10 * alpha + 1);
    const double of_counts = (0.09 - of_proportions) / kEach;
    // Of 4000 squares: five standard errors, a square's own deviation at most 3 times its mean.
    EXPECT_NEAR(squares, of_proportions + of_counts,
                5 * 3 * (of_proportions + of_counts) / std::sqrt(4000.0))
        << alpha;
  }
}

TEST(Split, ProportionsShareNoSample) {
  const auto all = shares("dirichlet:alpha=0.01", 5);  // classes run out
  for (const auto& share : all) EXPECT_EQ(share.samples.size(), kSamples / 5);
  for (const int count : owners(all)) EXPECT_EQ(count, 1);
  EXPECT_NE(all[0].samples, shares("dirichlet:alpha=0.01", 5, kSeed + 1)[0].samples);
}

TEST(Split, EverySetOfWorkersHasABlock) {
  const auto all = shares("blocks:r=2", 4);  // 6 blocks of 1000
  for (const int count : owners(all)) EXPECT_EQ(count, 2);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].samples.size(), 3000U);
    for (std::size_t j = i + 1; j < 4; ++j) {
      const std::set<std::uint32_t> mine(all[i].samples.begin(), all[i].samples.end());
      const auto shared = std::count_if(all[j].samples.begin(), all[j].samples.end(),
                                        [&](std::uint32_t k) { return mine.contains(k); });
      EXPECT_EQ(shared, 1000);
    }
  }
}

TEST(Split, DuplicatesSeeTheSameInTheSameOrder) {
  const auto all = shares("duplicate:r=2,samples=600", 6);
  std::vector<DataOrder> orders;
  for (const auto& share : all) orders.emplace_back(share, 32, kSeed);
  for (const std::uint32_t step : {0U, 17U, 18U, 100U}) {
    std::vector<std::vector<std::uint32_t>> seen;
    for (auto& order : orders) {
      const auto samples = order.samples(step);
      seen.emplace_back(samples.begin(), samples.end());
    }
    EXPECT_EQ(seen[0], seen[1]);
    EXPECT_EQ(seen[4], seen[5]);
    EXPECT_NE(seen[0], seen[2]);
    std::vector<std::uint32_t>
        places;  // of the samples in their blocks: other blocks, other orders
    for (const auto k : seen[2]) places.push_back(k - 1);
    EXPECT_NE(seen[0], places);
  }
  for (const int count : owners({all[0], all[2], all[4]})) EXPECT_LE(count, 1);
}

TEST(Split, WithOneBlockAWorkerItHasItsOwnSample) {
  for (std::size_t k = 0; k < 5; ++k) {
    const auto share = share_of(SplitSpec::parse("duplicate:r=1"), {5, {}}, k, 5, kSeed);
    EXPECT_EQ(share.samples, std::vector<std::uint32_t>{static_cast<std::uint32_t>(k)});
  }
}

TEST(DataOrder, AnEpochOfAllWorkersIsEverySampleOnce) {
  constexpr std::size_t kWorkers = 3, kBatch = 50;
  std::vector<DataOrder> orders;
  for (const auto& share : shares("iid", kWorkers)) orders.emplace_back(share, kBatch, kSeed);
  std::vector<std::uint32_t> first, second;
  for (std::uint32_t step = 0; step < 80; ++step) {
    for (auto& order : orders) {
      const auto samples = order.samples(step);
      auto& epoch = step < 40 ? first : second;
      epoch.insert(epoch.end(), samples.begin(), samples.end());
    }
  }
  EXPECT_NE(first, second);
  for (auto* epoch : {&first, &second}) {
    EXPECT_EQ(epoch->size(), kSamples);
    EXPECT_EQ(std::set<std::uint32_t>(epoch->begin(), epoch->end()).size(), kSamples);
  }
}

TEST(DataOrder, AnyStepIsAFunctionOfTheSeed) {
  const auto share = shares("classes:k=2,shift=1", 4)[2];
  DataOrder straight(share, 20, kSeed), resumed(share, 20, kSeed), other(share, 20, kSeed + 1);
  std::vector<std::vector<std::uint32_t>> seen;
  for (std::uint32_t step = 0; step < 200; ++step) {
    const auto samples = straight.samples(step);
    seen.emplace_back(samples.begin(), samples.end());
  }
  for (const std::uint32_t step : {150U, 3U, 199U, 60U}) {
    EXPECT_TRUE(std::ranges::equal(resumed.samples(step), seen[step]));
    EXPECT_FALSE(std::ranges::equal(other.samples(step), seen[step]));
  }
}

TEST(DataOrder, ABatchLargerThanWhatAWorkerHasIsRefused) {
  try {
    DataOrder(shares("duplicate:r=1,samples=30", 2)[0], 32, kSeed);
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(),
                 "a step of a worker with --batch 32 needs 32 samples, the training set has 30 for "
                 "it");
  }
}

}  // namespace
