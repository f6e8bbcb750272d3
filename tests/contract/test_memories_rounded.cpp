// SPDX-License-Identifier: Apache-2.0
/// Memories in bf16 and int8: what is kept is what a message left, rounded to a level beside it, and is right
/// on average; saved states hold what rounding gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/memory_models.hpp"

namespace atomo {
namespace {

using test::gradients_of;
using test::MemoryModel;
using test::sum_of;
using Values = std::vector<std::vector<float>>;

/// The distance of the levels beside each value, or more.
std::vector<double> gaps_of(const std::string& type, const std::vector<float>& values) {
  std::vector<double> gaps;
  for (std::size_t i = 0; i < values.size(); ++i) {
    double largest = std::abs(double{values[i]});
    if (type.ends_with("int8")) {
      for (std::size_t k = i / 256 * 256; k < std::min(values.size(), i / 256 * 256 + 256); ++k)
        largest = std::max(largest, std::abs(double{values[k]}));
    }
    gaps.push_back(largest / (type.ends_with("int8") ? 127 : 128));
  }
  return gaps;
}

/// Each value is one of the two levels beside what was left.
void expect_rounded(const std::string& type, const std::vector<float>& kept,
                    const std::vector<float>& left) {
  ASSERT_EQ(kept.size(), left.size());
  const std::vector<double> gaps = gaps_of(type, left);
  std::size_t rounded = 0;
  for (std::size_t k = 0; k < kept.size(); ++k) {
    ASSERT_LE(std::abs(double{kept[k]} - left[k]), gaps[k] * (1 + 1e-5)) << k;
    rounded += kept[k] != left[k];
  }
  EXPECT_TRUE(kept.size() < 100 || rounded > kept.size() / 4) << rounded;
}

/// bf16: the value kept is one of the two nearest, and right on average over many steps.
TEST(Memories, InBf16AreRoundedAtRandom) {
  const std::vector<LayerSpec> layers{{"x", {2000}}};
  MemoryModel half(layers, "ef:memory=bf16+topk:keep=1"), wide(layers, "ef+topk:keep=1");
  const std::vector<float> g(2000, 1.0009765625f);  // an eighth of a bf16 step above 1
  const auto a = half.encode({g}, 0);
  EXPECT_EQ(a, wide.encode({g}, 0));
  EXPECT_EQ(half.model.memory_bytes() * 2, wide.model.memory_bytes());
  double sum = 0;
  for (const float v : half.model.memory(0)) {
    EXPECT_TRUE(v == 1.0f || v == 1.0078125f || v == 0.0f) << v;
    sum += v;
  }
  EXPECT_NEAR(sum / 1999, 1.0009765625, 5 * 0.0026 / std::sqrt(1999.0));
  EXPECT_GT(sum, 1999.0) << "some are rounded up";
}

/// What is kept is what the message left, each entry rounded to a level beside it; the message is that of the
/// codec behind, of the gradient and what was kept. Of both vectors of dgc.
TEST(Memories, InFewerBitsKeepWhatIsLeftUpToTheirRounding) {
  const auto layers = test::memory_layers();
  for (const std::string type : {"bf16", "int8"}) {
    for (const std::string codec : {"topk:keep=0.1", "sign:scale=mean"}) {
      SCOPED_TRACE(type + "+" + codec);
      MemoryModel with(layers, "ef:memory=" + type + "+" + codec), plain(layers, codec);
      for (std::uint32_t step = 0; step < 4; ++step) {
        const Values x = sum_of(gradients_of(layers, step), with.memories());
        const auto message = with.encode(gradients_of(layers, step), step);
        ASSERT_EQ(message, plain.encode(x, step));
        const Values c = plain.decode(message), memories = with.memories();
        for (std::size_t i = 0; i < layers.size(); ++i) {
          std::vector<float> left = x[i];
          for (std::size_t k = 0; k < left.size(); ++k) left[k] -= c[i][k];
          expect_rounded(type, memories[i], left);
        }
      }
    }
    MemoryModel dgc(layers, "dgc:memory=" + type + ",momentum=0.5+topk:keep=0.1"),
        wide(layers, "dgc:momentum=0.5+topk:keep=0.1");
    EXPECT_LE(dgc.model.memory_bytes() * 1.9, wide.model.memory_bytes());
    // Nothing was rounded before the first step.
    EXPECT_EQ(dgc.encode(gradients_of(layers, 0), 0), wide.encode(gradients_of(layers, 0), 0));
    const Values memories = dgc.memories(), left = wide.memories();
    for (std::size_t i = 0; i < layers.size(); ++i) expect_rounded(type, memories[i], left[i]);
  }
}

/// Over many steps' draws the mean of what is kept goes to what is left, of e, and of u and v, which draw apart.
/// By Hoeffding's inequality a mean of all entries and memories is beyond its bound with a chance of 1e-6.
TEST(Memories, InFewerBitsAreRightOnAverage) {
  constexpr std::size_t kEntries = 300;  // a block and a part of one
  const std::vector<LayerSpec> layers{{"x", {kEntries}}};
  const auto runs = static_cast<std::uint32_t>(test::repeats(2000));
  const double bound = std::sqrt(std::log(2.0 * 5 * kEntries / 1e-6) / 2 * runs);
  const std::vector<float> g = test::heavy_tailed(kEntries, 1, 10);
  for (const std::string memory :
       {"ef:memory=bf16", "ef:memory=int8", "momentum:memory=int8", "dgc:momentum=0.5,memory=bf16",
        "dgc:momentum=0.5,memory=int8"}) {
    const bool dgc = memory.starts_with("dgc");
    MemoryModel wide(layers, "ef+topk:keep=1"), model(layers, memory + "+topk:keep=1"),
        all(layers, memory + "+identity");
    (void)wide.encode({g}, 0);
    const std::vector<float> left = wide.model.memory(0);
    const std::vector<double> gaps = gaps_of(memory, left);
    std::vector<double> error(kEntries);
    double squares = 0, squares_of_sums = 0;
    for (std::uint32_t run = 0; run < runs; ++run) {
      model.model.reset_memory();
      (void)model.encode({g}, run);
      const std::vector<float> v = model.model.memory(0);
      // A codec that sends all shows u in what it adds to v.
      all.model.load(model.model.save(Saved::memories));
      const auto sent = all.decode(all.encode({std::vector<float>(kEntries)}, run))[0];
      for (std::size_t k = 0; k < kEntries; ++k) {
        const double of_v = double{v[k]} - left[k];
        const double of_sum = double{sent[k]} - (dgc                ? 1.5
                                                 : memory[0] == 'm' ? 0.999
                                                                    : 1) *
                                                    left[k];
        error[k] += dgc ? of_sum : of_v;
        squares += of_v * of_v;
        squares_of_sums += of_sum * of_sum;
      }
    }
    for (std::size_t k = 0; k < kEntries; ++k) {
      const double range = (dgc ? 1.5 : 1) * gaps[k];
      EXPECT_LE(std::abs(error[k]), bound * range + 1e-6 * runs * std::abs(left[k])) << memory << k;
    }
    EXPECT_GT(squares, 0);
    if (dgc) {  // 1 + 1/4 of independent errors, 9/4 of equal ones
      EXPECT_NEAR(squares_of_sums / squares, 1.25, 0.1) << memory;
    }
  }
}

/// A scale that is negative or no number, a code that rounding never gives, values of another type.
TEST(Memories, InInt8AreReadAsRoundingGivesThem) {
  const std::vector<LayerSpec> layers{{"x", {300}}};
  MemoryModel model(layers, "ef:memory=int8+topk:keep=3");
  (void)model.encode(gradients_of(layers, 0), 0);
  const Values before = model.memories();
  const auto state = model.model.save(Saved::memories);
  const std::size_t codes = state.size() - 304, scales = codes - 8;  // 300 codes in whole words
  const auto loads = [&](std::size_t at, std::byte value) {
    auto other = state;
    other[at] = value;
    try {
      model.model.load(other);
    } catch (const Error&) {
      EXPECT_EQ(model.memories(), before);
      return false;
    }
    model.model.load(state);
    return true;
  };
  EXPECT_FALSE(loads(scales + 3, std::byte{0xBF})) << "a negative scale";
  EXPECT_FALSE(loads(scales + 7, std::byte{0x7F}) && loads(scales + 6, std::byte{0x80}));
  EXPECT_FALSE(loads(codes + 299, std::byte{0x80}));
  EXPECT_TRUE(loads(codes + 299, std::byte{0x81}));
  MemoryModel other(layers, "ef:memory=bf16+topk:keep=3");
  other.model.load(state);
  EXPECT_EQ(other.model.memory(0), std::vector<float>(300)) << "another type begins anew";
}

}  // namespace
}  // namespace atomo
