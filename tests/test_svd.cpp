// SPDX-License-Identifier: Apache-2.0
/// The decomposition, water filling and the sampling of pairs with f32 factors.
#include "atomo/svd.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "bits.hpp"
#include "factors.hpp"
#include "matrix_view.hpp"
#include "support.hpp"

namespace atomo {
namespace {

using namespace detail;

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

std::vector<float> random_matrix(MatrixShape shape, double scale, std::uint64_t seed,
                                 std::size_t rank = 0) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<double> x(shape.rows * shape.columns);
  if (rank == 0) {
    for (double& v : x) v = normal(generator);
  }
  for (std::size_t r = 0; r < rank; ++r) {
    std::vector<double> a(shape.rows), b(shape.columns);
    for (double& v : a) v = normal(generator);
    for (double& v : b) v = normal(generator);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += a[i / shape.columns] * b[i % shape.columns] / static_cast<double>((r + 1) * (r + 1));
    }
  }
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::fabs(v));
  std::vector<float> g(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) g[i] = static_cast<float>(x[i] / largest * scale);
  return g;
}

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
    expect_exact(random_matrix(shape, 1, shape.rows), shape);
  }
}

TEST(Svd, LargeSidesTakeTheFullDecomposition) {
  expect_exact(random_matrix({530, 540}, 1, 1), {530, 540});
  expect_exact(random_matrix({540, 530}, 1, 2, 5), {540, 530});
}

TEST(Svd, AnyScaleAndRank) {
  for (const double scale : {1e-45, 1e-40, 1e-23, 1.0, 1e20, 3.4e38}) {
    for (const std::size_t rank : {0, 1, 3}) {
      expect_exact(random_matrix({12, 40}, scale, 5, rank), {12, 40});
      expect_exact(random_matrix({40, 12}, scale, 6, rank), {40, 12});
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

// ---- probabilities

constexpr double kUnit = 0x1p-32;

std::vector<std::uint64_t> fill(const std::vector<double>& amplitudes, std::uint64_t keep) {
  std::vector<std::uint64_t> p(amplitudes.size());
  std::vector<std::uint32_t> order(amplitudes.size());
  cpu::water_fill(amplitudes, keep, p, order);
  return p;
}

/// Second moment of the sample, what water filling minimises.
double second_moment(const std::vector<double>& a, const std::vector<double>& p) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] > 0 ? a[i] * a[i] / p[i] : 0;
  return sum;
}

std::vector<double> shares(const std::vector<std::uint64_t>& p) {
  std::vector<double> q;
  for (const std::uint64_t x : p) q.push_back(static_cast<double>(x) * kUnit);
  return q;
}

/// The first mistake of published code: mass above 1 is cut off and not given to the others.
std::vector<double> cut_without_redistribution(const std::vector<double>& a, double keep) {
  double sum = 0;
  for (const double v : a) sum += v;
  std::vector<double> p;
  for (const double v : a) p.push_back(std::min(1.0, keep * v / sum));
  return p;
}

/// KKT: the sum is spent; one ratio p / a for all that are not certain, no larger for the certain.
bool satisfies_kkt(const std::vector<double>& a, const std::vector<double>& p, double keep) {
  double sum = 0, ratio = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += p[i];
    if (p[i] < 1 && a[i] > 1e-6) ratio = p[i] / a[i];
  }
  if (std::fabs(sum - keep) > 1e-12 * keep) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] <= 1e-6) continue;
    if (p[i] < 1 && std::fabs(p[i] / a[i] - ratio) > 1e-3 * ratio) return false;
    if (p[i] == 1 && ratio > 0 && a[i] * ratio < 1 - 1e-3) return false;
  }
  return true;
}

TEST(WaterFilling, SpendsTheCountAndIsOptimal) {
  std::mt19937_64 generator(3);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 200; ++round) {
    std::vector<double> a(1 + generator() % 40);
    for (double& v : a) v = generator() % 7 == 0 ? 0 : std::exp(2 * normal(generator));
    std::size_t positive = 0;
    for (const double v : a) positive += v > 0 ? 1 : 0;
    const std::uint64_t keep = 1 + generator() % (a.size() + 1);
    const auto p = fill(a, keep);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += p[i];
      EXPECT_LE(p[i], kCertainPair);
      EXPECT_EQ(p[i] > 0, a[i] > 0);
    }
    EXPECT_EQ(sum, std::min<std::uint64_t>(keep, positive) << 32);
    if (keep >= positive) continue;
    const auto share = shares(p);
    EXPECT_TRUE(satisfies_kkt(a, share, static_cast<double>(keep))) << round;
    const auto cut = cut_without_redistribution(a, static_cast<double>(keep));
    double spent = 0;
    for (const double q : cut) spent += q;
    if (spent < static_cast<double>(keep) - 1e-3) {
      EXPECT_FALSE(satisfies_kkt(a, cut, static_cast<double>(keep))) << round;
      EXPECT_GT(second_moment(a, cut), second_moment(a, share));
    }
  }
}

/// Against every point of a grid on the simplex, three atoms.
TEST(WaterFilling, NoGridPointIsBetter) {
  for (const std::vector<double>& a :
       {std::vector<double>{1, 1, 1}, {10, 1, 1}, {5, 4, 0.1}, {100, 2, 1}}) {
    for (const std::uint64_t keep : {1, 2}) {
      const double best = second_moment(a, shares(fill(a, keep)));
      for (double p = 0.005; p <= 1; p += 0.005) {
        for (double q = 0.005; q <= 1; q += 0.005) {
          const double r = static_cast<double>(keep) - p - q;
          if (r <= 0 || r > 1) continue;
          EXPECT_GE(second_moment(a, {p, q, r}), best * (1 - 1e-9));
        }
      }
    }
  }
}

TEST(WaterFilling, TheTinyAreNeverLost) {
  std::vector<double> a{1e30, 1, 1e-30, 1e-300, 0};
  const auto p = fill(a, 2);
  EXPECT_EQ(p[0], kCertainPair);
  EXPECT_GE(p[2], 1u);
  EXPECT_GE(p[3], 1u);
  EXPECT_EQ(p[4], 0u);
}

// ---- sampling, over every outcome

/// Probabilities in sixteenths: 16 draws a chunk are all there are.
struct Sampled {
  std::vector<double> mean;
  double variance = 0;  ///< of a sum of orthonormal atoms of these amplitudes
};

template <typename Sample>
Sampled enumerate(const std::vector<double>& a, Sample sample) {
  Sampled found{std::vector<double>(a.size()), 0};
  for (std::uint32_t top = 0; top < 16; ++top) {
    const std::vector<double> estimate = sample(top << 28 | 0x01234567u);
    for (std::size_t k = 0; k < a.size(); ++k) {
      found.mean[k] += estimate[k] / 16;
      found.variance += (estimate[k] - a[k]) * (estimate[k] - a[k]) / 16;
    }
  }
  return found;
}

std::vector<double> sample_pairs(const std::vector<double>& a, const std::vector<std::uint64_t>& p,
                                 std::uint32_t u) {
  std::vector<std::uint32_t> kept(a.size());
  const std::size_t count = draw_pairs(
      p, [&](std::size_t) { return u; }, std::span(kept));
  std::vector<double> y(a.size());
  for (std::size_t i = 0; i < count; ++i) y[kept[i]] = a[kept[i]] * pair_scale(p[kept[i]]);
  return y;
}

struct Case {
  std::vector<double> amplitudes;
  std::vector<std::uint64_t> probabilities;
};

Case sixteenths(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  Case c;
  for (std::size_t i = 0; i < n; ++i) {
    c.probabilities.push_back((1 + generator() % 16) << 28);
    c.amplitudes.push_back(1 + static_cast<double>(generator() % 100));
  }
  return c;
}

double worst_bias(const std::vector<double>& a, const Sampled& found) {
  double worst = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    worst = std::max(worst, std::fabs(found.mean[k] / a[k] - 1));
  }
  return worst;
}

TEST(PairSampling, ExpectationAndVarianceAreExact) {
  for (const std::size_t n : {1, 2, 5, 64, 157, 255, 256, 300}) {
    const Case c = sixteenths(n, n);
    const auto found = enumerate(c.amplitudes, [&](std::uint32_t u) {
      return sample_pairs(c.amplitudes, c.probabilities, u);
    });
    EXPECT_LT(worst_bias(c.amplitudes, found), 1e-12) << n;
    double variance = 0;
    for (std::size_t k = 0; k < n; ++k) {
      variance += c.amplitudes[k] * c.amplitudes[k] * (pair_scale(c.probabilities[k]) - 1);
    }
    EXPECT_NEAR(found.variance, variance, 1e-12 * variance) << n;
  }
}

TEST(PairSampling, MutantsAreCaught) {
  // Drawing again when nothing was kept.
  const Case sparse{{3, 2, 1}, {2ull << 28, 1ull << 28, 1ull << 28}};
  const auto redrawn = enumerate(sparse.amplitudes, [&](std::uint32_t u) {
    auto y = sample_pairs(sparse.amplitudes, sparse.probabilities, u);
    while (y == std::vector<double>(3)) {
      u += 1u << 28;
      y = sample_pairs(sparse.amplitudes, sparse.probabilities, u);
    }
    return y;
  });
  EXPECT_GT(worst_bias(sparse.amplitudes, redrawn), 0.5);
  // Dividing by the ideal probability instead of the integer that was drawn with.
  const Case c = sixteenths(20, 4);
  const auto ideal = enumerate(c.amplitudes, [&](std::uint32_t u) {
    auto y = sample_pairs(c.amplitudes, c.probabilities, u);
    for (std::size_t k = 0; k < y.size(); ++k) {
      const double p = static_cast<double>(c.probabilities[k]) * kUnit;
      if (p < 1) y[k] *= p / (p + 1e-9);
    }
    return y;
  });
  EXPECT_GT(worst_bias(c.amplitudes, ideal), 1e-12);
  // The scrambled order taken modulo a short chunk that the stride divides: 157 of 157 visits place
  // 0.
  const Case shortened = sixteenths(157, 5);
  const auto scrambled = enumerate(shortened.amplitudes, [&](std::uint32_t u) {
    std::vector<double> y(157);
    std::uint32_t sum = u;
    for (std::size_t i = 0; i < 157; ++i) {
      const std::size_t k = i * 157 % 157;
      const auto p = shortened.probabilities[k];
      const std::uint32_t next = sum + static_cast<std::uint32_t>(p);
      if (next < sum || p == kCertainPair) y[k] = shortened.amplitudes[k] * pair_scale(p);
      sum = next;
    }
    return y;
  });
  EXPECT_GT(worst_bias(shortened.amplitudes, scrambled), 0.5);
  // A pair whose probability was rounded to 0 is never sent.
  Case lost = sixteenths(8, 6);
  lost.probabilities[3] = 0;
  const auto missing = enumerate(lost.amplitudes, [&](std::uint32_t u) {
    return sample_pairs(lost.amplitudes, lost.probabilities, u);
  });
  EXPECT_GT(worst_bias(lost.amplitudes, missing), 0.5);
}

// ---- the codec with f32 factors

const char* const kPaper = "atomo:atoms=svd,keep=3,values=f32";

TEST(Factors, KeepsWhatItPromises) {
  const Codec codec = Codec::parse(kPaper);
  const auto g = random_matrix({20, 50}, 1, 8);
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
      const auto g = random_matrix({16, 30}, scale, 11);
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
  const auto g = random_matrix(shape, 1, 12, 8);
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
  const auto g = random_matrix(shape, 1, 13);
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
