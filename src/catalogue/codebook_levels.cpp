// SPDX-License-Identifier: Apache-2.0
/// \file
/// Levels for the entries of a tensor. Everything is f64 in one fixed order, so equal entries give equal levels.
#include "catalogue/codebook_levels.hpp"

#include <algorithm>
#include <numbers>

namespace atomo::catalogue {
namespace {

constexpr std::size_t kSample = 8192;
constexpr int kSweeps = 40;

std::vector<double> sums_of(std::span<const float> sorted) {
  std::vector<double> sums(sorted.size() + 1);
  for (std::size_t i = 0; i < sorted.size(); ++i) sums[i + 1] = sums[i] + sorted[i];
  return sums;
}

/// Entries below `border`.
std::size_t rank_of(std::span<const float> sorted, double border) {
  return static_cast<std::size_t>(
      std::ranges::lower_bound(sorted, border, {}, [](float v) { return double{v}; }) -
      sorted.begin());
}

/// Entries as far apart in the integral of density^(3/8): close to the cube root that many levels have at least error, and
/// made of square roots, which are the same on every machine.
std::vector<float> spread_levels(std::span<const float> sorted, std::size_t count) {
  const std::size_t stride = std::max<std::size_t>(1, sorted.size() / (8 * count));
  std::vector<double> sums{0};
  for (std::size_t i = stride; i < sorted.size() + stride - 1; i += stride) {
    const double gap = double{sorted[std::min(i, sorted.size() - 1)]} - sorted[i - stride];
    const double half = std::sqrt(gap);
    sums.push_back(sums.back() + half * std::sqrt(std::sqrt(half)));
  }
  std::vector<float> levels(count);
  for (std::size_t j = 0; j < count; ++j) {
    const double sum = sums.back() * static_cast<double>(j) / static_cast<double>(count - 1);
    const auto step = static_cast<std::size_t>(std::ranges::lower_bound(sums, sum) - sums.begin());
    levels[j] = sorted[std::min(step * stride, sorted.size() - 1)];
  }
  levels.back() = sorted.back();
  return levels;
}

/// tan of an angle from 0 to pi / 4, by series.
double tangent(double angle) {
  double sine = 0, cosine = 0, term = 1;
  for (int k = 0; k < 24; ++k) {
    (k % 2 == 0 ? cosine : sine) += k % 4 < 2 ? term : -term;
    term *= angle / (k + 1);
  }
  return sine / cosine;
}

/// -m, ..., 0, ..., m.
std::vector<float> mirrored(std::span<const float> falling) {
  std::vector<float> levels;
  for (const float v : falling) levels.push_back(-v);
  levels.push_back(0);
  levels.insert(levels.end(), falling.rbegin(), falling.rend());
  return levels;
}

}  // namespace

std::vector<float> sorted_sample(std::span<const float> x, Words& words) {
  std::vector<float> sample(std::min(x.size(), kSample));
  for (std::size_t i = 0; i < sample.size(); ++i) {
    if (x.size() <= kSample) {
      sample[i] = x[i];
      continue;
    }
    const std::size_t first = i * x.size() / kSample, last = (i + 1) * x.size() / kSample;
    sample[i] = x[first + (words.next() * std::uint64_t{last - first} >> 32)];
  }
  std::ranges::sort(sample);
  return sample;
}

std::vector<float> quantile_levels(std::span<const float> sorted, std::size_t count) {
  std::vector<float> levels(count);
  for (std::size_t j = 0; j < count; ++j) levels[j] = sorted[j * (sorted.size() - 1) / (count - 1)];
  return levels;
}

std::vector<float> quantile_means(std::span<const float> sorted, std::size_t count) {
  const auto sums = sums_of(sorted);
  std::vector<float> levels(count);
  for (std::size_t j = 0; j < count; ++j) {
    const std::size_t first = std::min(j * sorted.size() / count, sorted.size() - 1);
    const std::size_t last = std::max((j + 1) * sorted.size() / count, first + 1);
    levels[j] = finite((sums[last] - sums[first]) / static_cast<double>(last - first));
  }
  std::ranges::sort(levels);  // rounded sums of equal entries
  return levels;
}

std::vector<float> lloyd_levels(std::span<const float> sorted, std::size_t count) {
  const auto sums = sums_of(sorted);
  auto levels = spread_levels(sorted, count);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    std::size_t first = 0;
    for (std::size_t j = 0; j < count; ++j) {
      const std::size_t last =
          j + 1 == count
              ? sorted.size()
              : std::max(first, rank_of(sorted, (double{levels[j]} + levels[j + 1]) / 2));
      if (last > first)
        levels[j] = finite((sums[last] - sums[first]) / static_cast<double>(last - first));
      first = last;
    }
    std::ranges::sort(levels);
  }
  return levels;
}

std::vector<float> lloyd_levels_at_random(std::span<const float> sorted, std::size_t count) {
  const auto sums = sums_of(sorted);
  auto levels = spread_levels(sorted, count);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t j = 1; j + 1 < count; ++j) {
      const double low = levels[j - 1], high = levels[j + 1];
      const std::size_t first = rank_of(sorted, low), last = rank_of(sorted, high);
      if (last <= first || high <= low) continue;
      // The sum of (x - low)(level - x) and (x - level)(high - x) is least where so many entries are below the level.
      const double below =
          (high * static_cast<double>(last - first) - (sums[last] - sums[first])) / (high - low);
      const auto rank = first + static_cast<std::size_t>(std::max(0.0, below));
      levels[j] =
          std::clamp(sorted[std::min(rank, sorted.size() - 1)], levels[j - 1], levels[j + 1]);
    }
  }
  return levels;
}

std::vector<float> log_levels(float most, unsigned bits) {
  const std::size_t count = (std::size_t{1} << (bits - 1)) - 1;
  double ratio = 0.5;
  for (std::size_t octaves = count; octaves > 16; octaves = (octaves + 1) / 2)
    ratio = std::sqrt(ratio);
  std::vector<float> falling(count);
  double level = most;
  for (float& v : falling) {
    v = static_cast<float>(level);
    level *= ratio;
  }
  return mirrored(falling);
}

std::vector<float> cot_levels(float most, unsigned bits) {
  const std::size_t count = (std::size_t{1} << (bits - 1)) - 1;
  const double angle = std::numbers::pi / (4 * static_cast<double>(count));
  std::vector<float> falling(count);
  falling[0] = most;
  for (std::size_t k = 2; k <= count; ++k)
    falling[k - 1] =
        static_cast<float>(most * tangent(angle) / tangent(static_cast<double>(k) * angle));
  return mirrored(falling);
}

std::vector<float> ternary_levels(std::span<const float> sorted) {
  double sum = 0;
  for (const float v : sorted) sum += std::fabs(v);
  double a = sum / static_cast<double>(sorted.size());
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double along = 0;
    std::size_t ones = 0;
    for (const float v : sorted) {
      if (std::fabs(v) <= a / 2) continue;
      along += std::fabs(v);
      ++ones;
    }
    if (ones > 0) a = along / static_cast<double>(ones);
  }
  return {-finite(a), 0, finite(a)};
}

Places::Places(std::span<const float> ascending) noexcept {
  std::ranges::copy(ascending, sorted_);
  std::fill(sorted_ + ascending.size(), sorted_ + 256, std::numeric_limits<float>::infinity());
  top_ = std::bit_ceil(ascending.size()) / 2;
}

Nearest::Nearest(std::span<const float> levels) : places_(borders(levels)) {}

std::vector<float> Nearest::borders(std::span<const float> levels) {
  // The first stands below all: a place is then that of a level.
  std::vector<float> between{-std::numeric_limits<float>::infinity()};
  for (std::size_t j = 0; j + 1 < levels.size(); ++j) {
    const float middle = static_cast<float>((double{levels[j]} + levels[j + 1]) / 2);
    between.push_back(std::nextafter(middle, std::numeric_limits<float>::infinity()));
  }
  return between;
}

RoundedAtRandom::RoundedAtRandom(std::span<const float> levels)
    : places_(levels), levels_(levels.begin(), levels.end()), over_gap_(levels.size()) {
  for (std::size_t j = 0; j + 1 < levels.size(); ++j)
    if (levels_[j + 1] > levels_[j]) over_gap_[j] = 1 / (levels_[j + 1] - levels_[j]);
}

}  // namespace atomo::catalogue
