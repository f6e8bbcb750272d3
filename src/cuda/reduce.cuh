// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One f32 for each span of a layer, or two: the largest magnitude, the Euclidean norm, mean magnitudes
/// (math/stochastic_level.hpp), from maxima and from f64 sums in the order of cpu/reduce.hpp. A span is a
/// layer or one of its buckets. For methods whose bodies need it before their first entry.

#include "cuda/frame.cuh"

namespace atomo::cuda {

enum class ReduceRule : std::uint32_t {
  max_abs,      ///< max |x|
  norm,         ///< the root of the sum of squares, rounded up
  clipped_max,  ///< min(max |x|, clip * sqrt(sum of squares / n))
  mean_abs,     ///< sum |x| / n
  side_means,   ///< two results: the means of the entries that are not below 0 and, as a magnitude,
                ///< of those that are; 0 of none
};

struct ReduceJob {
  std::uint64_t n = 0;             ///< of the layer
  std::uint64_t span = 0;          ///< entries of a span; the last may be shorter
  std::uint64_t leaves = 0;        ///< of a whole span
  std::uint64_t parts = 0;         ///< that a whole span leaves on the way to its root
  std::uint64_t tickets = 0;       ///< of a whole span: one a join
  std::uint64_t first_part = 0;    ///< of the first span; the others' follow
  std::uint64_t first_ticket = 0;  ///< likewise
  std::uint64_t first_result = 0;  ///< a result a span, or two
  std::uint32_t layer = 0;
  ReduceRule rule = ReduceRule::max_abs;
  float clip = 0;
};

/// The results of one stretch of a span.
struct ReducePart {
  double sum;
  double below;           ///< side_means: the sum of magnitudes below 0, `sum` that of the others
  std::uint64_t largest;  ///< the bits of |x|; side_means: the number of entries below 0
};

struct ReducePlan {
  Jobs<ReduceJob> jobs;  ///< a unit a leaf
  Scratch<ReducePart> parts;
  Scratch<std::uint32_t> tickets;  ///< zeroed
  Scratch<float> results;
  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

class ReducePlanner {
 public:
  ReducePlanner(Layout& layout, std::size_t jobs) noexcept : layout_(layout), jobs_(layout, jobs) {}
  /// `job`: layer, n > 0, span, rule and clip. Returns the number of its first result.
  std::uint64_t add(ReduceJob job) noexcept;
  /// After the last job.
  [[nodiscard]] ReducePlan finish() noexcept;

 private:
  Layout& layout_;
  JobMaker<ReduceJob> jobs_;
  std::uint64_t parts_ = 0, tickets_ = 0, results_ = 0;
};

/// Fills `results`; marks non-finite layers, whose results are of no use.
void reduce(const Frame& frame, const ReducePlan& plan, Queue& queue);

}  // namespace atomo::cuda
