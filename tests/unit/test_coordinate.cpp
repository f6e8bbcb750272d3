// SPDX-License-Identifier: Apache-2.0
/// Coordinates on a grid: the arithmetic enumerated in double, and the wire.
#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <random>

#include "core/bits.hpp"
#include "core/philox.hpp"
#include "cpu/coordinate.hpp"
#include "format/coordinate_body.hpp"
#include "price/coordinate_price.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

using namespace model;

// ---- expectation and variance, over every outcome

/// Decoded values of one chunk for one draw, in double.
std::vector<double> round_all(const std::vector<double>& x, double step, std::uint32_t u,
                              bool modulo_the_chunk = false) {
  const std::size_t m = x.size();
  std::vector<std::uint32_t> level(m), part(m);
  for (std::size_t i = 0; i < m; ++i) {
    const std::uint64_t fixed = grid_fixed(x[i], grid_scale(step));
    level[i] = static_cast<std::uint32_t>(fixed >> 32);
    part[i] = static_cast<std::uint32_t>(fixed);
  }
  const auto up = [&](std::size_t k, std::uint32_t carried) { level[k] += carried; };
  if (!modulo_the_chunk) {
    draw_chunk(
        m, u, [&](std::size_t k) { return part[k]; }, up);
  } else {  // a mutant: the order taken modulo the short chunk
    std::uint32_t sum = u;
    for (std::size_t i = 0; i < m; ++i) {
      const std::size_t k = visited_place<kCoordinateChunk, kCoordinateColumns>(i) % m;
      const std::uint32_t next = sum + part[k];
      up(k, next < sum ? 1 : 0);
      sum = next;
    }
  }
  std::vector<double> y(m);
  for (std::size_t i = 0; i < m; ++i) y[i] = std::copysign(level[i] * step, x[i]);
  return y;
}

struct Moments {
  std::vector<double> mean;
  double variance = 0;  ///< E||y - x||^2
};

/// x must be whole multiples of step / 16: then the outcome depends on the four upper bits of u
/// alone, and 16 draws are all there are.
template <typename Draw>
Moments enumerate(const std::vector<double>& x, Draw draw) {
  Moments moments{std::vector<double>(x.size()), 0};
  for (std::uint32_t top = 0; top < 16; ++top) {
    const auto y = draw(top << 28 | 0x0ABCDEFu);
    for (std::size_t i = 0; i < x.size(); ++i) {
      moments.mean[i] += y[i] / 16;
      moments.variance += (y[i] - x[i]) * (y[i] - x[i]) / 16;
    }
  }
  return moments;
}

std::vector<double> sixteenths(std::size_t n, double step, int range, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_int_distribution<int> number(-range, range);
  std::vector<double> x(n);
  for (double& v : x) v = number(generator) * step / 16;
  return x;
}

double grid_variance(const std::vector<double>& x, double step) {
  double sum = 0;
  for (const double v : x) {
    const double t = std::fabs(v) / step, f = t - std::floor(t);
    sum += step * step * f * (1 - f);
  }
  return sum;
}

double worst_bias(const std::vector<double>& x, const Moments& moments, double step) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::fabs(moments.mean[i] - x[i]) / step);
  }
  return worst;
}

TEST(CoordinateMath, ExpectationAndVarianceAreExact) {
  for (const std::size_t n : {1, 2, 7, 31, 64, 100, 4095, 4096}) {
    for (const double step : {1.0, 0.0078125, 3.0, 0x1p-149, 0x1p100}) {
      const auto x = sixteenths(n, step, n % 2 == 0 ? 15 : 200, n);
      const auto m = enumerate(x, [&](std::uint32_t u) { return round_all(x, step, u); });
      EXPECT_LT(worst_bias(x, m, step), 1e-12);
      const double variance = grid_variance(x, step);
      EXPECT_NEAR(m.variance, variance, 1e-12 * variance) << n << " " << step;
    }
  }
}

TEST(CoordinateMath, OneDrawKeepsTheExpectedCountOrOneMore) {
  const auto x = sixteenths(1000, 1.0, 15, 5);
  double expected = 0;
  for (const double v : x) expected += std::fabs(v);
  for (std::uint32_t top = 0; top < 16; ++top) {
    const auto y = round_all(x, 1.0, top << 28);
    double kept = 0;
    for (const double v : y) kept += v != 0 ? 1 : 0;
    EXPECT_GE(kept, std::floor(expected));
    EXPECT_LE(kept, std::floor(expected) + 1);
  }
}

TEST(CoordinateMath, MutantsAreCaught) {
  const double step = 1.0;
  const auto x = sixteenths(7, step, 15, 3);
  // Rounding the wrong way round: the complement of P.
  const auto inverted = enumerate(x, [&](std::uint32_t u) {
    std::vector<double> y = round_all(x, step, u);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double low = std::floor(std::fabs(x[i])), other = std::fabs(y[i]) > low ? low : low + 1;
      y[i] = std::copysign(other, x[i]);
    }
    return y;
  });
  EXPECT_GT(worst_bias(x, inverted, step), 0.01);
  // Drawing again when nothing was kept.
  std::vector<double> sparse(5, 1.0 / 16);
  const auto redrawn = enumerate(sparse, [&](std::uint32_t u) {
    auto y = round_all(sparse, step, u);
    while (std::all_of(y.begin(), y.end(), [](double v) { return v == 0; })) {
      u += 1u << 28;
      y = round_all(sparse, step, u);
    }
    return y;
  });
  EXPECT_GT(worst_bias(sparse, redrawn, step), 0.01);
  // The order of visits taken modulo a short chunk, of which it visits places twice.
  std::vector<double> short_chunk(1000, 0.5);
  const auto scrambled = enumerate(
      short_chunk, [&](std::uint32_t u) { return round_all(short_chunk, step, u, true); });
  EXPECT_GT(worst_bias(short_chunk, scrambled, step), 0.01);
  const auto right =
      enumerate(short_chunk, [&](std::uint32_t u) { return round_all(short_chunk, step, u); });
  EXPECT_LT(worst_bias(short_chunk, right, step), 1e-12);
  // A level too high.
  const auto off_by_one = enumerate(x, [&](std::uint32_t u) {
    auto y = round_all(x, step, u);
    for (double& v : y) v += std::copysign(step, v);
    return y;
  });
  EXPECT_GT(worst_bias(x, off_by_one, step), 0.01);
}

TEST(CoordinateMath, ProbabilitiesStayWithinTheStatedBound) {
  std::mt19937_64 generator(17);
  std::uniform_real_distribution<float> exponent(-100, 28);
  for (int i = 0; i < 200000; ++i) {
    const float step =
        std::bit_cast<float>(static_cast<std::uint32_t>(generator() % 0x7F000000u) + 1);
    const double wide = static_cast<double>(step) * std::exp2(exponent(generator));
    if (!(wide < kLargest)) continue;
    const auto x = static_cast<float>(wide);
    const std::uint64_t fixed = grid_fixed(x, grid_scale(step));
    // |x| - T 2^-32 step, exact: both products have at most 64 + 24 bits.
    const long double exact = static_cast<long double>(x) / static_cast<long double>(step);
    const long double used = static_cast<long double>(fixed) * 0x1p-32L;
    EXPECT_LE(std::fabs(static_cast<double>(used - exact)),
              0x1p-33 * (1 + 0x1p-19) + 0x1p-51 * static_cast<double>(exact));
  }
}

/// At the top of the range the last cell is shorter: still unbiased, and finite.
TEST(CoordinateMath, TheTopOfTheRangeIsUnbiased) {
  const float largest = std::numeric_limits<float>::max();
  for (const float step : {2.5e38f, 1e38f, 3e37f, 1e31f}) {
    for (const float x : {3e38f, 3.39e38f, largest, std::nextafter(largest, 0.0f)}) {
      const std::uint64_t fixed = grid_fixed_at_top(x, step, grid_scale(step));
      const auto level = static_cast<std::int32_t>(fixed >> 32);
      const double p = static_cast<double>(fixed & 0xFFFFFFFFu) * 0x1p-32;
      const double low = grid_value(level, step), high = grid_value(level + 1, step);
      EXPECT_TRUE(std::isfinite(static_cast<float>(high)));
      EXPECT_NEAR((1 - p) * low + p * high, x, 1.3 * 0x1p-24 * x) << step << " " << x;
    }
  }
}

// ---- the wire

struct Coded {
  Status status = Status::ok;
  std::vector<std::byte> body;
};

Coded encode_body(const std::vector<float>& x, float step, const Key& key = {},
                  Executor* executor = nullptr) {
  const CoordinateConfig config{step};
  std::vector<std::byte> workspace(cpu::workspace_bytes(config, x.size()));
  Coded coded;
  coded.body.resize(cpu::max_encoded_bytes(config, x.size()));
  std::size_t bytes = 0;
  coded.status =
      cpu::encode(config, x.data(), x.size(), key, workspace, executor, coded.body, bytes);
  coded.body.resize(bytes);
  return coded;
}

Status decode_body(ConstBytes body, float step, std::vector<float>& y,
                   Executor* executor = nullptr) {
  const CoordinateConfig config{step};
  std::vector<std::byte> workspace(cpu::workspace_bytes(config, y.size()));
  return cpu::decode(config, body, y.data(), y.size(), workspace, executor);
}

/// What the body must decode to: the rounding again, without the wire.
std::vector<float> rounded(const std::vector<float>& x, float step, const Key& key) {
  const Philox draws(key, Purpose::select_coordinate);
  std::vector<float> y(x.size());
  for (std::size_t at = 0; at < x.size(); at += kCoordinateChunk) {
    const std::size_t m = std::min(kCoordinateChunk, x.size() - at);
    std::vector<std::uint64_t> fixed(m);
    for (std::size_t i = 0; i < m; ++i) {
      fixed[i] = grid_fixed_at_top(x[at + i], step, grid_scale(step));
      y[at + i] =
          std::copysign(grid_value(static_cast<std::int32_t>(fixed[i] >> 32), step), x[at + i]);
    }
    draw_chunk(
        m, draws(at / kCoordinateChunk)[0],
        [&](std::size_t k) { return static_cast<std::uint32_t>(fixed[k]); },
        [&](std::size_t k, std::uint32_t carried) {
          const auto level =
              static_cast<std::int32_t>(fixed[k] >> 32) + static_cast<std::int32_t>(carried);
          y[at + k] = std::copysign(grid_value(level, step), x[at + k]);
        });
  }
  return y;
}

void expect_round_trip(const std::vector<float>& x, float step, const Key& key = {.seed = 9}) {
  const auto coded = encode_body(x, step, key);
  ASSERT_EQ(coded.status, Status::ok);
  std::vector<float> y(x.size(), -3.0f);
  ASSERT_EQ(decode_body(coded.body, step, y), Status::ok);
  const auto expected = rounded(x, step, key);
  for (std::size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(y[i], expected[i]) << i << " of " << x.size();
}

TEST(CoordinateWire, RoundTripAtEdgeSizesAndEveryRate) {
  for (const std::size_t n :
       {1, 2, 31, 32, 33, 4095, 4096, 4097, 32767, 32768, 32769, 70001, 300007}) {
    const auto x = test::heavy_tailed(n, n, 50);
    for (const float step : {1e-6f, 1e-4f, 3e-3f, 0.02f, 0.3f, 100.0f}) expect_round_trip(x, step);
  }
}

TEST(CoordinateWire, RoundTripAtEveryScale) {
  std::mt19937_64 generator(4);
  for (const float scale : {1e-45f, 1e-41f, 1e-30f, 1e-23f, 1.0f, 1e20f, 3e38f}) {
    std::vector<float> x(5000);
    for (float& v : x) v = scale * (static_cast<float>(generator() % 2001) / 1000 - 1);
    for (const float part : {1.0f, 0.3f, 1e-3f}) {
      const float step = std::max(scale * part, 0x1p-149f);
      expect_round_trip(x, step);
      for (const float v : rounded(x, step, {})) ASSERT_TRUE(std::isfinite(v));
    }
  }
}

TEST(CoordinateWire, OutliersCostTheirShareAlone) {
  std::vector<float> x = test::heavy_tailed(32768, 6, 32768);
  const std::size_t calm = encode_body(x, 0.01f).body.size();
  x[77] = 5e6f;  // level 5e8: in plain Rice code of a small parameter, hundreds of millions of ones
  const auto coded = encode_body(x, 0.01f);
  EXPECT_LT(coded.body.size(), calm + 16);
  expect_round_trip(x, 0.01f);
}

TEST(CoordinateWire, ZerosAndTinyEntries) {
  EXPECT_TRUE(encode_body(std::vector<float>(40000, 0.0f), 1.0f).body.empty());
  std::vector<float> x(40000, -0.0f);
  x[39999] = -1.0f;
  expect_round_trip(x, 1.0f);
  std::vector<float> y(3, 5.0f);
  EXPECT_EQ(decode_body({}, 1.0f, y), Status::ok);
  EXPECT_EQ(y, std::vector<float>(3, 0.0f));
}

TEST(CoordinateWire, StepsThatAreTooSmallAreRefused) {
  for (const float largest : {1e-40f, 1.0f, 3.4e38f}) {
    const float lowest = price::min_grid_step(largest);
    EXPECT_LE(largest / lowest, 0x1p29f);
    const std::vector<float> x{largest, -largest};
    EXPECT_EQ(encode_body(x, lowest).status, Status::ok);
    if (largest == 1.0f) {
      EXPECT_EQ(encode_body(x, lowest * 0.97f).status, Status::unsupported);
    }
    expect_round_trip(x, lowest);
  }
  EXPECT_EQ(encode_body({1.0f}, 0.0f).status, Status::unsupported);
  EXPECT_EQ(encode_body({1.0f}, -1.0f).status, Status::unsupported);
  EXPECT_EQ(encode_body({1.0f}, std::numeric_limits<float>::infinity()).status,
            Status::unsupported);
}

TEST(CoordinateWire, ThreadsChangeNothing) {
  const auto x = test::heavy_tailed(700001, 12);
  ThreadPool pool(3);
  const auto one = encode_body(x, 0.02f, {.seed = 4}),
             many = encode_body(x, 0.02f, {.seed = 4}, &pool);
  EXPECT_EQ(one.body, many.body);
  std::vector<float> a(x.size()), b(x.size());
  EXPECT_EQ(decode_body(one.body, 0.02f, a), Status::ok);
  EXPECT_EQ(decode_body(one.body, 0.02f, b, &pool), Status::ok);
  EXPECT_EQ(a, b);
  const CoordinateConfig config{0.02f};
  std::vector<std::byte> workspace(cpu::workspace_bytes(config, x.size()));
  std::vector<float> sum = x;
  format::LayerBody body;
  body.bytes = one.body;
  body.price = config.step;
  cpu::decode_add({&body, 1}, 0.7f, sum.data(), sum.size(), workspace, &pool);
  EXPECT_EQ(body.status, Status::ok);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scaled = 0.7f * a[i];
    ASSERT_EQ(sum[i], x[i] + scaled);
  }
}

TEST(CoordinateWire, BuffersAreGuarded) {
  const auto x = test::heavy_tailed(40001, 3);
  const CoordinateConfig config{0.01f};
  const std::size_t capacity = cpu::max_encoded_bytes(config, x.size());
  const std::size_t work = cpu::workspace_bytes(config, x.size());
  std::vector<std::byte> body(capacity + 64, std::byte{0xA5}),
      workspace(work + 64, std::byte{0x5A});
  std::size_t bytes = 0;
  const Bytes inner(body.data() + 32, capacity), room(workspace.data() + 32, work);
  EXPECT_EQ(
      cpu::encode(config, x.data(), x.size(), {}, room.first(work / 2), nullptr, inner, bytes),
      Status::workspace_too_small);
  EXPECT_EQ(
      cpu::encode(config, x.data(), x.size(), {}, room, nullptr, inner.first(capacity - 1), bytes),
      Status::buffer_too_small);
  ASSERT_EQ(cpu::encode(config, x.data(), x.size(), {}, room, nullptr, inner, bytes), Status::ok);
  std::vector<float> y(x.size() + 16, -9.0f);
  ASSERT_EQ(cpu::decode(config, inner.first(bytes), y.data() + 8, x.size(), room, nullptr),
            Status::ok);
  for (std::size_t i = 0; i < 32; ++i) {
    ASSERT_EQ(body[i], std::byte{0xA5});
    ASSERT_EQ(body[32 + capacity + i], std::byte{0xA5});
    ASSERT_EQ(workspace[i], std::byte{0x5A});
    ASSERT_EQ(workspace[32 + work + i], std::byte{0x5A});
  }
  for (std::size_t i = 0; i < 8; ++i) {
    ASSERT_EQ(y[i], -9.0f);
    ASSERT_EQ(y[8 + x.size() + i], -9.0f);
  }
}

/// Every truncation and every single-bit flip of small bodies in each mode: a Status, finite
/// values.
TEST(CoordinateWire, DamagedBodiesNeverDoHarm) {
  std::size_t refused = 0, tried = 0;
  for (const float step : {1e-5f, 2e-3f, 0.02f, 0.3f}) {
    const auto x = test::heavy_tailed(200, 19, 20);
    const auto body = encode_body(x, step).body;
    std::vector<float> y(x.size());
    for (std::size_t size = 1; size < body.size(); ++size) {
      EXPECT_EQ(decode_body(ConstBytes(body).first(size), step, y), Status::corrupt);
    }
    for (std::size_t bit = 0; bit < 8 * body.size(); ++bit) {
      std::vector<std::byte> damaged(body.begin(), body.end());
      damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      const Status status = decode_body(damaged, step, y);
      std::uint64_t kept = 0;
      EXPECT_EQ(cpu::coordinate_count(damaged, x.size(), kept), status);
      EXPECT_LE(kept, x.size());
      refused += failed(status) ? 1 : 0;
      ++tried;
      if (failed(status)) continue;
      for (const float v : y) ASSERT_TRUE(std::isfinite(v));
    }
    std::vector<std::byte> longer(body.begin(), body.end());
    longer.push_back(std::byte{0});
    EXPECT_EQ(decode_body(longer, step, y), Status::corrupt);
  }
  EXPECT_GT(refused, tried / 20);
}

TEST(CoordinateWire, PaddingMustBeZero) {
  auto body = encode_body({1.0f}, 1.0f).body;  // a level and a sign: 3 or 4 bits
  ASSERT_EQ(body.size(), 5u);
  std::vector<float> y(1);
  EXPECT_EQ(decode_body(body, 1.0f, y), Status::ok);
  body[4] |= std::byte{0x80};
  EXPECT_EQ(decode_body(body, 1.0f, y), Status::corrupt);
}

TEST(CoordinateWire, EveryModeIsUsed) {
  bool seen[4] = {};
  std::mt19937_64 generator(8);
  std::normal_distribution<float> normal;
  for (const std::size_t n : {100, 65536}) {
    for (const float step : {0.05f, 0.5f, 1.0f, 2.0f, 3.0f, 20.0f}) {
      std::vector<float> x(n);
      for (std::size_t i = 0; i < std::min<std::size_t>(n, 32768); ++i) x[i] = normal(generator);
      const auto body = encode_body(x, step).body;
      for (std::size_t s = 0; s < segments_of(n); ++s) {
        const auto word = SegmentWord::unpack(load_le<std::uint32_t>(body.data() + 4 * s));
        seen[static_cast<int>(word.mode)] = true;
      }
    }
  }
  for (const bool mode : seen) EXPECT_TRUE(mode);
}

}  // namespace
}  // namespace atomo
