// SPDX-License-Identifier: Apache-2.0
/// How large what memories keep becomes over many steps, and where descent with them ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/memory_models.hpp"

namespace atomo {
namespace {

using test::MemoryModel;

double squares_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += double{v} * v;
  return sum;
}

struct Kept {
  double largest = 0;  // |e|^2 in all steps
  double worst = 0;    // |x - c|^2 / |x|^2, where x = g + e: what the worst message left
};

/// Of gradients of norm 1.
Kept kept_by(const std::string& spec, const LayerSpec& layer, std::uint64_t steps = 10000) {
  const std::size_t entries = layer.shape.elements();
  MemoryModel model({layer}, spec);
  Kept kept;
  std::vector<float> x(entries);
  for (std::uint32_t step = 0; step < test::repeats(steps); ++step) {
    std::vector<float> g = test::heavy_tailed(entries, step, 10);
    const double norm = std::sqrt(squares_of(g) + 1e-30);
    for (float& v : g) v = static_cast<float>(v / norm);
    for (std::size_t k = 0; k < entries; ++k) x[k] += g[k];
    const double there_was = squares_of(x);
    const auto c = model.decode(model.encode({g}, step))[0];
    for (std::size_t k = 0; k < entries; ++k) x[k] -= c[k];
    if (there_was > 0) kept.worst = std::max(kept.worst, squares_of(x) / there_was);
    x = model.model.memory(0);
    kept.largest = std::max(kept.largest, squares_of(x));
  }
  return kept;
}

/// |e|^2 <= 4 (1 - d) / d^2 G^2 for a contraction d and gradients of norm G (arXiv 1901.09847, lemma 3); here G is 1.
double lemma_3(double contraction) { return 4 * (1 - contraction) / (contraction * contraction); }

/// Lemma 3 with the contractions that topk and sign promise, keep and 1/n. Unbiased rounding of what is left to
/// within r^2 of its square makes of 1 - d, on average, (1 - d) (1 + r^2): at most a quarter of a step squared an
/// entry, of 1/128 of a value in bf16 and of 1/127 of the largest in int8. Of `momentum`, |e| <= s (b |e| + G) with
/// s^2 = 1 - d gives |e| <= s / (1 - b s) G. The u of `dgc` stays below G / (1 - m), masked or not, and is to its v
/// what the gradient is to the e of `ef`.
TEST(Memories, StayWithinTheContractionsBound) {
  constexpr std::size_t kEntries = 40;
  constexpr double kSign = 1.0 / kEntries, kBf16 = 0.25 / (128 * 128),
                   kInt8 = 0.25 * kEntries / (127 * 127);
  const double left = std::sqrt(0.9), forgets = left / (1 - 0.9 * left);
  struct Case {
    const char* spec;
    double bound;
  };
  for (const auto& [spec, bound] :
       {Case{"ef+topk:keep=4", lemma_3(0.1)},
        {"ef+sign:scale=mean", lemma_3(kSign)},
        {"ef:memory=bf16+topk:keep=4", lemma_3(1 - 0.9 * (1 + kBf16))},
        {"ef:memory=int8+topk:keep=4", lemma_3(1 - 0.9 * (1 + kInt8))},
        {"ef:memory=int8+sign:scale=mean", lemma_3(1 - (1 - kSign) * (1 + kInt8))},
        {"momentum:beta=0.9+topk:keep=4", forgets * forgets},
        {"dgc:momentum=0.5+topk:keep=4", lemma_3(0.1) / (0.5 * 0.5)}}) {
    const Kept kept = kept_by(spec, {"x", {kEntries}});
    EXPECT_LE(kept.largest, bound) << spec;
    EXPECT_GT(kept.largest, 1) << spec << ": something is kept";
  }
}

/// Nearest content promises no contraction (docs/specs.md, "Without draws"). Of these gradients each message
/// leaves less than .9 of x, which is measured here; lemma 3 then holds with the worst of them.
TEST(Memories, OfNearestContentStayWithinTheBoundOfTheWorstMessage) {
  struct Case {
    const char* spec;
    LayerSpec layer;
    std::uint64_t steps;
  };
  for (const auto& [spec, layer, steps] :
       {Case{"ef+atomo:bits=1,content=nearest,atoms=rows", {"x", {16, 16}}, 10000},
        {"ef+atomo:bits=1,content=nearest", {"x", {2048}}, 1000}}) {
    EXPECT_FALSE(Codec::parse(spec).without_memory().traits().contraction) << spec;
    const Kept kept = kept_by(spec, layer, steps);
    EXPECT_LT(kept.worst, 0.9) << spec;
    EXPECT_LE(kept.largest, lemma_3(1 - kept.worst)) << spec;
    EXPECT_GT(kept.largest, 1) << spec << ": something is kept";
  }
}

/// Where all entries of the gradient are g in every step, topk sends those that have waited longest, each every
/// n/keep steps. One that was sent k steps ago has k g in `ef`, g (1 - b^k) / (1 - b) in `momentum`, and in `dgc` the
/// sum of u = g (1 - m^j) / (1 - m) over j = 1..k.
TEST(Memories, OfEqualEntriesAreWhatTheirTurnsLeave) {
  constexpr std::size_t kEntries = 40, kKeep = 4, kTurns = kEntries / kKeep;
  constexpr float kGradient = 0.25f;
  struct Case {
    const char* memory;
    double beta, momentum;
  };
  for (const auto& [memory, beta, momentum] : {Case{"ef", 1, 0},
                                               {"momentum:beta=0.9", 0.9, 0},
                                               {"momentum:beta=0.5", 0.5, 0},
                                               {"dgc:momentum=0.5", 1, 0.5},
                                               {"dgc:momentum=0.9", 1, 0.9}}) {
    MemoryModel model({{"x", {kEntries}}}, std::string(memory) + "+topk:keep=4");
    for (std::uint32_t step = 0; step < 3 * kTurns; ++step)
      (void)model.encode({std::vector<float>(kEntries, kGradient)}, step);
    std::vector<float> kept = model.model.memory(0);
    std::ranges::sort(kept);
    double u = 0, waits = 0;
    for (std::size_t k = 0; k < kEntries; ++k) {
      if (k > 0 && k % kKeep == 0) {
        u = momentum * u + kGradient;
        waits = beta * waits + u;
      }
      ASSERT_NEAR(kept[k], waits, 1e-5 * waits) << memory << ", " << k;
    }
  }
}

/// The distance from the common minimum of two workers whose gradients do not vanish there, over the root of
/// `columns`. The rate falls as 1/step. Of 20 rows the first two are far larger than the others, of opposite signs.
double error_of(const std::string& spec, std::size_t columns = 1, std::uint32_t steps = 3000) {
  const std::size_t entries = 20 * columns;
  const std::vector<LayerSpec> layers{{"x", {static_cast<std::int64_t>(entries)}}};
  std::vector<MemoryModel> workers;
  std::vector<std::vector<float>> targets;
  for (std::uint32_t w = 0; w < 2; ++w) {
    workers.emplace_back(layers, spec);
    targets.push_back(test::heavy_tailed(entries, w + 1, 5 * columns));
    for (float& t : targets.back()) t *= 100;
    for (std::size_t k = 0; k < 2 * columns; ++k) targets.back()[k] += w == 0 ? 20.0f : -20.0f;
  }
  std::vector<float> x(entries);
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::vector<float> mean(entries);
    for (std::size_t w = 0; w < 2; ++w) {
      std::vector<float> g(entries);
      for (std::size_t k = 0; k < entries; ++k) g[k] = x[k] - targets[w][k];
      const auto c = workers[w].decode(workers[w].encode({g}, step))[0];
      for (std::size_t k = 0; k < entries; ++k) mean[k] += 0.5f * c[k];
    }
    const float rate = 4.0f / (40.0f + static_cast<float>(step));
    for (std::size_t k = 0; k < entries; ++k) x[k] -= rate * mean[k];
  }
  for (std::size_t k = 0; k < entries; ++k) x[k] -= 0.5f * (targets[0][k] + targets[1][k]);
  return std::sqrt(squares_of(x) / static_cast<double>(columns));
}

/// Without a memory, what is left out is left out for good. Karimireddy et al. prove it of `ef`; that it holds
/// for `dgc` is measured here.
TEST(Memories, LetAQuadraticConverge) {
  const double without = error_of("topk:keep=2");
  for (const std::string memory : {"ef", "momentum:beta=0.999", "dgc:momentum=0.5"}) {
    const double with = error_of(memory + "+topk:keep=2");
    EXPECT_LT(with, 0.2) << memory;
    EXPECT_GT(without, 5 * with) << memory;
  }
  const double with = error_of("ef+sign:scale=mean");
  EXPECT_LT(with, 0.2);
  EXPECT_GT(error_of("sign:scale=mean"), 5 * with);
}

/// Behind a codec that promises no contraction it comes as near, which is measured; the codec alone stalls. A row is a
/// block, of 256 entries.
TEST(Memories, LetAQuadraticConvergeWithNearestContent) {
  const std::string codec = "atomo:bits=0.5,content=nearest";
  EXPECT_LT(error_of("ef+" + codec, 256, 600), 0.2);
  EXPECT_GT(error_of(codec, 256, 600), 2);
}

/// What `momentum` keeps of an entry stays below g / (1 - b): one whose g is below 1 - b times the 20 of the
/// entries that are always sent never arrives. So descent ends in a neighbourhood of that size an entry.
TEST(Memories, ThatForgetLetAQuadraticConvergeToANeighbourhood) {
  const double error = error_of("momentum:beta=0.9+topk:keep=2");
  EXPECT_GT(error, 1);
  EXPECT_LT(error, 0.1 * 20 * std::sqrt(18.0));
}

}  // namespace
}  // namespace atomo
