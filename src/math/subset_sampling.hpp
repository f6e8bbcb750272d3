// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Sampling k of n entries without replacement, segment by segment, over a source of integers, so
/// that tests can enumerate every outcome.
///
/// How many a segment keeps is systematic sampling (Madow, 1949). With U uniform on [0, n) the
/// entries [a, b) keep floor((k b + U) / n) - floor((k a + U) / n) of them: k in all, because
/// floor(U / n) = 0. floor((v + U) / n) has the mean v / n for every integer v, so a segment of L
/// entries keeps k L / n of them in the mean, rounded down or up, which is at most L.
///
/// Which ones is Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", 1987): for j = L -
/// m, ..., L - 1 draw t uniform on [0, j]; add t, or j when t is in the set already. After the step
/// of j the set is a uniform subset of [0, j] of its size: by induction, a given set S of size s + 1
/// within [0, j] arises either with j outside S, from each S \ {t} for t in S, or with j in S, from
/// S \ {j} and any t of it or j; both give (s + 1) / ((j + 1) C(j, s)) = 1 / C(j + 1, s + 1). From m
/// > L/2 on the L - m entries left out are drawn instead.
///
/// So an entry of a segment that keeps m is kept with probability m / L, and any entry with k / n.
/// With y_i = (n/k) x_i where entry i is kept, else 0, that alone gives E y_i = x_i and E (y_i -
/// x_i)^2 = (n/k - 1) x_i^2: the squared error of a layer has the mean (n/k - 1) ||x||^2, as if all
/// entries were drawn together. Segments change nothing but how errors go together: E (y_i - x_i)
/// (y_j - x_j) is x_i x_j times
///
///   (n/k)^2 E[m (m - 1)] / (L (L - 1)) - 1     within a segment,
///   (n/k)^2 E[m m'] / (L L') - 1               in two segments,
///
/// where a draw of all entries together has -(n - k) / (k (n - 1)) for every pair. So a sum over many
/// entries, such as a projection, may vary a little less than that of such a draw, or more: where
/// its segments have sums of unlike signs whose shares are rounded up together.

#include <cstdint>

#include "core/host_device.hpp"

namespace atomo::math {

__extension__ typedef unsigned __int128 Wide;

/// Entries of a segment; the last may have fewer.
inline constexpr std::uint64_t kSampleSegment = 4096;

struct SampledSegment {
  std::uint64_t begin, entries;  ///< the first one, and how many
  std::uint64_t rank;            ///< entries that are kept before it
  std::uint64_t keep;            ///< of its own
};

/// How many entries each segment keeps. `Product` holds n (n + 1).
template <typename Product>
struct SampleShares {
  std::uint64_t n, keep;  ///< keep is at most n
  std::uint64_t offset;   ///< U, below n
  std::uint64_t length = kSampleSegment;

  /// Of the first `entries` entries.
  [[nodiscard]] ATOMO_HD constexpr std::uint64_t before(std::uint64_t entries) const noexcept {
    return static_cast<std::uint64_t>((Product{keep} * entries + offset) / n);
  }
  [[nodiscard]] ATOMO_HD constexpr SampledSegment operator()(std::uint64_t s) const noexcept {
    const std::uint64_t begin = s * length;
    const std::uint64_t end = n - begin < length ? n : begin + length;
    const std::uint64_t rank = before(begin);
    return {begin, end - begin, rank, before(end) - rank};
  }
};

/// Marks m of n entries: `draw(j, d)` is uniform on [0, j], d counting the draws from 0 in order;
/// `Set` is empty and has `test(i)` and `mark(i, when)`, which does nothing where `when` is false.
template <typename Set, typename Draw>
void draw_subset(std::uint64_t n, std::uint64_t m, Set& set, Draw&& draw) noexcept {
  for (std::uint64_t d = 0; d < m; ++d) {
    const std::uint64_t j = n - m + d, t = draw(j, d);
    // Where something is marked depends on no mark: the next step need not wait for this one.
    const bool again = set.test(t);
    set.mark(t, true);
    set.mark(j, again);
  }
}

/// Draws that it takes to mark k of n entries.
[[nodiscard]] ATOMO_HD constexpr std::uint64_t draws_of(std::uint64_t n, std::uint64_t k) noexcept {
  return k > n / 2 ? n - k : k;
}

/// Marks k of n entries, by those that are kept or by those that are left out, whichever are fewer;
/// `Set` has `invert(n)` too.
template <typename Set, typename Draw>
void draw_kept(std::uint64_t n, std::uint64_t k, Set& set, Draw&& draw) noexcept {
  const std::uint64_t m = draws_of(n, k);
  draw_subset(n, m, set, draw);
  if (m != k) set.invert(n);
}

/// Where U comes from: floor(R n / 2^128), R of 128 uniform bits. Each value has its probability
/// 1 / n within 2^-128, which moves what a segment keeps in the mean by at most n 2^-128: by 2^-48
/// of it where that is least, one entry of 2^40.
[[nodiscard]] constexpr std::uint64_t scale_offset(std::uint64_t low, std::uint64_t high,
                                                   std::uint64_t n) noexcept {
  return static_cast<std::uint64_t>((Wide{high} * n + ((Wide{low} * n) >> 64)) >> 64);
}

/// A draw on [0, j]: floor(w (j + 1) / 2^64), w of 64 uniform bits. Each value has its probability
/// 1 / (j + 1) within 2^-64. Whether an entry is marked in the end is up to one value a draw, and
/// in the step of its own to d + 1 of them, so that its probability of m / L moves by at most
/// min(m, L - m) 2^-64: by 2^-52 of it in a segment of 4,096.
[[nodiscard]] constexpr std::uint64_t scale_draw(std::uint64_t word, std::uint64_t j) noexcept {
  return static_cast<std::uint64_t>((Wide{word} * (j + 1)) >> 64);
}

/// Blocks of random_k: block 0 has the bits of U, word 0 lowest; these and the next are the
/// segment's, two draws of 64 bits each.
[[nodiscard]] constexpr std::uint64_t first_draw_block(std::uint64_t segment) noexcept {
  return 1 + segment * (kSampleSegment / 2);
}

}  // namespace atomo::math
