// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Norms of f32 arrays. Sums are taken in f64, where |x| and x^2 are exact, in one order that
/// depends on n alone:
///  - a segment of 1,024 entries: entry i is added to lane i mod 32 in ascending i, then lanes fold
///  32 -> 16 -> ... -> 1
///    (lane j + lane j + half);
///  - segments: a binary tree over their numbers, subtrees aligned to powers of two, left + right;
///  the incomplete ones
///    at the end are joined from the right.
///
/// A norm is Inf or NaN exactly where an entry is: sums in f64 of finite entries stay finite.

#include <cstddef>
#include <span>

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo::cpu {

/// Entries that one task of a layer's reduction takes; a power of two of segments, so that the tree
/// does not depend on the split.
inline constexpr std::size_t kReduceGrain = std::size_t{1} << 16;

/// Doubles of scratch that the reductions of a whole layer need.
[[nodiscard]] constexpr std::size_t reduce_scratch(std::size_t n) noexcept {
  return n / kReduceGrain + (n % kReduceGrain != 0);
}

[[nodiscard]] float max_abs(const float* x, std::size_t n) noexcept;
[[nodiscard]] double sum_abs(const float* x, std::size_t n) noexcept;
[[nodiscard]] double sum_squares(const float* x, std::size_t n) noexcept;

/// The same over a layer, its grains spread over the executor; `scratch` holds `reduce_scratch(n)`
/// values.
[[nodiscard]] float layer_max_abs(const float* x, std::size_t n, std::span<double> scratch,
                                  Executor* executor) noexcept;
/// Both in one pass; `scratch` holds twice as many.
struct MaxAndSquares {
  float max_abs = 0;
  double squares = 0;
};
[[nodiscard]] MaxAndSquares layer_max_and_squares(const float* x, std::size_t n,
                                                  std::span<double> scratch,
                                                  Executor* executor) noexcept;
[[nodiscard]] double layer_sum_abs(const float* x, std::size_t n, std::span<double> scratch,
                                   Executor* executor) noexcept;

/// Both sides of zero: a zero of either sign is not below it.
struct Sides {
  double below = 0, others = 0;  ///< sums of magnitudes, in the order above, the other side's as 0
  std::size_t negatives = 0;
};
[[nodiscard]] Sides sum_sides(const float* x, std::size_t n) noexcept;
/// `scratch` holds twice `reduce_scratch(n)`.
[[nodiscard]] Sides layer_sum_sides(const float* x, std::size_t n, std::span<double> scratch,
                                    Executor* executor) noexcept;

/// The sum in the order of the tree above.
class TreeSum {
 public:
  void add(double value) noexcept {
    std::size_t height = 0;
    for (; (count_ >> height) & 1; ++height) value = pending_[height] + value;
    pending_[height] = value;
    ++count_;
  }
  [[nodiscard]] double total() const noexcept {
    double sum = 0;
    bool any = false;
    for (std::size_t height = 0; height < 64; ++height) {
      if (!((count_ >> height) & 1)) continue;
      sum = any ? pending_[height] + sum : pending_[height];
      any = true;
    }
    return sum;
  }

 private:
  double pending_[64];  ///< sum of a complete subtree of 2^height leaves, where bit `height` of the
                        ///< count is set
  std::size_t count_ = 0;
};

}  // namespace atomo::cpu
