// SPDX-License-Identifier: Apache-2.0
/// What every method without a price must do, whatever it computes.

#include <hwy/highway.h>

#include <bit>
#include <cctype>
#include <limits>
#include <tuple>

#include "codec/body_decoder.hpp"
#include "format/kind.hpp"
#include "support/method_support.hpp"
#include "support/sizes.hpp"

namespace atomo::test {

using namespace model;
namespace {

class MethodTest : public testing::TestWithParam<const char*> {
 protected:
  codec::Stages method_ = codec::parse_spec(GetParam());
  [[nodiscard]] bool scales_up() const { return std::string(GetParam()).starts_with("randomk"); }
};

constexpr std::size_t kSizes[] = {1,   2,   5,   31,  32,  33,   127,  128,  129,  511,
                                  512, 513, 639, 640, 641, 1009, 4096, 4099, 70001};

TEST_P(MethodTest, EverySizeComesBackFinite) {
  for (const std::size_t n : kSizes) {
    const auto x = normal_entries(n, n);
    const Body body = encode_body(method_, x, {.seed = n});
    ASSERT_EQ(body.status, Status::ok) << n;
    if (method_.traits().fixed_size) {
      EXPECT_EQ(body.bytes.size(),
                method_.body->max_body_bytes(Shape{static_cast<std::int64_t>(n)}));
    }
    const Values values = decode_body(kind_of(method_, n), body.bytes, {.seed = n});
    ASSERT_EQ(values.status, Status::ok) << n;
    EXPECT_TRUE(std::all_of(values.y.begin(), values.y.end(), [](float v) {
      return std::isfinite(v);
    })) << n;
  }
}

TEST_P(MethodTest, KindIsValidAndDescribed) {
  for (const std::size_t n : kSizes) {
    const format::Kind kind = kind_of(method_, n);
    const codec::BodyDecoder& decoder = *codec::find_decoder(kind.method);
    EXPECT_TRUE(format::valid_kind(kind));
    EXPECT_FALSE(decoder.describe(kind).empty());
    EXPECT_EQ(decoder.max_body_bytes(kind), method_.body->max_body_bytes(kind.shape));
  }
}

TEST_P(MethodTest, AlignmentDoesNotMatter) {
  for (const std::size_t n : {33u, 1009u, 4099u}) {
    const auto x = normal_entries(n, n);
    const Body straight = encode_body(method_, x), moved = encode_body(method_, x, {}, nullptr, 3);
    EXPECT_EQ(straight.bytes, moved.bytes);
    const auto kind = kind_of(method_, n);
    EXPECT_EQ(decode_body(kind, straight.bytes).y,
              decode_body(kind, straight.bytes, {}, nullptr, 3).y);
  }
}

TEST_P(MethodTest, ExecutorsDoNotMatter) {
  ThreadPool pool(3);
  BackwardExecutor backward;
  const std::size_t n = 300'007;
  const auto x = normal_entries(n, 5);
  const auto kind = kind_of(method_, n);
  const Body alone = encode_body(method_, x, {.seed = 9});
  const Values values = decode_body(kind, alone.bytes, {.seed = 9});
  const std::vector<float> onto = normal_entries(n, 6);
  const Values sum = decode_body(kind, alone.bytes, {.seed = 9}, nullptr, 0, &onto, 0.3f);
  for (Executor* executor : {static_cast<Executor*>(&pool), static_cast<Executor*>(&backward)}) {
    EXPECT_EQ(encode_body(method_, x, {.seed = 9}, executor).bytes, alone.bytes);
    EXPECT_EQ(decode_body(kind, alone.bytes, {.seed = 9}, executor).y, values.y);
    EXPECT_EQ(decode_body(kind, alone.bytes, {.seed = 9}, executor, 0, &onto, 0.3f).y, sum.y);
  }
}

TEST_P(MethodTest, InstructionSetsDoNotMatter) {
  const std::size_t n = 20'011;
  const auto x = normal_entries(n, 21), onto = normal_entries(n, 22);
  const auto kind = kind_of(method_, n);
  const auto results = [&] {
    const Body body = encode_body(method_, x, {.seed = 3});
    return std::tuple{body.bytes, decode_body(kind, body.bytes, {.seed = 3}).y,
                      decode_body(kind, body.bytes, {.seed = 3}, nullptr, 0, &onto, 0.3f).y};
  };
  const auto chosen = results();
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    EXPECT_EQ(results(), chosen) << hwy::TargetName(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

TEST_P(MethodTest, DecodeAddIsTwoRoundings) {
  for (const std::size_t n : kSizes) {
    const auto x = normal_entries(n, n), onto = normal_entries(n, n + 1);
    const auto kind = kind_of(method_, n);
    const Body body = encode_body(method_, x);
    const Values values = decode_body(kind, body.bytes);
    const Values sum = decode_body(kind, body.bytes, {}, nullptr, 0, &onto, -0.7f);
    for (std::size_t i = 0; i < n; ++i) {
      const float product = -0.7f * values.y[i];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(sum.y[i]),
                std::bit_cast<std::uint32_t>(onto[i] + product))
          << n << " " << i;
    }
  }
}

TEST_P(MethodTest, ZerosDecodeToZeros) {
  const float zero = std::string(GetParam()) == "sign" ? 1.0f : 0.0f;  // the sign of zero is +
  for (const std::size_t n : kSizes) {
    const Values values =
        decode_body(kind_of(method_, n), encode_body(method_, std::vector<float>(n)).bytes);
    ASSERT_EQ(values.status, Status::ok);
    for (const float v : values.y)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(v), std::bit_cast<std::uint32_t>(zero)) << n;
  }
}

TEST_P(MethodTest, EveryScaleStaysInRange) {
  for (const float scale : {0x1p-149f, 0x1p-140f, 1e-38f, 1e-23f, 1e20f, 5e37f}) {
    for (const std::size_t n : {1u, 33u, 700u}) {
      const auto x = normal_entries(n, 3, scale);
      const Body body = encode_body(method_, x);
      ASSERT_EQ(body.status, Status::ok);
      const Values values = decode_body(kind_of(method_, n), body.bytes);
      if (scales_up() && scale == 5e37f)
        continue;  // n/k times an entry may not be an f32: a test of its own
      ASSERT_EQ(values.status, Status::ok) << scale;
      for (const float v : values.y) ASSERT_TRUE(std::isfinite(v)) << scale;
    }
  }
}

TEST_P(MethodTest, LargestEntriesStayFiniteUnlessScaled) {
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> x(700, largest);
  x[5] = -largest;
  x[6] = 0x1p-149f;
  x[7] = 0;
  const Values values = decode_body(kind_of(method_, x.size()), encode_body(method_, x).bytes);
  ASSERT_EQ(values.status, scales_up() ? Status::overflow : Status::ok);
  for (const float v : values.y) ASSERT_TRUE(scales_up() ? !std::isnan(v) : std::isfinite(v));
}

TEST_P(MethodTest, EveryTruncationIsRefused) {
  for (const std::size_t n : {1u, 7u, 41u, 130u}) {
    const auto kind = kind_of(method_, n);
    const Body body = encode_body(method_, normal_entries(n, n));
    for (std::size_t length = 0; length < body.bytes.size(); ++length) {
      const std::vector<std::byte> cut(body.bytes.begin(),
                                       body.bytes.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_TRUE(failed(decode_body(kind, cut).status)) << n << " " << length;
    }
    auto longer = body.bytes;
    longer.push_back(std::byte{0});
    EXPECT_TRUE(failed(decode_body(kind, longer).status));
  }
}

TEST_P(MethodTest, EveryFlippedBitGivesAStatusOrFiniteValues) {
  for (const std::size_t n : {1u, 7u, 41u, 130u, 643u}) {
    const auto kind = kind_of(method_, n);
    auto bytes = encode_body(method_, normal_entries(n, n)).bytes;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += test::sweep_step(5)) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      const Values values = decode_body(kind, bytes);
      if (values.status == Status::ok) {
        ASSERT_TRUE(std::all_of(values.y.begin(), values.y.end(),
                                [](float v) { return std::isfinite(v); }));
      } else {
        ASSERT_TRUE(failed(values.status) || values.status == Status::overflow);
      }
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST_P(MethodTest, RandomBytesGiveAStatus) {
  std::mt19937_64 generator(17);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t n = 1 + generator() % 700;
    const auto kind = kind_of(method_, n);
    std::vector<std::byte> bytes(method_.body->max_body_bytes(kind.shape));
    if (trial % 2 == 1) bytes.resize(generator() % (bytes.size() + 9));
    for (auto& b : bytes)
      b = static_cast<std::byte>(trial % 4 < 2 ? generator() : generator() & generator() & 0x3F);
    (void)decode_body(kind, bytes).status;
  }
}

TEST_P(MethodTest, SmallBuffersAreRefused) {
  const auto x = normal_entries(1000, 1);
  const Shape shape{1000};
  std::vector<std::byte> scratch(method_.body->scratch_bytes(shape)),
      out(method_.body->max_body_bytes(shape));
  codec::LayerInput in;
  in.x = x.data();
  in.n = x.size();
  in.shape = &shape;
  codec::BodyResult result;
  EXPECT_EQ(
      method_.body->encode({in, 0, nullptr, scratch}, Bytes(out).first(out.size() - 1), result),
      Status::buffer_too_small);
  if (!scratch.empty()) {
    EXPECT_EQ(method_.body->encode({in, 0, nullptr, Bytes(scratch).first(scratch.size() / 2)}, out,
                                   result),
              Status::workspace_too_small);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MethodTest,
    testing::Values("sign", "sign:scale=mean", "qsgd:bits=1", "qsgd:bits=1,norm=l2,bucket=64",
                    "qsgd:bits=2", "qsgd:bits=3,bucket=100", "qsgd:bits=4", "qsgd:bits=5,bucket=1",
                    "qsgd:bits=6,bucket=7,norm=l2", "qsgd:bits=7,bucket=131072",
                    "qsgd:bits=8,bucket=64,norm=l2", "terngrad", "terngrad:clip=2.5",
                    "topk:keep=0.01", "topk:keep=0.5", "topk:keep=3", "topk:keep=1.0",
                    "randomk:keep=0.01", "randomk:keep=0.7", "randomk:keep=3"),
    [](const auto& parameter) {
      std::string name = parameter.param;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

}  // namespace
}  // namespace atomo::test
