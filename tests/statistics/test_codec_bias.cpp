// SPDX-License-Identifier: Apache-2.0
/// Monte Carlo with fixed keys: the sum of each entry's errors over many messages against a
/// Bernstein bound on its exact variance, all sums of this file one family that errs with a
/// probability below 1e-9; and the same check failing on mistakes planted behind the codec.

#include <functional>

#include "cpu/chunk_draw.hpp"
#include "statistics/statistics.hpp"
#include "support/method_support.hpp"

namespace atomo::test {
namespace {

constexpr double kFamilyError = 1e-9;
constexpr double kFamilySize = 4e6;  ///< sums checked in this file, rounded up

/// Of one entry's error: its variance and its largest size; the codec's step there.
struct EntryLaw {
  double variance = 0, largest = 0, step = 0;
};
using Law = std::function<std::vector<EntryLaw>(const std::vector<float>&)>;

/// Stochastic rounding to `levels` a side of max|x| of each bucket; 0 levels: one bit.
Law levels_of(int levels, std::size_t bucket) {
  return [=](const std::vector<float>& x) {
    std::vector<EntryLaw> laws(x.size());
    for (std::size_t begin = 0; begin < x.size(); begin += bucket) {
      const std::size_t end = std::min(x.size(), begin + bucket);
      double norm = 0;
      for (std::size_t i = begin; i < end; ++i) norm = std::max(norm, std::abs(double{x[i]}));
      for (std::size_t i = begin; i < end; ++i) {
        const double step = norm / std::max(levels, 1), y = std::abs(x[i]) / step;
        const double f = y - std::floor(y);
        laws[i] = levels == 0 ? EntryLaw{norm * norm * (1 - y * y), 2 * norm, norm}
                              : EntryLaw{step * step * f * (1 - f), step * (1 + 1e-5), step};
      }
    }
    return laws;
  };
}

/// Stochastic rounding to `levels` steps between the ends of each bucket.
Law between_ends(int levels, std::size_t bucket) {
  return [=](const std::vector<float>& x) {
    std::vector<EntryLaw> laws(x.size());
    for (std::size_t begin = 0; begin < x.size(); begin += bucket) {
      const auto end = x.begin() + static_cast<std::ptrdiff_t>(std::min(x.size(), begin + bucket));
      const auto [low, high] =
          std::minmax_element(x.begin() + static_cast<std::ptrdiff_t>(begin), end);
      const double least = *low, step = (double{*high} - least) / levels;
      for (std::size_t i = begin; i < std::min(x.size(), begin + bucket); ++i) {
        const double y = (x[i] - least) / step, f = y - std::floor(y);
        laws[i] = {step * step * f * (1 - f), step * (1 + 1e-5), step};
      }
    }
    return laws;
  };
}

Law kept_share(double share) {
  return [=](const std::vector<float>& x) {
    std::vector<EntryLaw> laws;
    for (const double v : x) laws.push_back({v * v * (1 / share - 1), std::abs(v) / share, 0});
    return laws;
  };
}

/// Entries drawn of chunks of one group: the law of the draw, and of the levels of those that are certain.
Law drawn_of(format::ChunkValues values, std::size_t chunk, std::uint32_t slots) {
  return [=](const std::vector<float>& x) {
    std::vector<format::DrawnChunk> chunks;
    format::DrawnChunk group;
    for (std::size_t at = 0; at < x.size(); at += chunk) {
      std::uint32_t guess = 0;
      const std::size_t n = std::min(chunk, x.size() - at);
      const auto k = static_cast<std::uint32_t>((slots * n + chunk - 1) / chunk);
      chunks.push_back(cpu::measure_chunk(x.data() + at, n, k, guess));
      group.join(chunks.back());
    }
    const format::DrawnCoder coder(values, group);
    std::vector<EntryLaw> laws;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double scale = coder.scale(chunks[i / chunk]), v = std::abs(double{x[i]});
      if (v < scale) {
        laws.push_back({v * (scale - v), scale, scale});
        continue;
      }
      double below = scale, above = scale;
      for (unsigned l = 0; l < 8 && values == format::ChunkValues::four; ++l) {
        above = coder.level(l);
        if (above > v) break;
        below = above;
      }
      above = std::max(above, v), below = values == format::ChunkValues::f32 ? v : below;
      laws.push_back({(above - v) * (v - below), above - below + scale, scale});
    }
    return laws;
  };
}

struct Case {
  const char* spec;
  Law law;
};
const Case kCases[] = {
    {"qsgd:bits=1", levels_of(0, 512)},
    {"qsgd:bits=2", levels_of(1, 512)},
    {"qsgd:bits=4", levels_of(7, 512)},
    {"qsgd:bits=8,bucket=100", levels_of(127, 100)},
    {"terngrad", levels_of(1, 1u << 30)},
    {"randomk:keep=0.1", kept_share(0.1)},
    {"randomk:keep=0.75", kept_share(0.75)},
    {"topk:chunk=512,k=60,values=4,select=drawn", drawn_of(format::ChunkValues::four, 512, 60)},
    {"topk:chunk=512,k=250,values=4,select=drawn", drawn_of(format::ChunkValues::four, 512, 250)},
    {"topk:chunk=64,k=20,values=f32,select=drawn", drawn_of(format::ChunkValues::f32, 64, 20)},
    {"minmax:bits=4,bucket=128", between_ends(15, 128)},
    {"minmax:bits=8", between_ends(255, 512)},
    {"randomk:keep=0.25,block=64", kept_share(0.25)}};

/// Changes a decoded entry to what a mistake in the codec would have made of it.
using Mutation = std::function<double(double x, double y, const EntryLaw& law)>;

/// Entries whose errors, summed over the keys of steps 0 to messages - 1, are beyond what an
/// unbiased codec allows. `frozen`: every message of the same step.
std::size_t beyond_reach(const Case& c, std::size_t n, std::uint32_t messages, bool frozen = false,
                         const Mutation& mutate = nullptr) {
  const auto method = codec::parse_spec(c.spec);
  const auto x = normal_entries(n, 31);
  const auto laws = c.law(x);
  std::vector<double> sums(n);
  for (std::uint32_t t = 0; t < messages; ++t) {
    const Key key{.seed = 2024, .step = frozen ? 0 : t};
    const auto y = decode_body(kind_of(method, n), encode_body(method, x, key).bytes, key).y;
    for (std::size_t i = 0; i < n; ++i)
      sums[i] += (mutate ? mutate(x[i], y[i], laws[i]) : y[i]) - x[i];
  }
  const BernsteinFamily family(kFamilySize, kFamilyError);
  const double bias = messages * method.traits().bias_bound;
  std::size_t beyond = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double reach = family.reach(messages * laws[i].variance, laws[i].largest);
    beyond += std::abs(sums[i]) > reach + bias * (std::abs(double{x[i]}) + laws[i].step);
  }
  return beyond;
}

TEST(CodecBias, EveryEntryOfManyMessages) {
  for (const Case& c : kCases) EXPECT_EQ(beyond_reach(c, 2000, 1000), 0u) << c.spec;
}

TEST(CodecBias, AMillionEntries) {
  for (const Case& c : {kCases[0], kCases[2], kCases[4], kCases[5]})
    EXPECT_EQ(beyond_reach(c, 900'000, 3), 0u) << c.spec;
}

TEST(CodecBias, PlantedMistakesAreCaught) {
  const Mutation inverted = [](double x, double y, const EntryLaw& law) {
    const double low = std::floor(std::abs(x) / law.step) * law.step;
    return std::copysign(2 * low + law.step - std::abs(y), x);  // the other neighbour
  };
  EXPECT_GT(beyond_reach(kCases[2], 2000, 1000, false, inverted), 1000u);
  const Mutation one_level_off = [](double, double y, const EntryLaw&) { return y * 7 / 8; };
  EXPECT_GT(beyond_reach(kCases[2], 2000, 1000, false, one_level_off), 1000u);
  const Mutation unscaled = [](double, double y, const EntryLaw&) { return y / 10; };
  EXPECT_GT(beyond_reach(kCases[5], 2000, 4000, false, unscaled), 1000u);
  const Mutation own_value = [](double x, double y, const EntryLaw&) { return y == 0 ? 0 : x; };
  EXPECT_GT(beyond_reach(kCases[7], 2000, 4000, false, own_value), 1000u);
  EXPECT_GT(beyond_reach(kCases[2], 2000, 1000, true), 1000u);  // one key for every message
}

}  // namespace
}  // namespace atomo::test
