// SPDX-License-Identifier: Apache-2.0
/// What TF32 in the products that find a sketch's bases costs: the expected error of a message at
/// its budget, over every outcome of its draws, beside that of a sketch by f32 from the same start.
/// And what it must not touch: pairs and residual sum to the matrix, norms are never too small.
#include <mma.h>

#include <iostream>
#include <map>

#include "price/atom_costs.hpp"
#include "price/price_input.hpp"
#include "price/price_math.hpp"
#include "sound_sketches.hpp"
#include "statistics/predictions.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

/// Bins of atoms of one weight each.
std::vector<price::PriceBin> bins_of(const std::vector<double>& amplitudes, std::uint64_t weight) {
  std::map<std::uint32_t, price::PriceBin> bins;
  for (const double a : amplitudes) {
    if (a == 0) continue;
    const std::uint32_t key = price::amplitude_key(a);
    price::PriceBin& bin = bins[key];
    bin.key = key;
    bin.count += 1;
    bin.weight += weight;
  }
  std::vector<price::PriceBin> found;
  for (const auto& [key, bin] : bins) found.push_back(bin);
  return found;
}

/// A device's sketch as the CPU has its own.
test::Sketched on_host(const Matrix& matrix, const Sketch& sketch, const Key& key) {
  test::Sketched found(matrix.values, matrix.shape, {matrix.rank, 1}, key);
  found.shorter = sketch.shorter;
  found.longer = sketch.longer;
  found.residual = sketch.residual;
  found.sigma = sketch.sigma;
  found.exponent = exponent_of(matrix, sketch);
  found.residual_rms = sketch.residual_rms;
  const std::uint64_t columns = matrix.shape.columns;
  for (std::uint64_t i = 0; i < matrix.shape.rows; ++i) {
    double squares = 0;
    for (std::uint64_t j = i * columns; j < (i + 1) * columns; ++j)
      squares += std::pow(static_cast<double>(sketch.residual[j]), 2);
    if (sketch.measured[i] != 0)
      found.residual_rms[i] += std::sqrt(squares / static_cast<double>(columns));
  }
  return found;
}

/// A sketch as the search for a price and the predictions take it.
class Priced {
 public:
  explicit Priced(test::Sketched sketched)
      : sketched_(std::move(sketched)),
        layout_(format::AtomLayout::rows(sketched_.shape.rows, sketched_.shape.columns)),
        pair_costs_(price::pair_costs(sketched_.shape)),
        row_costs_(price::price_costs(layout_)) {
    std::vector<double> pairs = sketched_.sigma;
    for (double& a : pairs) a *= price::pair_amplitude(sketched_.shape);
    const std::vector<double>& rows = sketched_.residual_rms;
    const std::uint64_t columns = sketched_.shape.columns;
    pair_bins_ = bins_of(pairs, price::pair_weight(sketched_.shape));
    row_bins_ = bins_of(rows, columns + columns % 2);
    input_.forms[0].pairs = {pair_bins_, &pair_costs_, sketched_.rank,
                             *std::max_element(pairs.begin(), pairs.end())};
    input_.forms[0].atoms = {row_bins_, &row_costs_, sketched_.shape.rows,
                             *std::max_element(rows.begin(), rows.end())};
  }
  Priced(const Priced&) = delete;
  Priced& operator=(const Priced&) = delete;

  [[nodiscard]] float price(double bits_an_entry) const {
    const price::PriceInput* const layers[] = {&input_};
    return price::find_price(layers, bits_an_entry * static_cast<double>(layout_.elements())).price;
  }
  [[nodiscard]] double bits(float price) const {
    return static_cast<double>(input_.expected(price).bits_256) / 256;
  }
  [[nodiscard]] double variance(float price) const {
    const Shape shape{static_cast<std::int64_t>(sketched_.shape.rows),
                      static_cast<std::int64_t>(sketched_.shape.columns)};
    return test::predict_sketch(sketched_, shape, price, 0).total;
  }
  /// The largest entry of what pairs and residual lack for the matrix.
  [[nodiscard]] double bias(const Matrix& matrix) const {
    const std::vector<double> sum = sketched_.sum();
    double largest = 0;
    for (std::size_t i = 0; i < sum.size(); ++i)
      largest = std::max(largest, std::fabs(sum[i] - static_cast<double>(matrix.values[i])));
    return largest;
  }
  /// The mistake of a residual whose product is in TF32.
  void subtract_in_tf32(const Matrix& matrix) {
    const auto rounded = [](double v) {
      return static_cast<double>(nvcuda::wmma::__float_to_tf32(static_cast<float>(v)));
    };
    for (std::size_t i = 0; i < matrix.values.size(); ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < sketched_.rank; ++k)
        sum += rounded(sketched_.u(k, sketched_.first_of(i))) *
               rounded(sketched_.v(k, sketched_.second_of(i)));
      sketched_.residual[i] = static_cast<float>(static_cast<double>(matrix.values[i]) - sum);
    }
  }

 private:
  test::Sketched sketched_;
  format::AtomLayout layout_;
  price::PriceCosts pair_costs_, row_costs_;
  std::vector<price::PriceBin> pair_bins_, row_bins_;
  price::PriceInput input_;
};

constexpr std::uint64_t kStarts = 4;

/// Of the expected errors of messages at a budget, averaged over starts: what another way to find
/// the bases adds, as a share. Both are taken at the price of f32; bits that the other needs more
/// there are counted as the error that they would save, for prices themselves stand 128 an octave.
template <typename Other>
double added_error(const Matrix& matrix, double budget, Other other) {
  double f32 = 0, more = 0;
  for (std::uint64_t seed = 0; seed < kStarts; ++seed) {
    const Key key{.seed = seed, .step = 2};
    const Priced before(on_host(matrix, decompose_with(TensorVectors::whole, matrix, key), key));
    const Priced after(other(key));
    const float price = before.price(budget), next = price * 1.125f;
    const double saved =
        (before.variance(next) - before.variance(price)) / (before.bits(price) - before.bits(next));
    f32 += before.variance(price);
    more += after.variance(price) - before.variance(price) +
            saved * (after.bits(price) - before.bits(price));
  }
  return more / f32;
}
/// `bits`: of mantissa, that tensor cores multiply.
double added_by_tf32(const Matrix& matrix, double budget, unsigned bits = 10) {
  return added_error(matrix, budget, [&](const Key& key) {
    const unsigned usual = std::exchange(nvcuda::wmma::mantissa_bits, bits);
    const Sketch sketch = decompose_with(TensorVectors::rounded, matrix, key);
    nvcuda::wmma::mantissa_bits = usual;
    return on_host(matrix, sketch, key);
  });
}

// ---- matrices

/// Singular values that fall as those of a gradient of attention, and noise beneath them.
Matrix of_transformer() {
  std::vector<double> weights;
  for (int k = 1; k <= 40; ++k) weights.push_back(1.0 / k);
  Matrix matrix = sum_of_products({96, 288}, 32, weights, 5);
  const auto noise = normal(matrix.values.size(), 77);
  for (std::size_t i = 0; i < noise.size(); ++i) matrix.values[i] += 0.05f * noise[i];
  return matrix;
}
Matrix ill_conditioned() {
  std::vector<double> weights;
  for (int k = 0; k < 24; ++k) weights.push_back(std::pow(10.0, -k / 3.0));
  return sum_of_products({72, 90}, 24, weights);
}
/// Entries of nearly one size, whose roundings are not independent of one another.
Matrix of_one_size() {
  Matrix matrix{{64, 120}, 8, normal(64 * 120, 9), DType::f32};
  for (float& v : matrix.values) v = 1.2f + 0.1f * v;
  return matrix;
}
/// Rows that are long, entries of one sign and nearly one size, so that what cutting takes off sums adds
/// up; more vectors than are multiplied without tensor cores.
Matrix of_long_rows() {
  Matrix matrix{{40, 6000}, 24, normal(40 * 6000, 19), DType::f32};
  for (float& v : matrix.values) v = 1.2f + 0.1f * v;
  return matrix;
}
/// Of few examples: no noise at all, of which a basis that is rounded leaves some.
Matrix of_few_examples() { return sum_of_products({60, 100}, 12, std::vector<double>(8, 1.0), 3); }

struct Family {
  const char* name;
  Matrix matrix;
};
std::vector<Family> families() {
  return {{"low rank and noise", falling({80, 130}, 16)},
          {"transformer", of_transformer()},
          {"ill-conditioned", ill_conditioned()},
          {"one size", of_one_size()},
          {"few examples", of_few_examples()}};
}

// ---- tests

/// Over every outcome of the draws, so that only the starts are a sample, the same for both.
TEST(SketchPrecision, Tf32AddsNoError) {
  for (const Family& family : families()) {
    for (const double budget : {0.5, 2.0}) {
      const double added = added_by_tf32(family.matrix, budget);
      std::cout << "[ added    ] " << family.name << ", " << budget << " bits: " << added << "\n";
      EXPECT_LT(std::fabs(added), 0.005) << family.name << ", " << budget << " bits";
    }
  }
}

/// Operands of eight bits of mantissa are seen.
TEST(SketchPrecision, FewerBitsAreSeen) {
  const double added = added_by_tf32(ill_conditioned(), 0.5, 8);
  const double more = added_by_tf32(ill_conditioned(), 2, 8);
  EXPECT_GT(added, 0.01);
  EXPECT_GT(more, 0.5);
}

/// Why entries are split: a matrix that is rounded once has other rows. Its basis, for the matrix.
TEST(SketchPrecision, RoundedMatricesAreSeen) {
  const Matrix matrix = ill_conditioned();
  Matrix rounded = matrix;
  for (float& v : rounded.values) v = nvcuda::wmma::__float_to_tf32(v);
  const auto by_rounded = [&](const Key& key) {
    const test::Sketched found(rounded.values, matrix.shape, {matrix.rank, 1}, key);
    return test::Sketched(matrix.values, matrix.shape, found.basis());
  };
  const double added = added_error(matrix, 0.5, by_rounded),
               more = added_error(matrix, 2, by_rounded);
  std::cout << "[ added    ] by a rounded matrix: " << added << ", at 2 bits " << more << "\n";
  EXPECT_GT(added, 0.005);
  EXPECT_GT(more, 0.2);
}

/// What is sent sums to the matrix, norms are those of the rows, and all of it is sound: the bases
/// alone are found in TF32. A residual whose product is in TF32 too would be biased.
TEST(SketchPrecision, OnlyBasesAreInTf32) {
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    const Matrix& matrix = family.matrix;
    const Key key{.seed = 3};
    const Sketch sketch = decompose_with(TensorVectors::rounded, matrix, key);
    expect_orthonormal(matrix, sketch);
    expect_exact_residual(matrix, sketch);
    expect_rms(matrix, sketch);
    float largest = 0;
    for (const float v : matrix.values) largest = std::max(largest, std::fabs(v));
    const double rounding = 0x1p-20 * static_cast<double>(largest);
    Priced sent(on_host(matrix, sketch, key));
    EXPECT_LT(sent.bias(matrix), rounding);
    sent.subtract_in_tf32(matrix);
    EXPECT_GT(sent.bias(matrix), 16 * rounding);
  }
}

/// Coordinates of rows come from tensor cores too, eight terms at a time, of entries and vectors that
/// are split: nothing is worse where these cut their sums off.
TEST(SketchPrecision, HoldsWhereTensorCoresTruncate) {
  const Matrix matrices[] = {of_transformer(), ill_conditioned(), of_long_rows()};
  for (const Matrix& matrix : matrices) {
    nvcuda::wmma::truncates = true;
    const Sketch sketch = decompose_with(TensorVectors::rounded, matrix);
    nvcuda::wmma::truncates = false;
    SCOPED_TRACE(std::to_string(matrix.shape.columns) + " columns");
    expect_orthonormal(matrix, sketch);
    expect_exact_residual(matrix, sketch);
    expect_rms(matrix, sketch);
  }
}

/// Why the coordinates of rows are not found with vectors rounded to TF32: by Pythagoras the norm of what is left of a
/// row is |t|^2 - |k|^2, and would come out less than it is.
TEST(SketchPrecision, CoordinatesInTf32WouldMakeNormsTooSmall) {
  const Matrix matrix = falling({80, 130}, 16);
  const Sketch sketch = decompose_with(TensorVectors::rounded, matrix);
  const std::uint64_t columns = matrix.shape.columns;
  const double error = math::square_error(columns);
  const auto rounded = [](double v) {
    return static_cast<double>(nvcuda::wmma::__float_to_tf32(static_cast<float>(v)));
  };
  std::uint64_t too_small = 0;
  for (std::uint64_t i = 0; i < matrix.shape.rows; ++i) {
    const float* const row = &matrix.values[i * columns];
    std::vector<double> left(row, row + columns);
    double taken = 0;
    for (std::uint64_t k = 0; k < matrix.rank; ++k) {
      // Along the columns' side, of norm 1.
      const auto basis = [&](std::uint64_t j) {
        return std::ldexp(static_cast<double>(sketch.longer[k * columns + j]),
                          exponent_of(matrix, sketch)) /
               sketch.sigma[k];
      };
      double coordinate = 0;
      for (std::uint64_t j = 0; j < columns; ++j)
        coordinate += rounded(static_cast<double>(row[j])) * rounded(basis(j));
      taken += coordinate * coordinate;
      for (std::uint64_t j = 0; j < columns; ++j) left[j] -= coordinate * basis(j);
    }
    double square = 0;
    for (const double v : left) square += v * v;
    const auto found = math::residual_rms(sketch.row_rms[i], taken, columns, error);
    const double own = std::sqrt(square / static_cast<double>(columns));
    too_small += found.has_digits && found.rms < own ? 1 : 0;
  }
  EXPECT_GT(too_small, matrix.shape.rows / 4);
}

}  // namespace
}  // namespace atomo::cuda
