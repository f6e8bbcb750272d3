// SPDX-License-Identifier: Apache-2.0
/// Every instruction set that this processor has writes the same messages and decodes them to the
/// same values.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <bit>
#include <cctype>
#include <limits>

#include "atomo/catalogue.hpp"
#include "atomo/container.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

/// What a set makes of one tensor.
struct Outcome {
  std::vector<std::byte> message;
  std::vector<float> values, added;
  std::vector<std::uint16_t> f16, bf16;
  bool operator==(const Outcome&) const = default;
};

std::vector<std::uint16_t> decoded_half(const Codec& codec, const std::vector<std::byte>& message,
                                        const Shape& shape, DType dtype) {
  std::vector<std::uint16_t> half(shape.elements());
  std::vector<std::byte> workspace(test::workspace_bytes(codec, shape, dtype));
  EXPECT_FALSE(
      failed(codec.decode(message, {half.data(), dtype, shape}, {.workspace = workspace})));
  return half;
}

Outcome outcome(const std::string& spec, const std::vector<float>& x, const Shape& shape) {
  const Codec codec = Codec::parse(spec);
  Outcome made;
  made.message = test::encode(codec, x, shape, {.seed = 11, .step = 4}).bytes;
  made.values = test::decode(codec, made.message, shape).values;
  made.added = x;
  std::vector<std::byte> workspace(test::workspace_bytes(codec, shape, DType::f32));
  EXPECT_FALSE(failed(codec.decode_add(made.message, -0.3f, {made.added.data(), DType::f32, shape},
                                       {.workspace = workspace})));
  made.f16 = decoded_half(codec, made.message, shape, DType::f16);
  made.bf16 = decoded_half(codec, made.message, shape, DType::bf16);
  return made;
}

/// Runs under every set and at last under the one that is chosen by itself.
template <typename Check>
void with_each_set(const Check& check) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    SCOPED_TRACE(hwy::TargetName(target));
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

class InstructionSets : public testing::TestWithParam<std::string> {};

TEST_P(InstructionSets, GiveTheSameMessages) {
  for (const Shape& shape : {Shape{1}, Shape{97}, Shape{67, 131}}) {
    const auto x = test::heavy_tailed(shape.elements(), 3, 40);
    const Outcome chosen = outcome(GetParam(), x, shape);
    with_each_set([&] { EXPECT_TRUE(outcome(GetParam(), x, shape) == chosen) << shape[0]; });
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, InstructionSets, testing::ValuesIn(test::all_specs()),
                         [](const auto& spec) {
                           std::string name;
                           for (const char c : spec.param)
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name + "_" + std::to_string(spec.index);
                         });

/// Halves at every exponent: subnormal ones, those that tie, and those beyond the largest.
TEST(InstructionSetsOfHalves, RoundAlikeAtEveryExponent) {
  std::vector<float> x;
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (std::uint32_t i = 0; i < 512; ++i) {
      const std::uint32_t mantissa = i % 4 == 0 ? i << 14 : (i * 0x9E3779B9u) >> 9;
      x.push_back(std::bit_cast<float>((i & 1) << 31 | exponent << 23 | (mantissa & 0x7FFFFFu)));
    }
  }
  const Shape shape{static_cast<std::int64_t>(x.size())};
  for (const char* spec : {"identity", "identity:dtype=f16", "identity:dtype=bf16"}) {
    const Outcome chosen = outcome(spec, x, shape);
    with_each_set([&] { EXPECT_TRUE(outcome(spec, x, shape) == chosen) << spec; });
  }
}

/// Coordinates whose levels are none, small, near the largest, and at the top of f32.
TEST(InstructionSetsOfCoordinates, RoundAlikeAtEveryStep) {
  const Shape shape{9001};
  const auto x = test::heavy_tailed(shape.elements(), 8, 40);
  for (const char* step : {"1e-6", "0.001", "0.3", "1e10", "3e38"}) {
    for (const float scale : {1.0f, 0x1p-120f, 0x1p90f}) {
      auto scaled = x;
      for (float& v : scaled) v *= scale;
      const std::string spec = std::string("atomo:atoms=coordinate,delta=") + step;
      const Outcome chosen = outcome(spec, scaled, shape);
      with_each_set([&] { EXPECT_TRUE(outcome(spec, scaled, shape) == chosen) << spec; });
    }
  }
}

/// Paths of the catalogue's trellis, whose search runs in the lanes of the set.
TEST(InstructionSetsOfTrellises, FindTheSamePaths) {
  register_catalogue();
  const Shape shape{5003};
  const auto x = test::heavy_tailed(shape.elements(), 8, 40);
  for (const char* spec :
       {"trellis:bits=0.21", "trellis:bits=1,states=256", "trellis:bits=4,states=256"}) {
    const Outcome chosen = outcome(spec, x, shape);
    with_each_set([&] { EXPECT_TRUE(outcome(spec, x, shape) == chosen) << spec; });
  }
}

/// An entry that is not finite is found wherever it stands, in small tensors and in those that are
/// looked at in several parts.
TEST_P(InstructionSets, FindWhatIsNotFinite) {
  constexpr float kBad[] = {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  for (const Shape& shape : {Shape{31, 70}, Shape{9, 8000}}) {
    const std::size_t last = shape.elements() - 1;
    for (const std::size_t at : {std::size_t{0}, last / 2, last}) {
      auto x = test::heavy_tailed(shape.elements(), 3, 40);
      x[at] = kBad[at % 3];
      with_each_set([&] {
        const auto made = test::encode(Codec::parse(GetParam()), x, shape, {.seed = 1});
        EXPECT_TRUE(has(made.status, Status::non_finite)) << at;
        ContainerInfo info;
        ASSERT_EQ(inspect(made.bytes, info, true), Status::ok);
        EXPECT_TRUE(info.layers[0].non_finite);
      });
    }
  }
}

}  // namespace
}  // namespace atomo
