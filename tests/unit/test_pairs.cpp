// SPDX-License-Identifier: Apache-2.0
/// Singular pairs with dithered factors at the price.
#include <gtest/gtest.h>
#include <cmath>
#include <random>

#include "codec/body_decoder.hpp"
#include "codec/stages.hpp"
#include "coding/duo_code.hpp"
#include "core/philox.hpp"
#include "cpu/pairs.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"
#include "math/dither.hpp"
#include "math/selection.hpp"
#include "price/pair_costs.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

using namespace model;

// ---- the product of two dithered numbers, over every outcome

/// Dyadic draws: 16 levels, pre-rounding in quarters.
struct QuarterDraw {
  std::uint32_t level, quarter;
  template <typename Real>
  [[nodiscard]] Real uniform() const noexcept {
    return Real{1} + (static_cast<Real>(level) + static_cast<Real>(quarter) / 4) / 16;
  }
};

double dithered(double x, double step, const QuarterDraw& draw) {
  const double q = quantise(x, 1 / step, draw);
  return dequantise(static_cast<std::int32_t>(q), draw.level, step);
}

/// E[u^ v^] with draws of their own, with one pre-rounding for both, with one dither for both.
struct ProductMeans {
  double own = 0, one_pre_rounding = 0, one_level = 0;
};

ProductMeans product_means(double u, double v) {
  ProductMeans means;
  for (std::uint32_t a = 0; a < 16; ++a) {
    for (std::uint32_t b = 0; b < 16; ++b) {
      for (std::uint32_t h = 0; h < 4; ++h) {
        for (std::uint32_t k = 0; k < 4; ++k) {
          const double first = dithered(u, 2, {a, h});
          means.own += first * dithered(v, 2, {b, k}) / 4096;
          means.one_pre_rounding += first * dithered(v, 2, {b, h}) / 4096;
          means.one_level += first * dithered(v, 2, {a, k}) / 4096;
        }
      }
    }
  }
  return means;
}

TEST(PairMath, FactorsNeedDrawsOfTheirOwn) {
  // Multiples of a quarter of a sixteenth of the step, where pre-rounding in quarters is exact.
  const double unit = 2.0 / 64;
  double worst_pre_rounding = 0, worst_level = 0;
  for (int i = -70; i <= 70; i += 7) {
    for (int j = -50; j <= 50; j += 5) {
      const double u = i * unit, v = j * unit;
      const ProductMeans means = product_means(u, v);
      worst_pre_rounding =
          std::max(worst_pre_rounding, std::fabs(means.one_pre_rounding - means.own));
      worst_level = std::max(worst_level, std::fabs(means.one_level - means.own));
      EXPECT_NEAR(means.own, u * v, 1e-12) << u << " " << v;
    }
  }
  EXPECT_GT(worst_pre_rounding, 1e-4);
  EXPECT_GT(worst_level, 1e-2);
}

// ---- tables

TEST(PairTables, EscapesOfEveryShapeFit) {
  for (const MatrixShape shape : {MatrixShape{16384, 16384},
                                  {16384, 20000},
                                  {16384, 40000},
                                  {16384, 100000},
                                  {16384, 300000},
                                  {16384, std::size_t{1} << 20},
                                  {16384, std::size_t{1} << 22},
                                  {8192, std::size_t{1} << 22},
                                  {2, std::size_t{1} << 22},
                                  {2, 16}}) {
    const std::size_t aspect = pair_aspect(shape);
    for (int c = 0; c < kAtomClassCount; ++c) {
      const PairSteps steps = kPairSteps[aspect][c];
      const double top = c == 0 ? 2 : std::ldexp(c % 2 == 0 ? 1.0 : 1.5, c / 2);
      const double reach = top / (kCodingSteps[steps.longer].d * kClassMiddle[c]);
      // Below the cap, so the bound that escape_bits proves holds.
      EXPECT_LE(2 * std::sqrt(static_cast<double>(shape.longer())) * reach * (1 + 0x1p-10) + 6,
                0x1p26);
      EXPECT_LE(
          2 * std::sqrt(static_cast<double>(shape.shorter())) / kCodingSteps[steps.shorter].d + 6,
          0x1p26);
    }
  }
}

TEST(PairTables, AspectsAreHalfOctaves) {
  EXPECT_EQ(pair_aspect({16, 16}), 0u);
  EXPECT_EQ(pair_aspect({16, 19}), 0u);    // 1.19: a quarter of an octave
  EXPECT_EQ(pair_aspect({100, 119}), 1u);  // just over 2^(1/4) = 1.1892
  EXPECT_EQ(pair_aspect({100, 118}), 0u);
  EXPECT_EQ(pair_aspect({32, 16}), 2u);
  EXPECT_EQ(pair_aspect({10, 90}), 6u);
  EXPECT_EQ(pair_aspect({2, 4000000}), 12u);
}

// ---- the codec

std::vector<float> low_rank(std::size_t rows, std::size_t columns, std::uint64_t seed, double noise,
                            double scale = 1) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<double> x(rows * columns);
  for (double& v : x) v = noise * normal(generator);
  for (int r = 0; r < 12; ++r) {
    std::vector<double> a(rows), b(columns);
    for (double& v : a) v = normal(generator);
    for (double& v : b) v = normal(generator) * (generator() % 8 == 0 ? 4 : 1);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += a[i / columns] * b[i % columns] / (1 + r);
  }
  std::vector<float> g(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) g[i] = static_cast<float>(x[i] * scale);
  return g;
}

TEST(Pairs, BudgetsAreMetAndErrorsFall) {
  const Shape shape{256, 4096};  // a million entries
  const auto g = low_rank(256, 4096, 1, 0.05);
  double before = 1e30;
  for (const double bits : {0.5, 1.0, 2.0, 4.0}) {
    const Codec codec = Codec::parse("atomo:atoms=svd,bits=" + std::to_string(bits));
    const auto message = test::encode(codec, g, shape, {.seed = 2});
    ASSERT_EQ(message.status, Status::ok);
    const double drawn =
        8.0 * static_cast<double>(message.bytes.size()) / static_cast<double>(g.size());
    EXPECT_NEAR(drawn, bits, 0.015 * bits);
    const double error = test::nmse(g, test::decode(codec, message.bytes, shape).values);
    EXPECT_LT(error, before / 2);
    before = error;
  }
  // What pairs are for: at the same rate, much less error than rows.
  const Codec rows = Codec::parse("atomo:atoms=rows,bits=1"),
              pairs = Codec::parse("atomo:atoms=svd,bits=1");
  const double of_rows =
      test::nmse(g, test::decode(rows, test::encode(rows, g, shape).bytes, shape).values);
  const double of_pairs =
      test::nmse(g, test::decode(pairs, test::encode(pairs, g, shape).bytes, shape).values);
  EXPECT_LT(of_pairs, of_rows / 4);
}

TEST(Pairs, EverySideAndScaleDecodes) {
  for (const Shape& shape :
       {Shape{2, 16}, Shape{3, 17}, Shape{40, 20}, Shape{100, 33}, Shape{20, 1500}, Shape{1500, 20},
        Shape{40, 3, 5, 5}, Shape{600, 640}}) {
    const auto rows = static_cast<std::size_t>(shape[0]);
    for (const double scale : {1e-44, 1e-23, 1.0, 1e20, 1e37}) {
      const auto g = low_rank(rows, shape.elements() / rows, rows, 0.1, scale);
      if (shape.elements() > 100000 && scale != 1.0) continue;
      for (const char* spec : {"atomo:atoms=svd,bits=2", "atomo:atoms=svd,bits=9"}) {
        const Codec codec = Codec::parse(spec);
        const auto message = test::encode(codec, g, shape, {.seed = 6});
        ASSERT_FALSE(failed(message.status));
        const auto decoded = test::decode(codec, message.bytes, shape);
        ASSERT_EQ(decoded.status, Status::ok) << shape.to_string() << scale << spec;
        const bool fine = std::string(spec) == "atomo:atoms=svd,bits=9" && scale > 1e-40;
        if (fine && shape.elements() > 500) {
          EXPECT_LT(test::nmse(g, decoded.values), 1e-3) << shape.to_string() << scale;
        }
      }
    }
  }
}

/// A symmetric matrix of rank one has equal factors: a draw shared by u and v shows on its
/// diagonal. The 256 errors are, to first order, sums of the 32 independent errors of the factors,
/// so the mean of z^2 is about a chi-square of 31 over 31: above 2.5 in fewer than one run in
/// 100,000.
TEST(Pairs, DrawsAverageToTheMatrix) {
  const Shape shape{16, 16};
  std::vector<float> g(256);
  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> a(16);
  for (float& v : a) v = normal(generator);
  for (std::size_t i = 0; i < 256; ++i) g[i] = a[i / 16] * a[i % 16];
  for (const char* spec : {"atomo:atoms=svd,price=0.3", "atomo:atoms=svd,price=3.0"}) {
    const Codec codec = Codec::parse(spec);
    constexpr std::uint32_t kDraws = 5000;
    std::vector<double> sum(256), squares(256);
    for (std::uint32_t s = 0; s < kDraws; ++s) {
      const auto message = test::encode(codec, g, shape, {.seed = 5, .step = s});
      const auto y = test::decode(codec, message.bytes, shape).values;
      for (std::size_t i = 0; i < 256; ++i) {
        const double error = static_cast<double>(y[i]) - g[i];
        sum[i] += error;
        squares[i] += error * error;
      }
    }
    double chi = 0;
    for (std::size_t i = 0; i < 256; ++i) chi += sum[i] * sum[i] / squares[i] / 256;
    EXPECT_LT(chi, 2.5) << spec;
  }
}

/// The draws of one entry of vector t, by the rules of the format.
EntryDraw draw_of(const Key& key, Purpose dither, Purpose pre_round, std::uint64_t t,
                  std::uint64_t length, std::uint64_t entry) {
  const std::uint64_t tiles = (length + 31) / 32, u = entry / 32;
  const std::uint64_t half = (std::min<std::uint64_t>(32, length - 32 * u) + 1) / 2;
  const bool second = entry % 32 >= half;
  const std::uint64_t l = entry % 32 - (second ? half : 0);
  const auto levels = Philox(key, dither)(4 * (t * ((tiles + 7) / 8) + u / 8) + l % 4);
  const auto pre = Philox(key, pre_round)(16 * (t * ((tiles + 3) / 4) + u / 4) + l);
  const std::uint32_t level = levels[l / 4] >> (4 * (u % 8)) & 15u;
  return {second ? level ^ 8u : level, second ? pre[u % 4] >> 16 : pre[u % 4] & 0xFFFFu};
}

std::vector<float> send_vector(const Key& key, Purpose dither, Purpose pre_round, std::uint64_t t,
                               std::span<const float> x, float inverse, float step) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const EntryDraw draw = draw_of(key, dither, pre_round, t, x.size(), i);
    y[i] = dequantise(static_cast<std::int32_t>(quantise(x[i], inverse, draw)), draw.level, step);
  }
  return y;
}

/// Every value of a message, from the rules: purposes, steps, order of sums. A pre-rounding shared
/// by u and v, invisible to averages of a few thousand draws, is seen here.
TEST(Pairs, ValuesFollowFromTheRules) {
  const MatrixShape shape{45, 70};
  const auto g = low_rank(45, 70, 8, 0.3);
  const Key key{.seed = 77, .step = 3, .tensor = 0, .worker = 2};
  std::vector<float> shorter(45 * 45), longer(45 * 70);
  std::vector<double> sigma(45);
  std::vector<std::byte> room(cpu::svd_workspace_bytes(shape));
  SingularPairs pairs{shorter, longer, sigma};
  ASSERT_EQ(cpu::svd(g.data(), shape, pairs, room), Status::ok);

  const float price = 0.001953125f;
  const Codec codec = Codec::parse("atomo:atoms=svd,price=0.001953125");
  const auto message = test::encode(codec, g, Shape{45, 70}, key);
  const auto decoded = test::decode(codec, message.bytes, Shape{45, 70}).values;
  const std::size_t aspect = pair_aspect(shape);
  const double unit = kPairKappa[aspect] * std::sqrt(115.0 / (45.0 * 70.0)), root = std::sqrt(45.0);
  std::vector<double> sum(g.size());
  for (std::size_t k = 0; k < 45; ++k) {
    const auto choice = cpu::choose_atom(sigma[k] * pair_amplitude(shape), price);
    ASSERT_NE(choice.atom_class, 0) << "the price is to keep all pairs";
    const PairSteps steps = kPairSteps[aspect][choice.atom_class];
    const auto step_u = static_cast<float>(kCodingSteps[steps.shorter].d);
    const float step_v =
        price *
        static_cast<float>(unit * (kCodingSteps[steps.longer].d * kClassMiddle[choice.atom_class]));
    const auto u = send_vector(key, Purpose::dither_u, Purpose::pre_round_u, k,
                               std::span(shorter).subspan(45 * k, 45),
                               static_cast<float>(root / static_cast<double>(step_u)), step_u);
    const double scale = std::ldexp(1.0, pairs.exponent) / (root * static_cast<double>(step_v));
    const auto v =
        send_vector(key, Purpose::dither_v, Purpose::pre_round_v, k,
                    std::span(longer).subspan(70 * k, 70), static_cast<float>(scale), step_v);
    for (std::size_t i = 0; i < g.size(); ++i) {
      sum[i] += static_cast<double>(u[i / 70]) * static_cast<double>(v[i % 70]);
    }
  }
  for (std::size_t i = 0; i < g.size(); ++i) ASSERT_EQ(decoded[i], static_cast<float>(sum[i])) << i;
}

TEST(Pairs, ZeroMatricesAndWhatIsNoMatrix) {
  const Codec codec = Codec::parse("atomo:atoms=svd,bits=1");
  const auto zero = test::encode(codec, std::vector<float>(320), Shape{8, 40});
  ContainerInfo info;
  ASSERT_EQ(inspect(zero.bytes, info), Status::ok);
  EXPECT_EQ(info.layers[0].bytes, 0u);
  EXPECT_EQ(test::decode(codec, zero.bytes, Shape{8, 40}).values, std::vector<float>(320, 0.0f));
  // Blocks take what is no matrix, and write what the blocks' codec writes.
  const Codec blocks = Codec::parse("atomo:atoms=blocks,bits=1");
  const auto x = test::heavy_tailed(1000, 4);
  EXPECT_EQ(test::encode(codec, x, Shape{1000}).bytes, test::encode(blocks, x, Shape{1000}).bytes);
}

TEST(Pairs, DamagedBodiesNeverDoHarm) {
  for (const Shape& shape : {Shape{3, 17}, Shape{2, 1100}}) {
    const auto rows = static_cast<std::size_t>(shape[0]);
    const auto g = low_rank(rows, shape.elements() / rows, 5, 0.1);
    const Codec codec = Codec::parse("atomo:atoms=svd,price=1");
    const auto message = test::encode(codec, g, shape);
    ContainerInfo info;
    ASSERT_EQ(inspect(message.bytes, info), Status::ok);
    // The body behind its own price, without the container's checksums.
    const auto body_at = static_cast<std::ptrdiff_t>(info.head_bytes) + 4;
    const std::vector<std::byte> body(
        message.bytes.begin() + body_at,
        message.bytes.begin() + body_at - 4 + static_cast<std::ptrdiff_t>(info.layers[0].bytes));
    const Kind kind{MethodId::atoms, DType::f32, params_of(Family::pairs), shape};
    std::vector<std::byte> room(decoders::atoms.workspace_bytes(kind));
    std::vector<float> y(shape.elements() + 16, -9.0f);
    const auto decode = [&](ConstBytes bytes) {
      LayerBody of;
      of.bytes = bytes;
      of.price = info.layers[0].price;
      LayerOutput out;
      out.bodies = {&of, 1};
      out.kind = &kind;
      out.y = y.data() + 8;
      out.n = shape.elements();
      out.workspace = room;
      decoders::atoms.decode(out);
      return of.status;
    };
    ASSERT_EQ(decode(body), Status::ok);
    EXPECT_EQ(std::vector<float>(y.begin() + 8, y.end() - 8),
              test::decode(codec, message.bytes, shape).values);
    for (std::size_t size = 1; size < body.size(); ++size) {
      EXPECT_EQ(decode(ConstBytes(body).first(size)), Status::corrupt);
    }
    std::size_t refused = 0;
    for (std::size_t bit = 0; bit < 8 * body.size(); ++bit) {
      auto damaged = body;
      damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      const Status status = decode(damaged);
      std::uint64_t kept = 0;
      if (!failed(status)) {
        const PairLayer layer = PairLayer::all_of(matrix_view(shape));
        EXPECT_EQ(inspect_pairs(damaged, layer, kept), Status::ok);
        EXPECT_LE(kept, layer.count);
      }
      refused += failed(status) ? 1 : 0;
    }
    EXPECT_GT(refused, 2 * body.size());
    for (std::size_t i = 0; i < 8; ++i) {
      ASSERT_EQ(y[i], -9.0f);
      ASSERT_EQ(y[y.size() - 1 - i], -9.0f);
    }
  }
}

}  // namespace
}  // namespace atomo
