// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Random-k over every outcome: all U, and all draws in segments of a few entries. As in
/// statistics_checks.hpp the arithmetic is a type, whose default is the library's own.

#include <algorithm>
#include <bit>

#include "math/subset_sampling.hpp"
#include "statistics/statistics.hpp"

namespace atomo::test {

struct RandomKArithmetic {
  static math::SampledSegment segment(const math::SampleShares<std::uint64_t>& shares,
                                      std::uint64_t s) {
    return shares(s);
  }
  template <typename Set, typename Draw>
  static void draw(std::uint64_t n, std::uint64_t k, Set& set, Draw&& draw) {
    math::draw_kept(n, k, set, draw);
  }
  static double scale(std::uint64_t n, std::uint64_t k) {
    return static_cast<double>(n) / static_cast<double>(k);
  }
};

struct SmallSet {
  std::uint32_t bits = 0;
  [[nodiscard]] bool test(std::uint64_t i) const { return ((bits >> i) & 1) != 0; }
  void mark(std::uint64_t i, bool when) { bits |= (when ? 1u : 0u) << i; }
  void invert(std::uint64_t n) { bits ^= (1u << n) - 1; }
};

/// Values of each draw that marks k of n entries.
inline std::vector<std::uint32_t> sizes_of_draws(std::uint64_t n, std::uint64_t k) {
  std::vector<std::uint32_t> sizes;
  for (std::uint64_t j = n - math::draws_of(n, k); j < n; ++j)
    sizes.push_back(static_cast<std::uint32_t>(j) + 1);
  return sizes;
}

/// Of one segment each subset is drawn equally often.
template <typename Arithmetic>
std::string check_subsets(std::uint64_t n, std::uint64_t k) {
  std::vector<std::uint32_t> count(std::size_t{1} << n);
  for_each_tuple(sizes_of_draws(n, k), [&](std::span<const std::uint32_t> d) {
    SmallSet set;
    Arithmetic::draw(n, k, set,
                     [&](std::uint64_t, std::uint64_t i) { return std::uint64_t{d[i]}; });
    ++count[set.bits];
  });
  const std::uint32_t most = *std::max_element(count.begin(), count.end());
  for (std::size_t s = 0; s < count.size(); ++s) {
    const bool possible = static_cast<std::uint64_t>(std::popcount(s)) == k;
    if (count[s] != (possible ? most : 0))
      return complaint(k, " of ", n, ": subset ", s, " drawn ", count[s], " times");
  }
  return {};
}

/// What all offsets give: the moments, and how many entries pairs of segments keep.
template <typename Arithmetic>
struct SampleOutcomes {
  std::uint64_t n, keep, length, count;  ///< segments
  std::vector<double> x;
  Outcomes estimates;
  std::vector<double> shares;  ///< E[m m'], of one segment E[m (m - 1)]
  std::string fault;

  SampleOutcomes(std::uint64_t entries, std::uint64_t k, std::uint64_t segment_length)
      : n(entries),
        keep(k),
        length(segment_length),
        count((n + length - 1) / length),
        x(values(n)),
        estimates(x),
        shares(count * count) {
    for (std::uint64_t offset = 0; offset < n && fault.empty(); ++offset) add(offset);
  }

  [[nodiscard]] std::uint64_t entries_of(std::uint64_t s) const {
    return std::min(length, n - s * length);
  }
  /// E[(y_i - x_i) (y_j - x_j)] as the shares and uniform subsets of them say it.
  [[nodiscard]] double product(std::size_t i, std::size_t j) const {
    const std::uint64_t a = i / length, b = j / length;
    const auto own = static_cast<double>(entries_of(a)), other = static_cast<double>(entries_of(b));
    const double pairs = own * (a == b ? own - 1 : other),
                 ratio = RandomKArithmetic::scale(n, keep);
    return x[i] * x[j] * (ratio * ratio * shares[a * count + b] / pairs - 1);
  }

 private:
  static std::vector<double> values(std::uint64_t n) {
    std::vector<double> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = 1.5 * static_cast<double>(i) - 2;
    return x;
  }
  void add(std::uint64_t offset) {
    std::vector<math::SampledSegment> segments;
    std::vector<std::uint32_t> sizes;
    double chance = 1 / static_cast<double>(n);
    std::uint64_t kept = 0;
    for (std::uint64_t s = 0; s < count; ++s) {
      const math::SampledSegment segment = Arithmetic::segment({n, keep, offset, length}, s);
      if (segment.keep > segment.entries || segment.rank != kept)
        fault = complaint(keep, " of ", n, ": segment ", s, " keeps ", segment.keep);
      if (!fault.empty()) return;
      kept += segment.keep;
      segments.push_back(segment);
      for (const std::uint32_t size : sizes_of_draws(segment.entries, segment.keep)) {
        sizes.push_back(size);
        chance /= size;
      }
    }
    if (kept != keep) fault = complaint(keep, " of ", n, ": ", kept, " are kept");
    for_each_tuple(sizes, [&](std::span<const std::uint32_t> d) { add(segments, d, chance); });
    for (std::uint64_t a = 0; a < count; ++a) {
      for (std::uint64_t b = 0; b < count; ++b) {
        const auto m = static_cast<double>(segments[a].keep);
        const double other = a == b ? m - 1 : static_cast<double>(segments[b].keep);
        shares[a * count + b] += m * other / static_cast<double>(n);
      }
    }
  }
  void add(const std::vector<math::SampledSegment>& segments, std::span<const std::uint32_t> draws,
           double chance) {
    std::vector<double> y(n);
    for (const math::SampledSegment& segment : segments) {
      SmallSet set;
      Arithmetic::draw(segment.entries, segment.keep, set,
                       [&](std::uint64_t, std::uint64_t i) -> std::uint64_t { return draws[i]; });
      draws = draws.subspan(math::draws_of(segment.entries, segment.keep));
      for (std::uint64_t i = 0; i < segment.entries; ++i) {
        if (set.test(i)) y[segment.begin + i] = x[segment.begin + i] * Arithmetic::scale(n, keep);
      }
    }
    estimates.add(chance, y);
  }
};

/// E = x, the variance (n/k - 1) x^2 of every entry, and the products of errors that
/// math/subset_sampling.hpp states.
template <typename Arithmetic>
std::string check_segments(std::uint64_t n, std::uint64_t k, std::uint64_t length) {
  const SampleOutcomes<Arithmetic> all(n, k, length);
  if (!all.fault.empty()) return all.fault;
  const double ratio = RandomKArithmetic::scale(n, k);
  for (std::size_t i = 0; i < n; ++i) {
    if (!is_exact(all.estimates.bias(i), 0, 10))
      return complaint(k, " of ", n, " in segments of ", length, ": bias ", all.estimates.bias(i),
                       " of entry ", i);
    if (!is_exact(all.estimates.squared_error(i), all.x[i] * all.x[i] * (ratio - 1), 100))
      return complaint(k, " of ", n, " in segments of ", length, ": variance of entry ", i);
    for (std::size_t j = 0; j < i; ++j) {
      if (!is_exact(all.estimates.product(i, j), all.product(i, j), 100))
        return complaint(k, " of ", n, " in segments of ", length, ": errors of ", i, " and ", j);
    }
  }
  return {};
}

template <typename Arithmetic = RandomKArithmetic>
std::string check_random_k() {
  for (std::uint64_t n = 1; n <= 7; ++n) {
    for (std::uint64_t k = 1; k <= n; ++k) {
      if (std::string fault = check_subsets<Arithmetic>(n, k); !fault.empty()) return fault;
      for (const std::uint64_t length : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3}, n}) {
        std::string fault = check_segments<Arithmetic>(n, k, length);
        if (!fault.empty()) return fault;
      }
    }
  }
  return {};
}

}  // namespace atomo::test
