// SPDX-License-Identifier: Apache-2.0
#include "cpu/sign.hpp"

#include <limits>

#include "cpu/reduce.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

std::vector<std::byte> encoded(const SignConfig& config, const std::vector<float>& x) {
  std::vector<std::byte> body(cpu::max_encoded_bytes(config, x.size())),
      workspace(cpu::workspace_bytes(config, x.size()));
  std::size_t bytes = 0;
  EXPECT_EQ(cpu::encode(config, x.data(), x.size(), workspace, nullptr, body, bytes), Status::ok);
  EXPECT_EQ(bytes, body.size());
  return body;
}

TEST(Sign, BitsAreWhatTheFormatSays) {
  for (const std::size_t n : {1u, 7u, 8u, 63u, 64u, 65u, 1009u}) {
    auto x = normal_entries(n, n);
    x[n / 3] = -0.0f;
    if (n > 3) x[n - 1] = -0x1p-149f;
    const auto body = encoded({}, x);
    ASSERT_EQ(body.size(), (n + 7) / 8);
    std::vector<float> y(n);
    ASSERT_EQ(cpu::decode({}, body, y.data(), n, nullptr), Status::ok);
    for (std::size_t i = 0; i < n; ++i) {
      const bool bit = ((std::to_integer<unsigned>(body[i / 8]) >> (i % 8)) & 1) != 0;
      ASSERT_EQ(bit, x[i] < 0) << i;
      ASSERT_EQ(y[i], x[i] < 0 ? -1.0f : 1.0f) << i;
    }
  }
}

TEST(Sign, ScaleIsTheMeanMagnitude) {
  const SignConfig config{SignScale::mean};
  for (const std::size_t n : {1u, 31u, 33u, 1009u, 70001u, 200000u}) {
    for (const float scale : {0x1p-149f, 1e-23f, 1.0f, 1e20f, 5e37f}) {
      const auto x = normal_entries(n, n, scale);
      long double sum = 0;
      for (const float v : x) sum += std::abs(static_cast<long double>(v));
      const auto mean = static_cast<double>(sum / static_cast<long double>(n));
      std::vector<float> y(n);
      ASSERT_EQ(cpu::decode(config, encoded(config, x), y.data(), n, nullptr), Status::ok);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(std::abs(y[i]), mean, 0x1p-24 * mean + 0x1p-150) << n << " " << scale;
        if (y[i] != 0) {
          ASSERT_EQ(y[i] < 0, x[i] < 0);
        }
      }
    }
  }
}

TEST(Sign, ScaleOfTheLargestEntriesIsFinite) {
  const SignConfig config{SignScale::mean};
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> x(100'003, -largest);
  std::vector<float> y(x.size());
  ASSERT_EQ(cpu::decode(config, encoded(config, x), y.data(), y.size(), nullptr), Status::ok);
  EXPECT_EQ(y, x);
}

TEST(Sign, ScaledErrorIsWhatTheTraitsSay) {
  const auto method = codec::parse_spec("sign:scale=mean");
  const auto x = normal_entries(5000, 2);
  const auto y = decode_body(kind_of(method, x.size()), encode_body(method, x).bytes).y;
  double error = 0, energy = 0, sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
    energy += double{x[i]} * x[i];
    sum += std::abs(x[i]);
  }
  EXPECT_NEAR(error, energy - sum * sum / static_cast<double>(x.size()), 1e-4 * energy);
  EXPECT_LE(error, *method.traits().omega * energy);
}

/// The means of entries that are below 0 and of the others, in a bucket: [side].
struct Means {
  long double sum[2] = {};
  std::size_t count[2] = {};
  [[nodiscard]] double of(bool negative) const {
    const auto side = static_cast<std::size_t>(negative);
    return count[side] == 0 ? 0.0 : static_cast<double>(sum[side] / count[side]);
  }
};

/// What decodes, and that no other two values for these bits are nearer: the error is
/// |x|^2 - sum of count * mean^2.
TEST(Sign, MeansAreThoseOfTheEntriesOfASide) {
  for (const int log : {0, 7, 12}) {
    const SignConfig config{SignScale::means, log};
    for (const std::size_t n : {1u, 127u, 128u, 129u, 1009u, 70001u, 140000u}) {
      auto x = normal_entries(n, n, 3.0f);
      for (std::size_t i = 0; i < std::min<std::size_t>(n, 256); ++i) x[i] = std::abs(x[i]) + 1;
      x[n / 2] = -0.0f;
      const std::size_t bucket = log == 0 ? n : std::size_t{1} << log;
      std::vector<Means> means((n + bucket - 1) / bucket);
      for (std::size_t i = 0; i < n; ++i) {
        means[i / bucket].sum[x[i] < 0] += std::abs(static_cast<long double>(x[i]));
        ++means[i / bucket].count[x[i] < 0];
      }
      const auto body = encoded(config, x);
      ASSERT_EQ(body.size(), 8 * means.size() + (n + 7) / 8);
      std::vector<float> y(n), added(n, 1.0f);
      ASSERT_EQ(cpu::decode(config, body, y.data(), n, nullptr), Status::ok);
      LayerBody one;
      one.bytes = body;
      cpu::decode_add(config, {&one, 1}, 0.5f, added.data(), n, nullptr);
      double error = 0, left = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double mean = means[i / bucket].of(x[i] < 0);
        ASSERT_NEAR(y[i], x[i] < 0 ? -mean : mean, 0x1p-24 * mean) << n << " " << log << " " << i;
        ASSERT_EQ(added[i], 1.0f + 0.5f * y[i]);
        error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
        left += double{x[i]} * x[i] - mean * mean;
      }
      EXPECT_NEAR(error, left, 1e-6 * static_cast<double>(n));
    }
  }
}

TEST(Sign, BucketsGoWithMeansAlone) {
  EXPECT_EQ(codec::parse_spec("sign:bucket=layer,scale=means").to_string(), "sign:scale=means");
  EXPECT_EQ(codec::parse_spec("sign:bucket=512,scale=means").to_string(),
            "sign:scale=means,bucket=512");
  for (const char* const spec :
       {"sign:bucket=512", "sign:scale=mean,bucket=512", "sign:scale=means,bucket=100"})
    EXPECT_THROW((void)codec::parse_spec(spec), Error) << spec;
}

TEST(Sign, PaddingAndScaleAreChecked) {
  const SignConfig scaled{SignScale::mean};
  const std::vector<float> x = {1, -2, 3};
  std::vector<float> y(3);
  auto body = encoded({}, x);
  body.back() |= std::byte{8};
  EXPECT_EQ(cpu::decode({}, body, y.data(), 3, nullptr), Status::corrupt);
  for (const float bad : {-1.0f, -0.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    body = encoded(scaled, x);
    std::memcpy(body.data(), &bad, 4);
    EXPECT_EQ(cpu::decode(scaled, body, y.data(), 3, nullptr), Status::corrupt);
  }
}

TEST(Reduce, SumsDoNotDependOnTheSplit) {
  ThreadPool pool(2);
  for (const std::size_t n : {1u, 1023u, 1025u, 65536u, 65537u, 200'003u, 1'000'000u}) {
    const auto x = normal_entries(n, n);
    std::vector<double> scratch(2 * cpu::reduce_scratch(n));
    EXPECT_EQ(cpu::layer_sum_abs(x.data(), n, scratch, &pool), cpu::sum_abs(x.data(), n)) << n;
    EXPECT_EQ(cpu::layer_max_abs(x.data(), n, scratch, &pool), cpu::max_abs(x.data(), n)) << n;
    for (Executor* const executor :
         {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
      const auto both = cpu::layer_max_and_squares(x.data(), n, scratch, executor);
      EXPECT_EQ(both.squares, cpu::sum_squares(x.data(), n)) << n;
      EXPECT_EQ(both.max_abs, cpu::max_abs(x.data(), n)) << n;
    }
  }
}

TEST(Reduce, OrderIsTheStatedOne) {
  const std::size_t n = 5 * 1024 + 77;
  const auto x = normal_entries(n, 3);
  std::vector<double> sums;
  for (std::size_t at = 0; at < n; at += 1024) {
    double lanes[32] = {};
    for (std::size_t i = at; i < std::min(n, at + 1024); ++i) lanes[i % 32] += double{x[i]} * x[i];
    for (int half = 16; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    }
    sums.push_back(lanes[0]);
  }
  ASSERT_EQ(sums.size(), 6u);  // a tree over 0-3, then 4-5
  EXPECT_EQ(cpu::sum_squares(x.data(), n),
            ((sums[0] + sums[1]) + (sums[2] + sums[3])) + (sums[4] + sums[5]));
}

}  // namespace
}  // namespace atomo::test
