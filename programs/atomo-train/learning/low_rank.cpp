// SPDX-License-Identifier: Apache-2.0
/// \file
/// Products with M, which each rank has for itself, are BLAS's. What all ranks compute from the same
/// numbers is made of plain loops, whose roundings do not depend on the processor: BLAS chooses its
/// kernels by it, and replicas on unlike machines would part. Orthonormal columns are those of a
/// modified Gram-Schmidt in f64, done twice.

#include "learning/low_rank.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "learning/finite.hpp"

namespace train {
namespace {

/// Of the norm of the largest column of Q, or of a column of P before others are taken from it: what
/// is below is rounding.
constexpr double kRounding = 1e-6;

int to_int(std::size_t n) noexcept { return static_cast<int>(n); }

/// In four sums side by side.
template <class T>
double dot(const T* a, const T* b, std::size_t n) {
  double sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane)
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Sums of four uniform numbers, of mean 0 and variance 4/3: about normal, and exact in f32.
void draw(std::span<float> column, std::uint64_t seed, std::uint32_t step, std::size_t layer,
          std::size_t place) {
  constexpr float kMean = 4 * 65535 / 2.0F, kUnit = 0x1p-15F;
  std::seed_seq seeds{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                      step, static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(place)};
  std::mt19937_64 random(seeds);
  for (float& x : column) {
    const std::uint64_t bits = random();
    std::uint32_t sum = 0;
    for (int part = 0; part < 4; ++part)
      sum += static_cast<std::uint32_t>(bits >> (16 * part) & 0xFFFF);
    x = (static_cast<float>(sum) - kMean) * kUnit;
  }
}

}  // namespace

std::vector<LowRankLayer> layers_to_factor(std::span<const atomo::LayerSpec> layers,
                                           std::size_t rank, double min_ratio) {
  std::vector<LowRankLayer> found;
  std::size_t offset = 0, p_at = 0, q_at = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto dims = layers[i].shape.dims();
    const std::size_t elements = layers[i].shape.elements();
    const std::size_t rows = dims.size() > 1 ? static_cast<std::size_t>(dims[0]) : 1;
    const std::size_t columns = elements / std::max<std::size_t>(rows, 1);
    const std::size_t r = std::min({rank, rows, columns});
    const double factors = static_cast<double>(r) * static_cast<double>(rows + columns);
    if (rows > 1 && r > 0 && static_cast<double>(elements) > min_ratio * factors) {
      found.push_back({i, offset, rows, columns, r, p_at, q_at});
      p_at += rows * r;
      q_at += columns * r;
    }
    offset += elements;
  }
  return found;
}

LowRank::LowRank(std::vector<LowRankLayer> layers) : layers_(std::move(layers)) {
  if (layers_.empty()) return;
  const auto& last = layers_.back();
  p_elements_ = last.p_at + last.rows * last.rank;
  kept_.resize(last.q_at + last.columns * last.rank);
}

void LowRank::begin_with(const LowRankLayer& of, std::uint64_t seed, std::uint32_t step) {
  const float* const kept = kept_.data() + of.q_at;
  start_.assign(kept, kept + of.columns * of.rank);
  std::vector<double> norms(of.rank);
  for (std::size_t r = 0; r < of.rank; ++r) {
    const float* const column = kept + r * of.columns;
    norms[r] = std::sqrt(dot(column, column, of.columns));
  }
  const double largest = *std::ranges::max_element(norms);
  for (std::size_t r = 0; r < of.rank; ++r) {
    const auto column = std::span(start_).subspan(r * of.columns, of.columns);
    if (norms[r] > kRounding * largest) {
      for (float& x : column) x = static_cast<float>(x / norms[r]);
    } else {
      draw(column, seed, step, of.layer, r);
    }
  }
}

void LowRank::find_p(std::span<const float> gradients, std::uint64_t seed, std::uint32_t step,
                     std::span<float> p) {
  for (const auto& of : layers_) {
    begin_with(of, seed, step);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, to_int(of.rank), to_int(of.rows),
                to_int(of.columns), 1.0F, start_.data(), to_int(of.columns),
                gradients.data() + of.offset, to_int(of.columns), 0.0F, p.data() + of.p_at,
                to_int(of.rows));
  }
}

void LowRank::orthonormalise(std::span<float> p) {
  for (const auto& of : layers_) {
    const auto columns = p.subspan(of.p_at, of.rows * of.rank);
    if (!all_finite(columns)) {
      std::ranges::fill(columns, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    basis_.assign(columns.begin(), columns.end());
    for (std::size_t r = 0; r < of.rank; ++r) {
      double* const column = basis_.data() + r * of.rows;
      const double before = std::sqrt(dot(column, column, of.rows));
      for (int pass = 0; pass < 2; ++pass) {
        for (std::size_t other = 0; other < r; ++other) {
          const double* const known = basis_.data() + other * of.rows;
          const double along = dot(column, known, of.rows);
          for (std::size_t i = 0; i < of.rows; ++i) column[i] -= along * known[i];
        }
      }
      const double left = std::sqrt(dot(column, column, of.rows));
      const double factor = left > kRounding * before ? 1 / left : 0;
      for (std::size_t i = 0; i < of.rows; ++i) column[i] *= factor;
    }
    std::ranges::transform(basis_, columns.begin(), [](double x) { return static_cast<float>(x); });
  }
}

void LowRank::find_q(std::span<const float> gradients, std::span<const float> p,
                     std::span<float> q) const {
  for (const auto& of : layers_) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, to_int(of.rank), to_int(of.columns),
                to_int(of.rows), 1.0F, p.data() + of.p_at, to_int(of.rows),
                gradients.data() + of.offset, to_int(of.columns), 0.0F, q.data() + of.q_at,
                to_int(of.columns));
  }
}

void LowRank::add_products(float alpha, std::span<const float> p, std::span<const float> q,
                           std::span<float> gradients) const {
  for (const auto& of : layers_) {
    for (std::size_t i = 0; i < of.rows; ++i) {
      float* const row = gradients.data() + of.offset + i * of.columns;
      for (std::size_t r = 0; r < of.rank; ++r) {
        const float factor = alpha * p[of.p_at + r * of.rows + i];
        const float* const column = q.data() + of.q_at + r * of.columns;
        for (std::size_t j = 0; j < of.columns; ++j) row[j] += factor * column[j];
      }
    }
  }
}

void LowRank::keep(std::span<const float> q) {
  for (const auto& of : layers_) {
    const auto found = q.subspan(of.q_at, of.columns * of.rank);
    if (all_finite(found))
      std::ranges::copy(found, kept_.begin() + static_cast<std::ptrdiff_t>(of.q_at));
  }
}

}  // namespace train
