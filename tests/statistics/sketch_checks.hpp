// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Checks of the whole estimator of a sketch, over every outcome of its draws: pairs of dithered
/// factors and rows of what they leave, each drawn from the words that the format gives them. The
/// arithmetic is a type, whose default is the library's own; test_mutants.cpp has others.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "coding/duo_code_tables.hpp"
#include "core/philox.hpp"
#include "format/pair_body.hpp"
#include "math/selection.hpp"
#include "price/pair_costs.hpp"
#include "statistics/statistics_checks.hpp"
#include "support/sketch_support.hpp"

namespace atomo::test {

using namespace model;

struct SketchArithmetic {
  static constexpr Purpose kDitherU = Purpose::dither_u, kDitherV = Purpose::dither_v,
                           kDitherRow = Purpose::dither_row;
  static constexpr Purpose kPreRoundU = Purpose::pre_round_u, kPreRoundV = Purpose::pre_round_v,
                           kPreRoundRow = Purpose::pre_round_row;
  static constexpr Purpose kSelectPair = Purpose::select_pair, kSelectRow = Purpose::select_row;
  static constexpr Purpose kOmega = Purpose::sketch_omega;
  /// What is taken out of the matrix for a factor that is dithered with this step.
  static double taken_out(double factor, double /*step*/) { return factor; }
};

/// A word of the generator, or the part of one that an entry takes: purpose, vector, place in it.
using DrawnWord = std::tuple<Purpose, std::size_t, std::size_t>;

/// Where the draws of entry i of a vector stand: pairs of a tile share a level.
struct EntryOfVector {
  std::size_t place;
  bool second;
  EntryOfVector(std::size_t i, std::size_t length) {
    const std::size_t half = (std::min<std::size_t>(32, length - i / 32 * 32) + 1) / 2;
    second = i % 32 >= half;
    place = i / 32 * 16 + i % 32 - (second ? half : 0);
  }
};

/// A draw that was chosen: a level, and pre-rounding at either end of its range.
struct EdgeDraw {
  std::uint32_t level;
  bool up;
  template <typename Real>
  [[nodiscard]] Real uniform() const {
    return 1 +
           (static_cast<Real>(level) + (up ? Real{1} - static_cast<Real>(0x1p-36) : Real{0})) / 16;
  }
};

/// Words with their outcomes: levels are 16 equally likely ones; a uniform in [0, 1) falls between
/// the points at which something changes.
class DrawnWords {
 public:
  void add_level(const DrawnWord& word) { points_[word] = {}; }
  void add_uniform(const DrawnWord& word, double point) {
    std::vector<double>& points = points_[word];
    if (points.empty()) points = {0};
    if (point > 0 && point < 1) points.push_back(point);
  }
  [[nodiscard]] bool has(const DrawnWord& word) const { return points_.contains(word); }
  /// Calls visit(chance, word -> level or lower end of the interval) for every outcome.
  template <typename Visit>
  void for_each(Visit visit) {
    std::vector<std::uint32_t> sizes;
    std::vector<std::vector<double>> chances, values;
    std::map<DrawnWord, std::size_t> slots;
    for (auto& [word, points] : points_) {
      std::sort(points.begin(), points.end());
      slots[word] = sizes.size();
      chances.emplace_back();
      values.emplace_back();
      const std::size_t outcomes = points.empty() ? kLevels : points.size();
      for (std::size_t k = 0; k < outcomes; ++k) {
        const double end = k + 1 < points.size() ? points[k + 1] : 1;
        chances.back().push_back(points.empty() ? 1.0 / kLevels : end - points[k]);
        values.back().push_back(points.empty() ? static_cast<double>(k) : points[k]);
      }
      sizes.push_back(static_cast<std::uint32_t>(outcomes));
    }
    for_each_tuple(sizes, [&](std::span<const std::uint32_t> d) {
      double chance = 1;
      for (std::size_t s = 0; s < d.size(); ++s) chance *= chances[s][d[s]];
      if (chance > 0)
        visit(chance, [&](const DrawnWord& word) {
          const std::size_t s = slots.at(word);
          return values[s][d[s]];
        });
    });
  }

 private:
  std::map<DrawnWord, std::vector<double>> points_;
};

/// A number that is dithered: its content, its step, and its words.
class DitheredNumber {
 public:
  /// `content` is read back as `unit` times it.
  DitheredNumber(double content, double step, double unit, DrawnWord level, bool second,
                 DrawnWord pre_round)
      : content_(content),
        step_(step),
        unit_(unit),
        level_(level),
        pre_round_(pre_round),
        second_(second) {
    // A word holds the pre-rounding of both entries of a pair, in a half each.
    std::get<2>(pre_round_) = 2 * std::get<2>(pre_round_) + (second ? 1 : 0);
    const double y = 16 * content * (1 / step);
    fraction_ = y - std::floor(y);
  }
  void add_to(DrawnWords& words) const {
    words.add_level(level_);
    words.add_uniform(pre_round_, 1 - fraction_);
  }
  template <typename Drawn>
  [[nodiscard]] double value(Drawn drawn) const {
    const auto level = static_cast<std::uint32_t>(drawn(level_)) ^ (second_ ? 8u : 0u);
    const bool up = fraction_ > 0 && drawn(pre_round_) >= 1 - fraction_;
    const std::int32_t q = math::quantise<double>(content_, 1 / step_, EdgeDraw{level, up});
    return unit_ * math::dequantise<double>(q, level, step_);
  }
  [[nodiscard]] double mean() const { return unit_ * content_; }
  [[nodiscard]] double mean_square() const {
    const double variance =
        ((1 - 1.0 / 256) / 12 + fraction_ * (1 - fraction_) / 256) * step_ * step_;
    return unit_ * unit_ * (content_ * content_ + variance);
  }

 private:
  double content_, step_, unit_, fraction_;
  DrawnWord level_, pre_round_;
  bool second_;
};

/// A product of dithered numbers that is there when a systematic draw keeps it.
struct DrawnTerm {
  std::vector<DitheredNumber> factors;
  double chance = 1;  ///< of being kept
  double before = 0;  ///< of the chunk's chances, those walked before this one
  DrawnWord selection;

  void add_to(DrawnWords& words) const {
    for (const DitheredNumber& f : factors) f.add_to(words);
    if (chance == 1) return;
    // Kept when the running sum passes an integer here.
    for (const double at : {1 - before, 1 - before - chance})
      words.add_uniform(selection, at - std::floor(at));
  }
  template <typename Drawn>
  [[nodiscard]] double value(Drawn drawn) const {
    if (chance < 1) {
      // The middle of the interval would do as well as its end, which may stand on the edge.
      const double sum = drawn(selection) + before + 1e-9;
      if (std::floor(sum + chance) == std::floor(sum)) return 0;
    }
    double product = 1;
    for (const DitheredNumber& f : factors) product *= f.value(drawn);
    return product;
  }
  [[nodiscard]] double mean() const {
    double product = chance;
    for (const DitheredNumber& f : factors) product *= f.mean();
    return product;
  }
  [[nodiscard]] double variance() const {
    double product = chance;
    for (const DitheredNumber& f : factors) product *= f.mean_square();
    return product - mean() * mean();
  }
};

/// The terms of one entry of a sketched matrix at a price, as the library chooses them.
template <typename Arithmetic>
std::vector<DrawnTerm> terms_of_entry(const Sketched& s, float price, std::size_t entry) {
  const MatrixShape& shape = s.shape;
  const std::size_t m = shape.shorter(), n = shape.longer();
  const std::size_t i = s.first_of(entry), j = s.second_of(entry), row = entry / shape.columns;
  const double root = std::sqrt(static_cast<double>(m)), a = static_cast<double>(price);
  const EntryOfVector at_u(i, m), at_v(j, n), at_row(entry % shape.columns, shape.columns);
  std::vector<DrawnTerm> terms;
  std::vector<double> residual(s.residual.begin(), s.residual.end());
  double before = 0;
  for (std::size_t k = 0; k < s.rank; ++k) {
    if (s.sigma[k] == 0) continue;
    const cpu::AtomChoice choice =
        cpu::choose_atom(s.sigma[k] * price::pair_amplitude(shape), price);
    const format::PairStep steps = format::pair_step(shape, choice.atom_class);
    const double chance = choice.atom_class != 0 ? 1 : choice.probability / math::kTwo32;
    const double step_u = static_cast<double>(steps.shorter.size),
                 step_v = a * static_cast<double>(steps.longer.size);
    // The content of an uncertain pair's second factor is divided by its chance.
    terms.push_back(
        {{DitheredNumber(s.u(k, i) * root, step_u, 1, {Arithmetic::kDitherU, k, at_u.place},
                         at_u.second, {Arithmetic::kPreRoundU, k, at_u.place}),
          DitheredNumber(s.v(k, j) / root / chance, step_v, 1,
                         {Arithmetic::kDitherV, k, at_v.place}, at_v.second,
                         {Arithmetic::kPreRoundV, k, at_v.place})},
         chance,
         before,
         {Arithmetic::kSelectPair, 0, 0}});
    before += chance < 1 ? chance : 0;
    for (std::size_t e = 0; e < residual.size(); ++e) {
      const double u = s.u(k, s.first_of(e)), v = s.v(k, s.second_of(e));
      residual[e] +=
          u * v - Arithmetic::taken_out(u, step_u / root) * Arithmetic::taken_out(v, step_v * root);
    }
  }
  double of_rows = 0;
  for (std::size_t t = 0; t <= row; ++t) {
    double squares = 0;
    for (std::size_t c = 0; c < shape.columns; ++c)
      squares += residual[t * shape.columns + c] * residual[t * shape.columns + c];
    if (squares == 0) continue;
    const cpu::AtomChoice choice =
        cpu::choose_atom(std::sqrt(squares / static_cast<double>(shape.columns)), price);
    const double chance = choice.atom_class != 0 ? 1 : choice.probability / math::kTwo32;
    if (t == row) {
      const double step = a * static_cast<double>(coding::kAtomClasses[choice.atom_class].delta);
      terms.push_back({{DitheredNumber(residual[entry] / chance, step, 1,
                                       {Arithmetic::kDitherRow, t, at_row.place}, at_row.second,
                                       {Arithmetic::kPreRoundRow, t, at_row.place})},
                       chance,
                       of_rows,
                       {Arithmetic::kSelectRow, 0, 0}});
    }
    of_rows += chance < 1 ? chance : 0;
  }
  return terms;
}

/// Mean and second moment of an entry, where the lowest bit of a word of the random start says
/// which of two sketches is sent.
template <typename Arithmetic>
std::array<double, 2> moments_of_entry(const std::array<Sketched, 2>& sketches, float price,
                                       std::size_t entry) {
  const DrawnWord omega{Arithmetic::kOmega, 0, 0};
  double mean = 0, square = 0;
  for (unsigned bit = 0; bit < 2; ++bit) {
    const auto terms = terms_of_entry<Arithmetic>(sketches[bit], price, entry);
    const auto expect = [&](const std::vector<const DrawnTerm*>& product) {
      DrawnWords words;
      for (const DrawnTerm* t : product) t->add_to(words);
      const bool shared = words.has(omega);
      long double sum = 0;
      words.for_each([&](double chance, auto drawn) {
        if (shared && (static_cast<unsigned>(drawn(omega)) & 1u) != bit) return;
        double value = shared ? chance : chance / 2;
        for (const DrawnTerm* t : product) value *= t->value(drawn);
        sum += static_cast<long double>(value);
      });
      return static_cast<double>(sum);
    };
    for (const DrawnTerm& a : terms) {
      mean += expect({&a});
      for (const DrawnTerm& b : terms) {
        if (&b < &a) continue;
        square += (&a == &b ? 1 : 2) * expect(&a == &b ? std::vector{&a, &a} : std::vector{&a, &b});
      }
    }
  }
  return {mean, square};
}

/// A small matrix, two sketches of it, and a price.
struct SketchedTwice {
  std::vector<float> g;
  MatrixShape shape;
  std::array<Sketched, 2> sketches;
  float price;
};

/// Of every kind of basis: drawn, random, of another matrix, with a zero column; with pairs and
/// rows that are certain and that are not.
inline std::vector<SketchedTwice> small_sketches() {
  std::vector<SketchedTwice> all;
  const auto add = [&](const MatrixShape& shape, std::size_t rank, float price,
                       const std::vector<float>& basis) {
    const auto g = gaussian_matrix(shape, 1, 3 * shape.rows + shape.columns);
    all.push_back(
        {g, shape, {Sketched(g, shape, {rank, 1}, {.seed = 5}), Sketched(g, shape, basis)}, price});
  };
  for (const MatrixShape& shape : {MatrixShape{2, 2}, {2, 3}, {3, 2}, {3, 4}}) {
    const std::size_t columns = shape.columns;
    const auto other = gaussian_matrix(shape, 1, 99);
    for (const float price : {0.125f, 2.0f}) {
      add(shape, 1, price, random_basis(columns, 1, 7));
      add(shape, 1, price, Sketched(other, shape, {1, 1}, {}).basis());
      add(shape, 1, price, std::vector<float>(columns));
    }
  }
  auto half_zero = random_basis(3, 2, 8);
  half_zero[0] = half_zero[2] = half_zero[4] = 0;
  add({2, 3}, 2, 0.125f, half_zero);
  return all;
}

/// E = x, and no more error than that of pairs and rows drawn on their own, in every entry.
template <typename Arithmetic = SketchArithmetic>
std::string check_sketch() {
  for (const SketchedTwice& c : small_sketches()) {
    for (std::size_t e = 0; e < c.g.size(); ++e) {
      const auto [mean, square] = moments_of_entry<Arithmetic>(c.sketches, c.price, e);
      double truth = 0, expected = 0;
      for (const Sketched& s : c.sketches) {
        double sum = 0, variance = 0;
        for (const DrawnTerm& t : terms_of_entry<SketchArithmetic>(s, c.price, e)) {
          sum += t.mean();
          variance += t.variance();
        }
        truth += sum / 2;
        expected += (variance + sum * sum) / 2;
      }
      const double x = static_cast<double>(c.g[e]);
      if (std::fabs(truth - x) > 1e-6)
        return complaint("entry ", e, ": pairs and residual sum to ", truth, " for ", x);
      if (!is_exact(mean, truth, 8))
        return complaint(c.shape.rows, " x ", c.shape.columns, " at ", c.price, ", entry ", e,
                         ": bias ", mean - truth);
      // Systematic selection ties pairs together where there are two uncertain ones: none here.
      if (!is_exact(square, expected, 64))
        return complaint(c.shape.rows, " x ", c.shape.columns, " at ", c.price, ", entry ", e,
                         ": second moment ", square, " for ", expected);
    }
  }
  return {};
}

}  // namespace atomo::test
