// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Levels that are chosen for the entries of a tensor, and the rounding to them.

#include <cstdint>
#include <span>
#include <vector>

#include "catalogue/body.hpp"

namespace atomo::catalogue {

/// Where levels are put.
enum class Placement : std::uint8_t { quantile, lloyd, log, cot, ternary };

/// At most 8,192 entries, sorted: all of them, or one drawn from each stretch of equal length.
std::vector<float> sorted_sample(std::span<const float> x, Words& words);

/// `count` levels, ascending: the entries of a sorted sample at ranks of equal distance, from the first to the last, or
/// the means of stretches of equal length.
std::vector<float> quantile_levels(std::span<const float> sorted, std::size_t count);
std::vector<float> quantile_means(std::span<const float> sorted, std::size_t count);

/// `count` levels of least squared error: for the nearest level (Lloyd), or for rounding to a neighbour at random, the
/// first and the last being those of the sample.
std::vector<float> lloyd_levels(std::span<const float> sorted, std::size_t count);
std::vector<float> lloyd_levels_at_random(std::span<const float> sorted, std::size_t count);

/// 0 and plus and minus `most` times powers of a ratio, 2^bits - 1 in all; the ratio is 1/2 or a root of it, for a range
/// of 15 octaves at most.
std::vector<float> log_levels(float most, unsigned bits);
/// 0 and plus and minus `most` times cot(pi k / 4 K) / cot(pi / 4 K), k = 1 to K = 2^(bits - 1) - 1.
std::vector<float> cot_levels(float most, unsigned bits);
/// -a, 0, a: a is the mean magnitude of those entries of the sample that round to it.
std::vector<float> ternary_levels(std::span<const float> sorted);

/// Finds the place of numbers among 1 to 256 ascending ones.
class Places {
 public:
  explicit Places(std::span<const float> ascending) noexcept;
  /// The place of the last one that is not above x; 0 where all are.
  std::size_t operator()(float x) const noexcept {
    std::size_t at = 0;
    for (std::size_t step = top_; step > 0; step /= 2) at += x >= sorted_[at + step] ? step : 0;
    return at;
  }

 private:
  float sorted_[256];
  std::size_t top_ = 0;
};

/// The place of the nearest level, of the lower one where two are as near.
class Nearest {
 public:
  explicit Nearest(std::span<const float> levels);
  std::uint8_t operator()(float x) const noexcept { return static_cast<std::uint8_t>(places_(x)); }

 private:
  static std::vector<float> borders(std::span<const float> levels);
  Places places_;
};

/// The place of one of the two levels around x, at random and without bias. x is not outside of the levels.
class RoundedAtRandom {
 public:
  explicit RoundedAtRandom(std::span<const float> levels);
  std::uint8_t operator()(float x, Words& words) const noexcept {
    const std::size_t at = places_(x);
    const bool up = words.happens((double{x} - levels_[at]) * over_gap_[at]);
    return static_cast<std::uint8_t>(at + (up ? 1 : 0));
  }

 private:
  Places places_;
  std::vector<double> levels_, over_gap_;
};

}  // namespace atomo::catalogue
