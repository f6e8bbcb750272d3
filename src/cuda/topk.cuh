// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Top-k on the device (topk.cu): the k entries of largest magnitude, ties by the lowest index.
/// Bodies vary in length with their marks; there is no price.

#include "cuda/marks.cuh"

namespace atomo::cuda::topk {

/// Most entries of a layer: counts of entries are 32 bits here, and the kind's parameters hold all
/// of k. A larger layer must be refused before it is planned.
inline constexpr std::size_t kMaxEntries = 0xFFFFFFFFu;

struct Job {
  std::uint64_t n = 0;
  std::uint64_t first_value = 0;      ///< of the job's words in `values`
  std::uint64_t first_word = 0;       ///< of the job's words in `sections`
  std::uint64_t first_candidate = 0;  ///< of the job's in `candidates`
  std::uint32_t layer = 0;
  std::uint32_t keep = 0;
  std::uint32_t tiles = 0;
  std::uint32_t histogram = 0;  ///< the job's in `histograms`, where there are several tiles

  /// Whether entries above the first digit are few enough to stand among the candidates.
  [[nodiscard]] __host__ __device__ bool lists_above() const { return keep <= n / 32; }
};

/// One a job; zeroed.
struct State {
  std::uint32_t key = 0;      ///< the k-th largest magnitude as an integer, as far as it is known
  std::uint32_t ties = 0;     ///< how many of those that agree with it are among the k
  std::uint32_t tickets = 0;  ///< of tiles that are counted
};

/// An entry of a tile that may be the k-th largest or above it.
struct alignas(8) Candidate {
  std::uint32_t magnitude = 0;
  std::uint32_t place = 0;  ///< in its tile
};

struct Plan {
  static constexpr Stages kStages{.analyse = true, .size = true};
  Table<Job> jobs;
  Split tiles;      ///< of a job's entries
  MarksPlan marks;  ///< its segments are also the units of everything else
  Scratch<State> states;
  Scratch<std::uint32_t> histograms;    ///< zeroed; of jobs with several tiles
  Scratch<Candidate> candidates;        ///< an eighth of a tile's entries, tile by tile
  Scratch<std::uint32_t> found;         ///< for each tile: candidates; if too many, none are listed
  Scratch<std::uint32_t> equal;         ///< for each segment: entries equal to the key
  Scratch<std::uint32_t> equal_before;  ///< the same in the segments before it
  Scratch<std::uint32_t> sections;      ///< zeroed; marks as they are sent
  Scratch<std::uint32_t> values;        ///< as they are sent
  Scratch<std::uint64_t> ends;          ///< one a job: bits of its values
  std::uint32_t count = 0;

  [[nodiscard]] bool empty() const { return count == 0; }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void analyse(const Frame& frame, const Plan& plan, Queue& queue);
void size(const Frame& frame, const Plan& plan, Queue& queue);

}  // namespace atomo::cuda::topk
