// SPDX-License-Identifier: Apache-2.0
/// EF21 in front of codecs (arXiv 2106.05203): messages are differences, which receivers add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/memory_models.hpp"

namespace atomo {
namespace {

using test::gradients_of;
using test::MemoryModel;
using Values = std::vector<std::vector<float>>;

/// x = g - s and s <- s + (x - left), left = x - c: to the bit, and so to an ulp of x the sum of what was decoded.
TEST(Memories, Ef21SendsDifferencesToWhatWasSent) {
  const auto layers = test::memory_layers();
  for (const std::string spec : {"topk:keep=0.1", "qsgd:bits=2", "atomo:bits=1,content=nearest",
                                 "topk:keep=0.1+blosc", "sign:scale=mean"}) {
    SCOPED_TRACE(spec);
    MemoryModel with(layers, "ef21+" + spec), plain(layers, spec);
    EXPECT_TRUE(with.model.codec(0).traits().differences);
    EXPECT_FALSE(plain.model.codec(0).traits().differences);
    Values sums = with.memories();
    for (std::uint32_t step = 0; step < 5; ++step) {
      const Values s = with.memories(), g = gradients_of(layers, step);
      Values x = g;
      for (std::size_t i = 0; i < x.size(); ++i) {
        for (std::size_t k = 0; k < x[i].size(); ++k) x[i][k] = g[i][k] - s[i][k];
      }
      const auto message = with.encode(g, step);
      ASSERT_EQ(message, plain.encode(x, step)) << step;
      const Values c = plain.decode(message);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::vector<float> sent = with.model.memory(i);
        for (std::size_t k = 0; k < x[i].size(); ++k) {
          ASSERT_EQ(sent[k], s[i][k] + (x[i][k] - (x[i][k] - c[i][k]))) << step;
          sums[i][k] += c[i][k];
          const double ulp = 0x1p-22 * (step + 1) * (std::abs(x[i][k]) + std::abs(sums[i][k]) + 40);
          ASSERT_NEAR(sent[k], sums[i][k], ulp) << step;
        }
      }
    }
  }
}

/// The distance from the common minimum of two workers whose gradients do not vanish there, over the root of
/// `columns`, of which there are 20 rows, at a constant rate. `adds_up`: messages are differences.
double error_of(const std::string& spec, bool adds_up, std::size_t columns = 1,
                std::uint32_t steps = 2000) {
  const std::size_t entries = 20 * columns;
  const std::vector<LayerSpec> layers{{"x", {static_cast<std::int64_t>(entries)}}};
  const auto minimum = [&](std::size_t k) {
    return static_cast<float>(k) / static_cast<float>(columns);
  };
  std::vector<MemoryModel> workers;
  for (int w = 0; w < 2; ++w) workers.emplace_back(layers, spec);
  std::vector<float> x(entries), mean(entries);
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (!adds_up) std::ranges::fill(mean, 0.0f);
    for (std::size_t w = 0; w < 2; ++w) {
      std::vector<float> g(entries);
      for (std::size_t k = 0; k < entries; ++k)
        g[k] = x[k] - (w == 0 ? 20.0f : -20.0f) - minimum(k);
      const auto c = workers[w].decode(workers[w].encode({g}, step))[0];
      for (std::size_t k = 0; k < entries; ++k) mean[k] += 0.5f * c[k];
    }
    for (std::size_t k = 0; k < entries; ++k) x[k] -= 0.04f * mean[k];
  }
  double error = 0;
  for (std::size_t k = 0; k < entries; ++k) error += std::pow(double{x[k]} - minimum(k), 2.0);
  return std::sqrt(error / static_cast<double>(columns));
}

/// What is new of a gradient vanishes (arXiv 2106.05203, theorem 2), while an unbiased codec's noise, and what
/// `ef` holds back, do not.
TEST(Memories, Ef21ConvergesAtAConstantRate) {
  EXPECT_LT(error_of("ef21+topk:keep=2", true), 1e-3);
  EXPECT_LT(error_of("ef21:scale=contract+qsgd:bits=2", true), 1e-3);
  EXPECT_GT(error_of("ef+topk:keep=2", false), 0.1);
  EXPECT_GT(error_of("qsgd:bits=2", false), 0.1);
  EXPECT_GT(error_of("ef21+topk:keep=2", false), 1) << "differences are no gradients";
}

/// Nearest content promises no contraction, which the theorem needs: that it converges here is measured. A row
/// is a block, of 256 entries.
TEST(Memories, Ef21ConvergesWithNearestContent) {
  const std::string codec = "atomo:bits=0.5,content=nearest";
  EXPECT_LT(error_of("ef21+" + codec, true, 256, 400), 1e-3);
  EXPECT_GT(error_of("ef+" + codec, false, 256, 400), 0.1);
}

}  // namespace
}  // namespace atomo
