// SPDX-License-Identifier: Apache-2.0
/// What sketches promise of their distributions: over every outcome on small matrices
/// (sketch_checks.hpp; test_mutants.cpp shows what these checks catch), and with fixed seeds
/// through real bodies, whatever the basis. Bounds as in test_monte_carlo.cpp.
#include <gtest/gtest.h>

#include "codec/body_decoder.hpp"
#include "codec/stages.hpp"
#include "core/bits.hpp"
#include "cpu/pairs.hpp"
#include "format/kind.hpp"
#include "price/atom_costs.hpp"
#include "price/pair_costs.hpp"
#include "statistics/loss_checks.hpp"
#include "statistics/message_checks.hpp"
#include "statistics/predictions.hpp"
#include "statistics/sketch_checks.hpp"
#include "statistics/thinning_checks.hpp"
#include "support/support.hpp"

namespace atomo::test {

using namespace model;
namespace {

constexpr double kFamilyError = 1e-9;

TEST(SketchStatistics, TheWholeEstimateIsExact) { EXPECT_EQ(check_sketch(), ""); }
TEST(SketchStatistics, LossesCountTheVariance) { EXPECT_EQ(check_loss(), ""); }
TEST(SketchStatistics, CapsAreUnbiased) { EXPECT_EQ(check_cap(), ""); }
TEST(SketchStatistics, PairsAndRowsShareBitsAsIsBest) { EXPECT_EQ(check_pair_probabilities(), ""); }

// ---- bodies

/// A sketch on its way: both parts of a body, and what is read from them.
class SentSketch {
 public:
  SentSketch(const Sketched& s, float price)
      : sketched_(s),
        price_(price),
        pairs_{s.shape, s.rank},
        rows_(AtomLayout::rows(s.shape.rows, s.shape.columns)),
        amplitudes_(s.sigma),
        rms_(s.shape.rows) {
    for (double& a : amplitudes_) a *= price::pair_amplitude(s.shape);
    std::vector<cpu::PriceBin> bins(price::max_price_bins(rows_));
    std::vector<std::byte> workspace(cpu::analyse_workspace_bytes(rows_));
    cpu::AtomAnalysis found;
    EXPECT_EQ(cpu::analyse(s.residual.data(), rows_, rms_.data(), bins, workspace, nullptr, found),
              Status::ok);
  }

  [[nodiscard]] std::vector<std::byte> pairs(const Key& key) const {
    const SingularPairs pairs{const_cast<Sketched&>(sketched_).shorter,
                              const_cast<Sketched&>(sketched_).longer,
                              const_cast<Sketched&>(sketched_).sigma, sketched_.exponent};
    std::vector<std::byte> body(format::max_pairs_body_bytes(pairs_)),
        workspace(cpu::encode_workspace_bytes(pairs_.count));
    std::size_t bytes = 0;
    EXPECT_EQ(
        cpu::encode_pairs(pairs, pairs_, amplitudes_, price_, key, nullptr, body, workspace, bytes),
        Status::ok);
    body.resize(bytes);
    return body;
  }
  [[nodiscard]] std::vector<std::byte> rows(const Key& key) const {
    std::vector<std::byte> body(format::max_body_bytes(rows_)),
        workspace(cpu::encode_workspace_bytes(rows_.count));
    cpu::AtomBody written;
    EXPECT_EQ(cpu::encode_atoms(sketched_.residual.data(), rows_, rms_.data(), price_, key, nullptr,
                                body, workspace, written),
              Status::ok);
    body.resize(written.bytes);
    return body;
  }

  /// What a whole body decodes to.
  [[nodiscard]] std::vector<float> decoded(const Key& key) const {
    const auto of_pairs = pairs(key), of_rows = rows(key);
    std::vector<float> y(sketched_.residual.size());
    if (of_pairs.empty() && of_rows.empty()) return y;
    std::vector<std::byte> body(4);
    core::store_le(body.data(), static_cast<std::uint32_t>(of_pairs.size()));
    body.insert(body.end(), of_pairs.begin(), of_pairs.end());
    body.insert(body.end(), of_rows.begin(), of_rows.end());
    const format::Kind kind{format::MethodId::atoms, DType::f32,
                            format::sketch_params(sketched_.rank),
                            Shape{static_cast<std::int64_t>(sketched_.shape.rows),
                                  static_cast<std::int64_t>(sketched_.shape.columns)}};
    std::vector<std::byte> workspace(codec::decoders::atoms.workspace_bytes(kind));
    format::LayerBody of;
    of.bytes = body;
    of.key = key;
    of.price = price_;
    codec::LayerOutput out;
    out.bodies = {&of, 1};
    out.kind = &kind;
    out.y = y.data();
    out.n = y.size();
    out.workspace = workspace;
    codec::decoders::atoms.decode(out);
    EXPECT_EQ(of.status, Status::ok);
    return y;
  }

 private:
  const Sketched& sketched_;
  float price_;
  format::PairLayer pairs_;
  AtomLayout rows_;
  std::vector<double> amplitudes_, rms_;
};

/// Bases that are good, random, of another matrix, and with a column of zeros.
std::vector<Sketched> sketches_of(const std::vector<float>& g, const MatrixShape& shape,
                                  std::size_t rank) {
  const std::size_t columns = shape.columns;
  auto degenerate = random_basis(columns, rank, 4);
  for (std::size_t i = 0; i < columns; ++i) degenerate[i * rank] = 0;
  return {
      Sketched(g, shape, {rank, 1}, {.seed = 1}),
      Sketched(g, shape, random_basis(columns, rank, 2)),
      Sketched(g, shape, Sketched(gaussian_matrix(shape, 1, 3, 2), shape, {rank, 1}, {}).basis()),
      Sketched(g, shape, degenerate)};
}

/// Every entry's mean, and the error of all together, whatever the basis.
TEST(SketchStatistics, AnyBasisIsUnbiasedWithThePredictedError) {
  constexpr std::uint32_t kDraws = 3000;
  double trials = 0;
  for (const MatrixShape& shape : {MatrixShape{20, 34}, {34, 20}}) {
    const auto g = gaussian_matrix(shape, 1, 9, 5);
    const Shape tensor{static_cast<std::int64_t>(shape.rows),
                       static_cast<std::int64_t>(shape.columns)};
    for (const Sketched& s : sketches_of(g, shape, 4)) {
      for (const float price : {0.3f, 0.02f}) {
        const BernsteinFamily family(static_cast<double>(g.size()), kFamilyError / 16);
        trials += 1;
        const SentSketch sent(s, price);
        const PairPrediction p = predict_sketch(s, tensor, price, 0x1p-20);
        std::vector<double> sum(g.size());
        double error = 0;
        for (std::uint32_t step = 0; step < kDraws; ++step) {
          const auto y = sent.decoded({.seed = 8, .step = step});
          for (std::size_t i = 0; i < g.size(); ++i) {
            const double e = static_cast<double>(y[i]) - static_cast<double>(g[i]);
            sum[i] += e;
            error += e * e / kDraws;
          }
        }
        for (std::size_t i = 0; i < g.size(); ++i)
          ASSERT_LE(std::fabs(sum[i]), family.reach(kDraws * p.variance[i], p.largest[i]) +
                                           kDraws * (p.slack[i] + 1e-6))
              << "entry " << i << " at " << price;
        EXPECT_NEAR(error, p.total, 0.05 * p.total) << price;
      }
    }
  }
  EXPECT_LE(trials, 16);
}

// ---- which draws

/// Errors of the first factors, the second factors and the rows, in steps.
struct Errors {
  std::vector<double> of[3];
};

/// Rank, sides and price at which every pair and every row is certain.
constexpr MatrixShape kSquare{24, 24};
constexpr std::size_t kRank = 5;
constexpr float kPrice = 0x1p-7f;

/// What is dithered: contents in steps, vector by vector.
struct Contents {
  Errors in_steps;
  explicit Contents(const Sketched& s) {
    const double root = std::sqrt(static_cast<double>(s.shape.shorter())),
                 a = static_cast<double>(kPrice);
    for (std::size_t k = 0; k < kRank; ++k) {
      const auto choice = cpu::choose_atom(s.sigma[k] * price::pair_amplitude(s.shape), kPrice);
      EXPECT_GT(choice.atom_class, 0);
      const format::PairStep steps = format::pair_step(s.shape, choice.atom_class);
      for (std::size_t i = 0; i < 24; ++i) {
        in_steps.of[0].push_back(s.u(k, i) * root / static_cast<double>(steps.shorter.size));
        in_steps.of[1].push_back(s.v(k, i) / root / (a * static_cast<double>(steps.longer.size)));
      }
      double squares = 0;
      for (std::size_t i = 0; i < 24; ++i)
        squares += std::pow(static_cast<double>(s.residual[24 * k + i]), 2);
      const auto row = cpu::choose_atom(std::sqrt(squares / 24), kPrice);
      EXPECT_GT(row.atom_class, 0);
      const double delta = static_cast<double>(coding::kAtomClasses[row.atom_class].delta);
      for (std::size_t i = 0; i < 24; ++i)
        in_steps.of[2].push_back(static_cast<double>(s.residual[24 * k + i]) / (a * delta));
    }
  }
};

/// Drawn from words of these purposes.
struct Purposes {
  std::array<VectorPurposes, 3> of = {VectorPurposes{Purpose::pre_round_u, Purpose::dither_u},
                                      {Purpose::pre_round_v, Purpose::dither_v},
                                      {Purpose::pre_round_row, Purpose::dither_row}};
};

Errors draw_errors(const Contents& contents, const Purposes& purposes, const Key& key) {
  Errors errors;
  for (std::size_t family = 0; family < 3; ++family) {
    const Philox dither(key, purposes.of[family].dither), pre(key, purposes.of[family].pre_round);
    const auto& x = contents.in_steps.of[family];
    for (std::size_t at = 0; at < x.size(); ++at) {
      const EntryOfVector entry(at % 24, 24);
      const PairDraws d = pair_draws(at / 24, 1, 0, static_cast<std::uint32_t>(entry.place));
      const std::uint32_t level =
          ((dither(d.level_index)[d.level_word] >> d.level_bit) & 15u) ^ (entry.second ? 8u : 0u);
      const std::uint32_t h =
          (pre(d.pre_index)[d.pre_word] >> (entry.second ? d.second_bit : d.first_bit)) & 0xFFFFu;
      const std::int32_t q = math::quantise<double>(x[at], 1, math::EntryDraw{level, h});
      errors.of[family].push_back(math::dequantise<double>(q, level, 1) - x[at]);
    }
  }
  return errors;
}

/// What the library's own bodies decode to.
Errors sent_errors(const Sketched& s, const SentSketch& sent, const Contents& contents,
                   const Key& key) {
  const format::PairLayer layer{s.shape, s.rank};
  core::Carver sizes;
  cpu::PairFactors(layer, sizes);
  std::vector<std::byte> memory(sizes.bytes() + 64);
  core::Carver carver(memory);
  cpu::PairFactors factors(layer, carver);
  EXPECT_EQ(cpu::decode_pair_factors(sent.pairs(key), layer, kPrice, {}, key, nullptr, factors),
            Status::ok);
  EXPECT_EQ(factors.kept, kRank);
  std::vector<float> rows(s.residual.size());
  EXPECT_EQ(cpu::decode_atoms(sent.rows(key), AtomLayout::rows(24, 24), kPrice, key, rows.data(),
                              {}, nullptr),
            Status::ok);
  const double root = std::sqrt(24.0);
  Errors errors;
  for (std::size_t at = 0; at < 24 * kRank; ++at) {
    const auto add = [&](std::size_t family, float value, double truth) {
      // `truth` is what the content of so many steps stands for.
      const double steps = contents.in_steps.of[family][at];
      errors.of[family].push_back(steps == 0 ? 0
                                             : (static_cast<double>(value) / truth - 1) * steps);
    };
    add(0, factors.shorter[at], s.u(at / 24, at % 24) * root);
    add(1, factors.longer[at], s.v(at / 24, at % 24) / root);
    add(2, rows[at], static_cast<double>(s.residual[at]));
  }
  return errors;
}

/// Largest covariance of errors at the same place of two families, of what independent ones reach
/// with probability 1e-9.
template <typename Draw>
double worst_covariance(Draw draw) {
  constexpr std::uint32_t kDraws = 4000;
  std::vector<double> sums(3 * 24 * kRank);
  for (std::uint32_t step = 0; step < kDraws; ++step) {
    const Errors e = draw(Key{.seed = 21, .step = step});
    for (std::size_t at = 0; at < 24 * kRank; ++at) {
      for (std::size_t pair = 0; pair < 3; ++pair)
        sums[3 * at + pair] += e.of[pair][at] * e.of[(pair + 1) % 3][at];
    }
  }
  // An error has a variance of at most 1/12 + 1/768 squared steps, and is within 17/32 steps.
  const double variance = std::pow(1.0 / 12 + 1.0 / 768, 2), largest = std::pow(17.0 / 32, 2);
  const BernsteinFamily family(static_cast<double>(sums.size()), kFamilyError);
  double worst = 0;
  for (const double sum : sums)
    worst = std::max(worst, std::fabs(sum) / family.reach(kDraws * variance, largest));
  return worst;
}

TEST(SketchStatistics, FamiliesDrawOnTheirOwn) {
  const auto g = gaussian_matrix(kSquare, 1, 12);
  const Sketched s(g, kSquare, {kRank, 1}, {});
  const SentSketch sent(s, kPrice);
  const Contents contents(s);
  EXPECT_LT(worst_covariance([&](const Key& key) { return sent_errors(s, sent, contents, key); }),
            1);
  EXPECT_LT(worst_covariance([&](const Key& key) { return draw_errors(contents, {}, key); }), 1);
  // A purpose that two families share is seen.
  for (std::size_t family = 0; family < 3; ++family) {
    Purposes shared;
    shared.of[family].dither = shared.of[(family + 1) % 3].dither;
    EXPECT_GT(worst_covariance([&](const Key& key) { return draw_errors(contents, shared, key); }),
              1)
        << family;
  }
}

/// The words are those of the ledger: every error of a real body is the one they give.
TEST(SketchStatistics, DrawsAreWhereTheLedgerSays) {
  const auto g = gaussian_matrix(kSquare, 1, 12);
  const Sketched s(g, kSquare, {kRank, 1}, {});
  const SentSketch sent(s, kPrice);
  const Contents contents(s);
  for (std::uint32_t step = 0; step < 20; ++step) {
    const Key key{.seed = 3, .step = step, .tensor = 4, .worker = 5, .channel = 6};
    const Errors found = sent_errors(s, sent, contents, key),
                 expected = draw_errors(contents, {}, key);
    for (std::size_t family = 0; family < 3; ++family) {
      // A draw from elsewhere would move an error by a sixteenth of a step or more.
      for (std::size_t at = 0; at < 24 * kRank; ++at)
        ASSERT_NEAR(found.of[family][at], expected.of[family][at], 1e-3) << family << " " << at;
    }
  }
}

}  // namespace
}  // namespace atomo::test
