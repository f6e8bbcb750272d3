// SPDX-License-Identifier: Apache-2.0
/// \file
/// A count sketch: rows of cells, in each of which an entry is added to one cell with a random sign. Charikar, Chen, Farach-Colton,
/// "Finding Frequent Items in Data Streams", ICALP 2002; as gradients' messages in Ivkin, Rothchild, Ullah, Braverman, Stoica, Arora,
/// "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019 (arXiv 1903.04488), and Rothchild et al., "FetchSGD", ICML
/// 2020 (arXiv 2007.07682).
///
/// An entry's estimate is the median of what its cells say with its signs, or the mean; both are unbiased, since turning the entry's
/// signs and all others leaves the chances of errors and of their opposites equal. `top` keeps the share of largest estimates
/// alone, as the papers do with a memory: that is biased.
///
/// Cells are linear in the entries: of messages with equal hashes the cells add up. `hash=shared` takes hashes of an entry's number alone, the
/// same for all workers and steps, as FetchSGD does; then nothing is drawn, and one message is not unbiased. `hash=drawn` takes those
/// of the message's key.
///
/// Body: the cells, f32, row by row.
#include <algorithm>
#include <vector>

#include "catalogue/body.hpp"
#include "catalogue/definitions.hpp"

namespace atomo::catalogue {
namespace {

class CountSketch final : public OwnCodec {
 public:
  CountSketch(double cells, std::size_t rows, bool mean, double top, bool shared)
      : cells_(cells), rows_(rows), mean_(mean), top_(top), shared_(shared) {}

  Traits traits() const override {
    Traits t;
    t.fixed_size = t.bounded = true;
    if (shared_ || top_ < 1) return t;
    claim_unbiased(t);
    // A row errs by n / columns at most, a mean of rows by that over the rows. A median has at least (rows + 1) / 2 of the rows beyond it.
    const auto rows = static_cast<double>(rows_);
    t.omega = 1.001 / cells_ * (mean_ ? 1 : 2 * rows * rows / (rows + 1));
    return t;
  }

  std::size_t max_bytes(const Shape& shape) const override {
    return 4 * rows_ * columns(shape.elements());
  }

  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    const std::size_t wide = columns(x.size());
    std::vector<double> sums(rows_ * wide);
    Words words(layer.draws, 0);
    std::uint64_t hash = 1;
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t r = 0; r < rows_; ++r) {
        const Cell cell = cell_at(words, hash, wide);
        sums[r * wide + cell.column] += cell.times(x[i]);
      }
    Writer out(body);
    for (const double sum : sums) out.put(finite(sum));
    return out.bytes();
  }

  void decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const override {
    const std::size_t wide = columns(y.size());
    Reader in(body);
    std::vector<float> cells(rows_ * wide);
    in.get_all(cells);
    in.end();
    Words words(layer.draws, 0);
    std::uint64_t hash = 1;
    Estimates told{};
    for (std::size_t first = 0; first < y.size(); first += kLanes) {
      const std::span<float> out = y.subspan(first, std::min(kLanes, y.size() - first));
      for (std::size_t l = 0; l < out.size(); ++l)
        for (std::size_t r = 0; r < rows_; ++r) {
          const Cell cell = cell_at(words, hash, wide);
          told[r][l] = cell.times(cells[r * wide + cell.column]);
        }
      if (mean_)
        means(told, out);
      else
        medians(told, out);
    }
    if (top_ < 1) keep_largest(y);
  }

 private:
  static constexpr std::size_t kMostRows = 9;
  static constexpr std::size_t kLanes = 64;  ///< entries that are estimated at once

  /// What the rows say of as many entries.
  using Estimates = float[kMostRows][kLanes];

  struct Cell {
    std::size_t column;
    std::uint32_t sign;  ///< the bit, where an f32 has it

    [[nodiscard]] float times(float v) const noexcept {
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) ^ sign);
    }
  };

  std::size_t columns(std::size_t n) const noexcept {
    return static_cast<std::size_t>(
        std::ceil(cells_ * static_cast<double>(n) / static_cast<double>(rows_)));
  }

  /// Of a drawn word, or of the next of a fixed sequence (Weyl's, mixed): the sign is the lowest bit.
  Cell cell_at(Words& words, std::uint64_t& hash, std::size_t wide) const noexcept {
    const std::uint64_t word =
        shared_ ? cell_of(0, hash++, std::uint64_t{1} << 32) : std::uint64_t{words.next()};
    return {static_cast<std::size_t>((word >> 1) * wide >> 31), static_cast<std::uint32_t>(word)
                                                                    << 31};
  }

  void means(const Estimates& told, std::span<float> out) const noexcept {
    for (std::size_t l = 0; l < out.size(); ++l) {
      double sum = 0;
      for (std::size_t r = 0; r < rows_; ++r) sum += told[r][l];
      out[l] = finite(sum / static_cast<double>(rows_));
    }
  }

  /// Sorts the rows of every lane by exchanges of neighbours, which leave equal ones in their order: zeros keep their signs.
  void medians(Estimates& told, std::span<float> out) const noexcept {
    for (std::size_t round = 0; round < rows_; ++round)
      for (std::size_t r = round % 2; r + 1 < rows_; r += 2)
        for (std::size_t l = 0; l < kLanes; ++l) {
          const float a = told[r][l], b = told[r + 1][l];
          const float low = b < a ? b : a, high = b < a ? a : b;
          told[r][l] = low;
          told[r + 1][l] = high;
        }
    std::copy_n(told[rows_ / 2], out.size(), out.begin());
  }

  /// Leaves the largest magnitudes, of equal ones the first.
  void keep_largest(std::span<float> y) const {
    const auto kept = static_cast<std::size_t>(std::ceil(top_ * static_cast<double>(y.size())));
    std::vector<float> magnitudes(y.size());
    std::ranges::transform(y, magnitudes.begin(), [](float v) { return std::fabs(v); });
    std::nth_element(magnitudes.begin(), magnitudes.begin() + static_cast<std::ptrdiff_t>(kept - 1),
                     magnitudes.end(), std::greater<>());
    const float least = magnitudes[kept - 1];
    std::size_t equal = kept;
    for (const float v : y) equal -= std::fabs(v) > least ? 1u : 0u;
    for (float& v : y) {
      if (std::fabs(v) > least) continue;
      if (std::fabs(v) == least && equal > 0)
        --equal;
      else
        v = 0;
    }
  }

  double cells_;
  std::size_t rows_;
  bool mean_;
  double top_;
  bool shared_;
};

}  // namespace

CodecDefinition countsketch_definition() {
  return {.name = "countsketch",
          .keys = "cells=F, rows=1|3|5|7|9, estimate=median|mean, top=F, hash=drawn|shared",
          .summary = "a linear sketch: cells of sums with random signs (FetchSGD)",
          .example = "countsketch:cells=0.1",
          .make = [](SpecKeys& keys) -> std::shared_ptr<const OwnCodec> {
            const double cells = keys.number("cells", 1e-4, 1);
            const auto rows = static_cast<std::size_t>(keys.integer("rows", 1, 9, 5));
            require(rows % 2 == 1, "rows= has to be odd");
            const bool mean = keys.choice("estimate", {"median", "mean"}, 0) == 1;
            const double top = keys.number("top", 1e-6, 1, 1);
            const bool shared = keys.choice("hash", {"drawn", "shared"}, 0) == 1;
            return std::make_shared<CountSketch>(cells, rows, mean, top, shared);
          }};
}

}  // namespace atomo::catalogue
