// SPDX-License-Identifier: Apache-2.0
/// The decomposition, and the codec that sends its pairs as f32 factors.
#include <gtest/gtest.h>
#include <cmath>
#include <limits>
#include <random>

#include "core/bits.hpp"
#include "cpu/factors.hpp"
#include "cpu/svd.hpp"
#include "format/factors_body.hpp"
#include "format/matrix.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

using namespace model;

// ---- the decomposition

struct Decomposition {
  MatrixShape shape;
  std::vector<float> shorter, longer;
  std::vector<double> sigma;
  int exponent = 0;
  Status status = Status::ok;

  Decomposition(const std::vector<float>& g, MatrixShape of) : shape(of) {
    const std::size_t m = of.shorter();
    shorter.resize(m * m);
    longer.resize(m * of.longer());
    sigma.resize(m);
    std::vector<std::byte> workspace(cpu::svd_workspace_bytes(of) + 32, std::byte{0x5A});
    SingularPairs pairs{shorter, longer, sigma};
    status = cpu::svd(g.data(), of, pairs, Bytes(workspace).first(workspace.size() - 32));
    for (std::size_t i = workspace.size() - 32; i < workspace.size(); ++i) {
      EXPECT_EQ(workspace[i], std::byte{0x5A});
    }
    exponent = pairs.exponent;
  }

  /// Sum of the outer products, times the weights of the pairs.
  [[nodiscard]] std::vector<double> sum(const std::vector<double>& weights = {}) const {
    const std::size_t m = shape.shorter(), n = shape.longer();
    std::vector<double> y(m * n);
    for (std::size_t k = 0; k < m; ++k) {
      const double weight = std::ldexp(weights.empty() ? 1.0 : weights[k], exponent);
      if (weight == 0) continue;
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          const std::size_t at = shape.rows <= shape.columns ? i * n + j : j * m + i;
          y[at] += weight * static_cast<double>(shorter[k * m + i]) *
                   static_cast<double>(longer[k * n + j]);
        }
      }
    }
    return y;
  }
};

/// The stated bound: 2^-23 (1 + 2^-8) times the norm of the line along the shorter side.
void expect_exact(const std::vector<float>& g, MatrixShape shape) {
  const Decomposition d(g, shape);
  ASSERT_EQ(d.status, Status::ok);
  const auto y = d.sum();
  const bool wide = shape.rows <= shape.columns;
  std::vector<double> line(shape.longer());
  for (std::size_t i = 0; i < g.size(); ++i) {
    line[wide ? i % shape.columns : i / shape.columns] += double{g[i]} * g[i];
  }
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double norm = std::sqrt(line[wide ? i % shape.columns : i / shape.columns]);
    // Vectors below 2^-149 of the largest entry are lost to f32 itself.
    const double lost = std::ldexp(1.0, d.exponent - 149) * static_cast<double>(shape.shorter());
    ASSERT_LE(std::fabs(y[i] - g[i]), 0x1p-23 * (1 + 0x1p-8) * norm + lost)
        << i << " of " << shape.rows << " x " << shape.columns;
  }
  for (std::size_t a = 0; a < std::min<std::size_t>(shape.shorter(), 8); ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double product = 0;
      for (std::size_t i = 0; i < shape.shorter(); ++i) {
        product += static_cast<double>(d.shorter[a * shape.shorter() + i]) *
                   static_cast<double>(d.shorter[b * shape.shorter() + i]);
      }
      ASSERT_NEAR(product, d.sigma[0] == 0 ? 0 : a == b ? 1 : 0, 2e-6);
    }
  }
}

TEST(Svd, PairsSumToTheMatrix) {
  for (const MatrixShape shape : {MatrixShape{1, 1},
                                  {1, 40},
                                  {40, 1},
                                  {2, 16},
                                  {7, 31},
                                  {33, 32},
                                  {64, 576},
                                  {576, 64},
                                  {300, 280}}) {
    expect_exact(test::gaussian_matrix(shape, 1, shape.rows), shape);
  }
}

TEST(Svd, LargeSidesTakeTheFullDecomposition) {
  expect_exact(test::gaussian_matrix({530, 540}, 1, 1), {530, 540});
  expect_exact(test::gaussian_matrix({540, 530}, 1, 2, 5), {540, 530});
}

TEST(Svd, AnyScaleAndRank) {
  for (const double scale : {1e-45, 1e-40, 1e-23, 1.0, 1e20, 3.4e38}) {
    for (const std::size_t rank : {0, 1, 3}) {
      expect_exact(test::gaussian_matrix({12, 40}, scale, 5, rank), {12, 40});
      expect_exact(test::gaussian_matrix({40, 12}, scale, 6, rank), {40, 12});
    }
  }
  expect_exact(std::vector<float>(12 * 20), {12, 20});
  std::vector<float> line(12 * 20);
  for (std::size_t j = 0; j < 20; ++j) line[5 * 20 + j] = 1;  // one row, all equal
  expect_exact(line, {12, 20});
  EXPECT_NEAR(Decomposition(line, {12, 20}).sigma[0], std::sqrt(20.0), 1e-12);
}

TEST(Svd, AmplitudesAreTheSingularValues) {
  // A diagonal between two reflections.
  const std::size_t m = 24, n = 50;
  std::vector<double> u(m), v(n);
  std::mt19937_64 generator(9);
  std::normal_distribution<double> normal;
  double nu = 0, nv = 0;
  for (double& a : u) a = normal(generator), nu += a * a;
  for (double& a : v) a = normal(generator), nv += a * a;
  std::vector<float> g(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < m; ++k) {
        sum += ((i == k) - 2 * u[i] * u[k] / nu) * std::exp2(-static_cast<double>(k)) *
               ((j == k) - 2 * v[j] * v[k] / nv);
      }
      g[i * n + j] = static_cast<float>(sum);
    }
  }
  const Decomposition d(g, {m, n});
  // Rounding the matrix itself to f32 moves singular values by up to 2^-24 of its norm.
  for (std::size_t k = 0; k < 16; ++k) {
    EXPECT_NEAR(d.sigma[k], std::exp2(-static_cast<double>(k)), 2e-7) << k;
  }
  for (std::size_t k = 1; k < m; ++k) EXPECT_LE(d.sigma[k], d.sigma[k - 1] * (1 + 1e-6));
}

TEST(Svd, RefusesWhatItCannotDo) {
  EXPECT_FALSE(cpu::svd_supports({0, 5}));
  EXPECT_FALSE(cpu::svd_supports({20000, 20000}));
  EXPECT_FALSE(cpu::svd_supports({4, std::size_t{1} << 23}));
  EXPECT_TRUE(cpu::svd_supports({16384, 16384}));
  std::vector<float> g(4), a(4), b(4);
  std::vector<double> sigma(2);
  SingularPairs pairs{a, b, sigma};
  EXPECT_EQ(cpu::svd(g.data(), {2, 2}, pairs, {}), Status::workspace_too_small);
}

// ---- the codec with f32 factors

std::vector<std::uint64_t> fill(const std::vector<double>& amplitudes, std::uint64_t keep) {
  std::vector<std::uint64_t> p(amplitudes.size());
  std::vector<std::uint32_t> order(amplitudes.size());
  cpu::water_fill(amplitudes, keep, p, order);
  return p;
}

const char* const kPaper = "atomo:atoms=svd,keep=3,values=f32";

TEST(Factors, KeepsWhatItPromises) {
  const Codec codec = Codec::parse(kPaper);
  const auto g = test::gaussian_matrix({20, 50}, 1, 8);
  for (std::uint32_t step = 0; step < 50; ++step) {
    const auto message = test::encode(codec, g, Shape{20, 50}, {.seed = 1, .step = step});
    ContainerInfo info;
    ASSERT_EQ(inspect(message.bytes, info), Status::ok);
    EXPECT_EQ(info.layers[0].atoms, 20u);
    EXPECT_EQ(info.layers[0].kept, 3u);  // the probabilities sum to 3 exactly
    EXPECT_EQ(info.layers[0].bytes, 8u + 4 * 3 * 70);
  }
}

TEST(Factors, KeepingAllIsExact) {
  for (const char* spec :
       {"atomo:atoms=svd,keep=1.0,values=f32", "atomo:atoms=svd,keep=500,values=f32"}) {
    const Codec codec = Codec::parse(spec);
    for (const double scale : {1e-44, 1e-20, 1.0, 3e38}) {
      const auto g = test::gaussian_matrix({16, 30}, scale, 11);
      const auto decoded =
          test::decode(codec, test::encode(codec, g, Shape{16, 30}).bytes, Shape{16, 30});
      ASSERT_EQ(decoded.status, Status::ok);
      const double tiny = std::numeric_limits<float>::denorm_min();
      for (std::size_t i = 0; i < g.size(); ++i) {
        ASSERT_NEAR(decoded.values[i], g[i], 0x1p-21 * scale * 4 + tiny) << scale;
      }
    }
  }
}

/// Every outcome of the codec's own draw, weighted: the mean over systematic draws approaches g
/// with the predicted mean squared error (Chebyshev over the mean of 400 draws of the error's
/// energy).
TEST(Factors, DrawsAverageToTheMatrixWithThePredictedVariance) {
  const Codec codec = Codec::parse(kPaper);
  const MatrixShape shape{16, 24};
  const auto g = test::gaussian_matrix(shape, 1, 12, 8);
  const Decomposition d(g, shape);
  const auto p = fill(d.sigma, 3);
  double predicted = 0;
  for (std::size_t k = 0; k < p.size(); ++k) {
    predicted += p[k] == 0 ? 0 : d.sigma[k] * d.sigma[k] * (pair_scale(p[k]) - 1);
  }
  constexpr std::uint32_t kDraws = 5000;
  std::vector<double> mean(g.size());
  double energy = 0;
  for (std::uint32_t s = 0; s < kDraws; ++s) {
    const auto y =
        test::decode(codec, test::encode(codec, g, Shape{16, 24}, {.seed = 4, .step = s}).bytes,
                     Shape{16, 24})
            .values;
    for (std::size_t i = 0; i < g.size(); ++i) {
      mean[i] += (static_cast<double>(y[i]) - g[i]) / kDraws;
      energy += (static_cast<double>(y[i]) - g[i]) * (static_cast<double>(y[i]) - g[i]) / kDraws;
    }
  }
  double bias = 0;
  for (const double v : mean) bias += v * v;
  // E bias = predicted / draws; ten times that has a probability below 1e-3 by any tail seen here.
  EXPECT_LT(bias, 10 * predicted / kDraws);
  EXPECT_NEAR(energy, predicted, 0.1 * predicted);
}

TEST(Factors, TensorsThatAreNoMatrixAreSentAsTheyAre) {
  const Codec codec = Codec::parse(kPaper);
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{1, 64}, Shape{64, 15}, Shape{2, 2, 3}}) {
    EXPECT_FALSE(is_matrix(shape));
    const auto x = test::heavy_tailed(shape.elements(), 2, 9);
    const auto message = test::encode(codec, x, shape);
    EXPECT_EQ(test::decode(codec, message.bytes, shape).values, x);
  }
  EXPECT_TRUE(is_matrix(Shape{2, 16}));
  EXPECT_TRUE(is_matrix(Shape{8, 2, 2, 4}));
}

/// Every truncation and every bit flip of a small body: a Status, nothing outside, finite or
/// flagged.
TEST(Factors, DamagedBodiesNeverDoHarm) {
  const MatrixShape shape{3, 17};
  const auto g = test::gaussian_matrix(shape, 1, 13);
  std::vector<std::byte> body(factors_bytes(shape, 3)), work(encode_factors_workspace_bytes(shape));
  std::size_t bytes = 0;
  ASSERT_EQ(encode_factors(g.data(), shape, 2, {}, work, body, bytes), Status::ok);
  body.resize(bytes);
  std::vector<std::byte> room(decode_factors_workspace_bytes(shape));
  std::vector<float> y(shape.rows * shape.columns + 16, -9.0f);
  const auto decode = [&](ConstBytes damaged) {
    return decode_factors(damaged, shape, {}, y.data() + 8, room, nullptr);
  };
  EXPECT_EQ(decode(body), Status::ok);
  for (std::size_t size = 1; size < body.size(); ++size) {
    EXPECT_EQ(decode(ConstBytes(body).first(size)), Status::corrupt);
  }
  for (std::size_t bit = 0; bit < 8 * body.size(); ++bit) {
    std::vector<std::byte> damaged(body.begin(), body.end());
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const Status status = decode(damaged);
    std::uint64_t kept = 0;
    EXPECT_EQ(failed(count_factors(damaged, shape, kept)), failed(status));
    if (status != Status::ok) continue;
    for (std::size_t i = 8; i < y.size() - 8; ++i) ASSERT_TRUE(std::isfinite(y[i]));
  }
  for (std::size_t i = 0; i < 8; ++i) {
    ASSERT_EQ(y[i], -9.0f);
    ASSERT_EQ(y[y.size() - 1 - i], -9.0f);
  }
}

TEST(Factors, SpecsThatDoNotFitAreRefused) {
  EXPECT_THROW((void)Codec::parse("atomo:atoms=svd,keep=3"), Error);
  EXPECT_THROW((void)Codec::parse("atomo:atoms=svd,values=f32"), Error);
  EXPECT_THROW((void)Codec::parse("atomo:atoms=svd,bits=1,values=f32"), Error);
  EXPECT_THROW((void)Codec::parse("atomo:atoms=svd,bits=1,keep=3,values=f32"), Error);
  EXPECT_THROW((void)Codec::parse("atomo:atoms=coordinate,bits=1,keep=3"), Error);
  EXPECT_THROW((void)Codec::parse("atomo:atoms=coordinate"), Error);
}

}  // namespace
}  // namespace atomo
