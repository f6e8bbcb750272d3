// SPDX-License-Identifier: Apache-2.0
/// Coordinates on a grid: the arithmetic enumerated in double, the wire, the price.
#include "atomo/coordinate.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "atomo/philox.hpp"
#include "coordinate_format.hpp"
#include "coordinate_price.hpp"
#include "support.hpp"

namespace atomo {
namespace {

using namespace detail;

// ---- expectation and variance, over every outcome

/// Decoded values of one chunk for one draw, in double.
std::vector<double> round_all(const std::vector<double>& x, double step, std::uint32_t u,
                              std::size_t stride_modulus = kCoordinateChunk) {
  const std::size_t m = x.size();
  std::vector<std::uint32_t> level(m), part(m);
  for (std::size_t i = 0; i < m; ++i) {
    const std::uint64_t fixed = grid_fixed(x[i], grid_scale(step));
    level[i] = static_cast<std::uint32_t>(fixed >> 32);
    part[i] = static_cast<std::uint32_t>(fixed);
  }
  const auto up = [&](std::size_t k, std::uint32_t carried) { level[k] += carried; };
  if (stride_modulus == kCoordinateChunk) {
    draw_chunk(
        m, u, [&](std::size_t k) { return part[k]; }, up);
  } else {  // a mutant: the scrambled order taken modulo the short chunk
    std::uint32_t sum = u;
    for (std::size_t i = 0; i < m; ++i) {
      const std::size_t k = i * kCoordinateStride % stride_modulus;
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
  // A scrambled order modulo a short chunk whose length the stride does not visit: 1597 divides it.
  std::vector<double> short_chunk(2 * 1597, 0.5);
  const auto scrambled = enumerate(short_chunk, [&](std::uint32_t u) {
    return round_all(short_chunk, step, u, short_chunk.size());
  });
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

/// keep= spends its count where it saves most variance: sum x^2 / p is least under sum p = K.
TEST(CoordinateMath, ProbabilitiesAreOptimal) {
  std::mt19937_64 generator(23);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 20; ++round) {
    const std::size_t n = 12;
    std::vector<float> x(n);
    for (float& v : x) v = static_cast<float>(std::exp(1.5 * normal(generator)));
    std::vector<std::byte> demand(magnitude_demand_bytes(n)), scratch(magnitude_scratch_bytes(n));
    count_magnitudes(x.data(), n, demand, scratch);
    const std::uint64_t keep = 1 + generator() % (n - 1);
    const double step = step_that_keeps(demand, keep);
    std::vector<double> p(n);
    double sum = 0, cost = 0;
    for (std::size_t i = 0; i < n; ++i) {
      p[i] = std::min(1.0, x[i] / step);
      sum += p[i];
      cost += x[i] * x[i] / p[i];
    }
    EXPECT_NEAR(sum, static_cast<double>(keep), 0.005 * static_cast<double>(keep));
    // No transfer of probability from one entry to another lowers it.
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = 0; b < n; ++b) {
        const double moved = std::min(0.01 * p[a], 1 - p[b]);
        if (a == b || moved <= 0) continue;
        const double other = cost - x[a] * x[a] / p[a] - x[b] * x[b] / p[b] +
                             x[a] * x[a] / (p[a] - moved) + x[b] * x[b] / (p[b] + moved);
        EXPECT_GE(other, cost * (1 - 1e-12)) << a << " to " << b;
      }
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
    const float lowest = cpu::coordinate_lowest_step(largest);
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
  EXPECT_EQ(cpu::decode_add(config, one.body, 0.7f, sum.data(), sum.size(), workspace, &pool),
            Status::ok);
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

// ---- the price

std::vector<float> laplace_mixture(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::exponential_distribution<float> magnitude(1.0f);
  std::normal_distribution<float> spread;
  std::vector<float> x(n);
  for (float& v : x) {
    const float size = magnitude(generator) * std::exp(0.8f * spread(generator));
    v = (generator() & 1) != 0 ? size : -size;
  }
  return x;
}

TEST(CoordinatePrice, BudgetsAreMet) {
  const std::size_t n = 1 << 20;
  const auto x = laplace_mixture(n, 2);
  for (const double bits : {0.125, 0.25, 0.5, 1.0, 2.0, 4.0}) {
    const Codec codec = Codec::parse("atomo:atoms=coordinate,bits=" + std::to_string(bits));
    const auto message = test::encode(codec, x, Shape{static_cast<std::int64_t>(n)});
    ASSERT_EQ(message.status, Status::ok);
    const double drawn = 8.0 * static_cast<double>(message.bytes.size()) / static_cast<double>(n);
    EXPECT_NEAR(drawn, bits, 0.01 * bits);
    RecordProperty("bits_" + std::to_string(bits), std::to_string(drawn));
  }
}

TEST(CoordinatePrice, ExpectedBitsFallAsTheStepRises) {
  const auto x = test::heavy_tailed(50000, 14);
  std::vector<std::byte> demand(magnitude_demand_bytes(x.size())),
      scratch(magnitude_scratch_bytes(x.size()));
  count_magnitudes(x.data(), x.size(), demand, scratch);
  std::uint64_t before = ~std::uint64_t{0};
  for (std::uint32_t code = 1; code < 0x7F80; code += 7) {
    const std::uint64_t bits = expected_grid_bits256(demand, std::bit_cast<float>(code << 16));
    EXPECT_LE(bits, before + before / 200) << code;
    before = bits;
  }
}

TEST(CoordinatePrice, BothWaysOfCountingAgree) {
  const auto few = test::heavy_tailed(4096, 15);
  auto many = few;
  many.resize(8192, 0.0f);
  std::vector<std::byte> a(magnitude_demand_bytes(4096)), b(magnitude_demand_bytes(8192));
  std::vector<std::byte> scratch(magnitude_scratch_bytes(8192));
  count_magnitudes(few.data(), few.size(), a, scratch);
  count_magnitudes(many.data(), many.size(), b, scratch);
  EXPECT_EQ(load_le<std::uint64_t>(a.data()), load_le<std::uint64_t>(b.data()));
  EXPECT_EQ(largest_magnitude(a), largest_magnitude(b));
  EXPECT_EQ(std::memcmp(a.data() + 24, b.data() + 24, 8 * load_le<std::uint64_t>(a.data())), 0);
}

TEST(CoordinatePrice, KeepMeetsItsCount) {
  const auto x = test::heavy_tailed(200000, 16);
  const Shape shape{200000};
  for (const char* spec : {"keep=2000", "keep=0.1", "keep=50000"}) {
    const Codec codec = Codec::parse(std::string("atomo:atoms=coordinate,") + spec);
    const auto y = test::decode(codec, test::encode(codec, x, shape).bytes, shape).values;
    double kept = 0;
    for (const float v : y) kept += v != 0 ? 1 : 0;
    const double wanted = std::string(spec) == "keep=2000"  ? 2000
                          : std::string(spec) == "keep=0.1" ? 20000
                                                            : 50000;
    EXPECT_NEAR(kept, wanted, 0.01 * wanted) << spec;
  }
  const Codec all = Codec::parse("atomo:atoms=coordinate,keep=1.0");
  const auto y = test::decode(all, test::encode(all, x, shape).bytes, shape).values;
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i] != 0, x[i] != 0) << x[i];
}

TEST(CoordinatePrice, DeltaIsTheStepAndIsRaisedWhereItCannotBeSent) {
  const std::vector<float> x{1.0f, -0.5f, 0.3f};
  const Codec codec = Codec::parse("atomo:atoms=coordinate,delta=0.123");
  const auto y = test::decode(codec, test::encode(codec, x, Shape{3}).bytes, Shape{3}).values;
  for (const float v : y) {
    const double levels = v / static_cast<double>(0.123f);
    EXPECT_NEAR(levels, std::round(levels), 1e-6);
  }
  const Codec fine = Codec::parse("atomo:atoms=coordinate,delta=1e-30");
  const auto exact = test::decode(fine, test::encode(fine, x, Shape{3}).bytes, Shape{3});
  EXPECT_EQ(exact.status, Status::ok);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(exact.values[i], x[i], 1e-8);
}

/// Monte Carlo through the codec. By Bernstein's inequality the sum of N errors of variance v, none
/// above the step, exceeds t with probability at most 2 exp(-t^2 / (2 N v + 2 t step / 3)); t is
/// set for 1e-9 an entry, so 600 entries raise a false alarm in fewer than one run in a million.
TEST(CoordinatePrice, DrawsAverageToTheInput) {
  const Shape shape{600};
  const auto x = test::heavy_tailed(600, 33, 20);
  const Codec codec = Codec::parse("atomo:atoms=coordinate,delta=0.0625");
  constexpr double kStep = 0.0625, kDraws = 4000, kLog = 21.5;  // ln(2e9)
  std::vector<double> sum(600);
  for (std::uint32_t s = 0; s < kDraws; ++s) {
    const auto message = test::encode(codec, x, shape, {.seed = 1, .step = s});
    const auto y = test::decode(codec, message.bytes, shape).values;
    for (std::size_t i = 0; i < 600; ++i) sum[i] += static_cast<double>(y[i]) - x[i];
  }
  for (std::size_t i = 0; i < 600; ++i) {
    const double f = std::fabs(x[i]) / kStep - std::floor(std::fabs(x[i]) / kStep);
    const double spread = 2 * kDraws * kStep * kStep * f * (1 - f) * kLog, reach = kLog * kStep / 3;
    EXPECT_LE(std::fabs(sum[i]), reach + std::sqrt(reach * reach + spread) + 1e-6)
        << i << " " << x[i];
  }
}

}  // namespace
}  // namespace atomo
