// SPDX-License-Identifier: Apache-2.0
/// QSGD's and TernGrad's loops against the arithmetic of math/stochastic_level.hpp, one entry after the other,
/// with draws addressed as their format says; and their bodies against the layout, bit by bit.

#include "cpu/qsgd.hpp"

#include <bit>
#include <limits>

#include "core/philox.hpp"
#include "cpu/reduce.hpp"
#include "cpu/ternary.hpp"
#include "math/stochastic_level.hpp"
#include "support/method_support.hpp"

namespace atomo::test {

using namespace model;
namespace {

/// The bits of one entry, straight from the generator.
struct FormatDraw {
  Philox draws, low_draws;
  std::uint64_t i;
  mutable int asked = 0;  ///< for further bits
  [[nodiscard]] std::uint32_t high() const {
    return (draws(i / 8)[i / 2 % 4] >> (16 * (i % 2))) & 0xFFFF;
  }
  [[nodiscard]] std::uint32_t low() const {
    ++asked;
    return (low_draws(i / 8)[i / 2 % 4] >> (16 * (i % 2))) & 0xFFFF;
  }
};

float norm_of(const QsgdConfig& config, const float* x, std::size_t n) {
  if (config.norm == QsgdNorm::l2) return math::norm_from_squares(cpu::sum_squares(x, n));
  float norm = 0;
  for (std::size_t i = 0; i < n; ++i) norm = std::max(norm, std::abs(x[i]));
  return norm;
}

std::uint32_t code_of(float x, float norm, int bits, const FormatDraw& draw) {
  const int levels = bits == 1 ? 1 : (1 << (bits - 1)) - 1;
  const math::LevelScale scale =
      math::level_scale(math::level_step(norm, levels), bits == 1 ? 32768.0f : 65536.0f);
  if (bits == 1) {
    if (norm == 0) return 0;
    return math::round_to_sign(std::clamp((x * scale.pre) * scale.inv, -32768.0f, 32768.0f), draw)
               ? 0
               : 1;
  }
  const float limit = 65536.0f * static_cast<float>(levels);
  const std::uint32_t level =
      math::round_to_level(std::min((std::abs(x) * scale.pre) * scale.inv, limit), draw);
  EXPECT_LE(level, static_cast<std::uint32_t>(levels));
  return level > 0 && x < 0 ? level | (1u << (bits - 1)) : level;
}

/// A body, written one bit at a time.
std::vector<std::byte> reference_body(const QsgdConfig& config, const std::vector<float>& x,
                                      const Key& key, int* ties = nullptr) {
  const std::size_t n = x.size(), bits = static_cast<std::size_t>(config.bits);
  const std::size_t buckets = (n + config.bucket - 1) / config.bucket;
  std::vector<std::byte> body(4 * buckets + (n * bits + 7) / 8);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t bucket = i / config.bucket, begin = bucket * config.bucket;
    const float norm =
        norm_of(config, x.data() + begin, std::min<std::size_t>(config.bucket, n - begin));
    std::memcpy(body.data() + 4 * bucket, &norm, 4);
    const FormatDraw draw{Philox(key, Purpose::qsgd), Philox(key, Purpose::qsgd_low), i};
    const std::uint32_t code = code_of(x[i], norm, config.bits, draw);
    if (ties != nullptr) *ties += draw.asked;
    for (std::size_t b = 0; b < bits; ++b) {
      if ((code >> b) & 1)
        body[4 * buckets + (i * bits + b) / 8] |= std::byte{1} << ((i * bits + b) % 8);
    }
  }
  return body;
}

std::vector<std::byte> encoded(const QsgdConfig& config, const std::vector<float>& x,
                               const Key& key) {
  std::vector<std::byte> body(cpu::max_encoded_bytes(config, x.size()));
  std::size_t bytes = 0;
  EXPECT_EQ(cpu::encode(config, x.data(), x.size(), key, nullptr, body, bytes), Status::ok);
  EXPECT_EQ(bytes, body.size());
  return body;
}

TEST(Qsgd, BodiesAreWhatTheFormatSays) {
  const Key key{.seed = 0x123456789ABCDEFull, .step = 77, .tensor = 3, .worker = 9, .channel = 2};
  for (int bits = 1; bits <= 8; ++bits) {
    for (const auto norm : {QsgdNorm::max, QsgdNorm::l2}) {
      for (const std::uint32_t bucket : {1u, 7u, 100u, 128u, 512u, 5000u}) {
        for (const std::size_t n : {1u, 33u, 129u, 1009u}) {
          const QsgdConfig config{bits, bucket, norm};
          for (const float scale : {1.0f, 0x1p-148f, 5e37f}) {
            const auto x = normal_entries(n, n + bucket, scale);
            ASSERT_EQ(encoded(config, x, key), reference_body(config, x, key))
                << "bits " << bits << " bucket " << bucket << " n " << n << " scale " << scale;
          }
        }
      }
    }
  }
}

TEST(Qsgd, TiesTakeFurtherBits) {
  for (const int bits : {1, 4}) {
    const QsgdConfig config{bits, 512, QsgdNorm::max};
    const auto x = normal_entries(400'000, 8);
    int ties = 0;
    const auto reference = reference_body(config, x, {.seed = 5}, &ties);
    EXPECT_GT(ties, 1);  // about n / 65,536
    EXPECT_EQ(encoded(config, x, {.seed = 5}), reference);
  }
}

TEST(Qsgd, DecodesByItsLayout) {
  std::mt19937_64 generator(2);
  for (int bits = 1; bits <= 8; ++bits) {
    const QsgdConfig config{bits, 48, QsgdNorm::max};
    const std::size_t n = 333, width = static_cast<std::size_t>(bits), buckets = (n + 47) / 48;
    std::vector<std::byte> body(cpu::max_encoded_bytes(config, n));
    for (auto& b : body) b = static_cast<std::byte>(generator());
    for (std::size_t b = 0; b < buckets; ++b) {
      const float norm = b == 1 ? 0.0f : std::ldexp(1.7f, static_cast<int>(b) * 40 - 140);
      std::memcpy(body.data() + 4 * b, &norm, 4);
    }
    const std::size_t used = n * width % 8;
    if (used != 0) body.back() &= static_cast<std::byte>((1u << used) - 1);
    std::vector<float> y(n);
    ASSERT_EQ(cpu::decode(config, body, y.data(), n, nullptr), Status::ok);
    for (std::size_t i = 0; i < n; ++i) {
      std::uint32_t code = 0;
      for (std::size_t b = 0; b < width; ++b) {
        const auto byte = std::to_integer<unsigned>(body[4 * buckets + (i * width + b) / 8]);
        code |= ((byte >> ((i * width + b) % 8)) & 1) << b;
      }
      float norm;
      std::memcpy(&norm, body.data() + 4 * (i / 48), 4);
      const bool negative = ((code >> (bits - 1)) & 1) != 0;
      const auto level = bits == 1 ? 1.0f : static_cast<float>(code & ((1u << (bits - 1)) - 1));
      const float v = level * math::level_step(norm, bits == 1 ? 1 : (1 << (bits - 1)) - 1);
      ASSERT_EQ(y[i], negative ? -v : v) << "bits " << bits << " entry " << i;
    }
  }
}

TEST(Qsgd, EntriesMoveByLessThanAStep) {
  for (int bits = 2; bits <= 8; ++bits) {
    const QsgdConfig config{bits, 100, QsgdNorm::max};
    const int levels = (1 << (bits - 1)) - 1;
    for (const float scale : {0x1p-149f, 1e-23f, 1.0f, 1e20f, 5e37f}) {
      const auto x = normal_entries(777, 4, scale);
      std::vector<float> y(x.size());
      ASSERT_EQ(cpu::decode(config, encoded(config, x, {}), y.data(), y.size(), nullptr),
                Status::ok);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t begin = i / 100 * 100;
        const float norm =
            norm_of(config, x.data() + begin, std::min<std::size_t>(100, x.size() - begin));
        ASSERT_LE(std::abs(double{y[i]} - x[i]),
                  double{math::level_step(norm, levels)} * (1 + 1e-5))
            << scale;
      }
    }
  }
}

TEST(Qsgd, NormsMustBeFiniteAndNotNegative) {
  const QsgdConfig config{4, 16, QsgdNorm::max};
  const auto x = normal_entries(40, 1);
  for (const float bad : {-1.0f, -0.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    auto body = encoded(config, x, {});
    std::memcpy(body.data() + 4, &bad, 4);
    std::vector<float> y(x.size());
    EXPECT_EQ(cpu::decode(config, body, y.data(), y.size(), nullptr), Status::corrupt);
  }
}

TEST(Qsgd, PaddingMustBeZero) {
  const QsgdConfig config{3, 16, QsgdNorm::max};
  const auto x = normal_entries(41, 1);  // 123 bits
  auto body = encoded(config, x, {});
  body.back() |= std::byte{0x80};
  std::vector<float> y(x.size());
  EXPECT_EQ(cpu::decode(config, body, y.data(), y.size(), nullptr), Status::corrupt);
}

TEST(Qsgd, ErrorStaysUnderOmega) {
  for (const char* spec : {"qsgd:bits=1", "qsgd:bits=2", "qsgd:bits=4", "qsgd:bits=4,norm=l2",
                           "qsgd:bits=8,bucket=64"}) {
    const auto method = codec::parse_spec(spec);
    const auto x = normal_entries(51200, 12);
    double error = 0, energy = 0;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const auto y =
          decode_body(kind_of(method, x.size()), encode_body(method, x, {.seed = seed}).bytes).y;
      for (std::size_t i = 0; i < x.size(); ++i) {
        error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
        energy += double{x[i]} * x[i];
      }
    }
    EXPECT_LT(error, *method.traits().omega * energy) << spec;
    EXPECT_GT(error, 0) << spec;
  }
}

/// Mean over `workers` of the decoded values, squared distance to x.
double error_of_mean(const codec::Stages& method, const std::vector<float>& x, int workers,
                     bool shared_key) {
  std::vector<double> mean(x.size());
  for (int worker = 0; worker < workers; ++worker) {
    const Key key{.seed = 3, .worker = static_cast<std::uint16_t>(shared_key ? 0 : worker)};
    const auto y = decode_body(kind_of(method, x.size()), encode_body(method, x, key).bytes, key).y;
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] += double{y[i]} / workers;
  }
  double error = 0;
  for (std::size_t i = 0; i < x.size(); ++i) error += (mean[i] - x[i]) * (mean[i] - x[i]);
  return error;
}

TEST(Qsgd, ErrorsOfWorkersAverageOutUnlessTheyShareAKey) {
  const auto x = normal_entries(20'000, 6);
  for (const char* spec : {"qsgd:bits=1", "qsgd:bits=3", "terngrad"}) {
    const auto method = codec::parse_spec(spec);
    ASSERT_TRUE(method.traits().averages_over_workers);
    const double one = error_of_mean(method, x, 1, false);
    EXPECT_NEAR(error_of_mean(method, x, 16, false) / one, 1.0 / 16, 0.01) << spec;
    EXPECT_GT(error_of_mean(method, x, 16, true) / one, 0.9)
        << spec;  // the mutant: one key for all
  }
}

TEST(Ternary, BodiesAreWhatTheFormatSays) {
  const Key key{.seed = 99, .step = 5, .tensor = 1, .worker = 2};
  for (const float clip : {0.0f, 1.0f, 2.5f}) {
    for (const std::size_t n : {1u, 4u, 5u, 6u, 127u, 640u, 641u, 1009u, 3333u}) {
      const auto x = normal_entries(n, n);
      const TernaryConfig config{clip};
      std::vector<std::byte> body(cpu::max_encoded_bytes(config, n)),
          workspace(cpu::workspace_bytes(config, n));
      std::size_t bytes = 0;
      ASSERT_EQ(cpu::encode(config, x.data(), n, key, workspace, nullptr, body, bytes), Status::ok);
      ASSERT_EQ(bytes, 4 + (n + 4) / 5);

      double squares = 0;
      float norm = 0;
      for (const float v : x) {
        squares += double{v} * v;
        norm = std::max(norm, std::abs(v));
      }
      if (clip > 0)
        norm =
            std::min(norm, static_cast<float>(clip * std::sqrt(squares / static_cast<double>(n))));
      float sent;
      std::memcpy(&sent, body.data(), 4);
      ASSERT_FLOAT_EQ(sent, norm);

      std::vector<std::byte> reference = body;
      std::fill(reference.begin() + 4, reference.end(), std::byte{0});
      for (std::size_t i = 0; i < n; ++i) {
        const FormatDraw draw{Philox(key, Purpose::ternary), Philox(key, Purpose::ternary_low), i};
        const std::uint32_t code = code_of(x[i], sent, 2, draw);
        const std::size_t block = i / 640, m = std::min<std::size_t>(640, n - 640 * block),
                          w = (m + 4) / 5;
        const std::size_t e = i % 640, k = e / w, j = e % w;
        constexpr unsigned kPowers[] = {1, 3, 9, 27, 81};
        auto& byte = reference[4 + 128 * block + j];
        byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) +
                                      kPowers[k] * (code == 3 ? 2 : code));
      }
      ASSERT_EQ(body, reference) << n;

      std::vector<float> y(n);
      ASSERT_EQ(cpu::decode(config, body, y.data(), n, nullptr), Status::ok);
      for (std::size_t i = 0; i < n; ++i) {
        const FormatDraw draw{Philox(key, Purpose::ternary), Philox(key, Purpose::ternary_low), i};
        const std::uint32_t code = code_of(x[i], sent, 2, draw);
        ASSERT_EQ(y[i], code == 0 ? 0 : code == 1 ? sent : -sent);
      }
    }
  }
}

TEST(Ternary, DigitsAndPaddingAreChecked) {
  const TernaryConfig config;
  for (const std::size_t n : {1u, 6u, 639u, 642u}) {
    const auto x = normal_entries(n, 1);
    std::vector<std::byte> body(cpu::max_encoded_bytes(config, n)),
        workspace(cpu::workspace_bytes(config, n));
    std::size_t bytes = 0;
    ASSERT_EQ(cpu::encode(config, x.data(), n, {}, workspace, nullptr, body, bytes), Status::ok);
    std::vector<float> y(n);
    auto bad = body;
    bad[4] = std::byte{243};
    EXPECT_EQ(cpu::decode(config, bad, y.data(), n, nullptr), Status::corrupt);
    bad = body;
    bad.back() = static_cast<std::byte>(std::to_integer<unsigned>(bad.back()) % 81 +
                                        81);  // digit 4 of the last byte
    EXPECT_EQ(cpu::decode(config, bad, y.data(), n, nullptr), Status::corrupt) << n;
  }
}

TEST(Ternary, ClipSaysItIsBiased) {
  EXPECT_TRUE(codec::parse_spec("terngrad").traits().unbiased);
  EXPECT_FALSE(codec::parse_spec("terngrad:clip=2.5").traits().unbiased);
  EXPECT_EQ(codec::parse_spec("terngrad:clip=2.5").to_string(), "terngrad:clip=2.5");
  EXPECT_EQ(codec::parse_spec("terngrad:clip=none").to_string(), "terngrad:clip=none");
  for (const char* bad : {"terngrad:clip=some", "terngrad:clip=0", "terngrad:clip=-1",
                          "qsgd:bits=0", "qsgd:bits=9", "qsgd:bucket=0", "qsgd:norm=l1"}) {
    EXPECT_THROW((void)codec::parse_spec(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace atomo::test
