// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Encoding singular pairs with f32 factors on the device (method factors). Stages: analyse and
/// size; bodies are staged in the workspace.

#include "cuda/svd.cuh"

namespace atomo::cuda::factors {

/// One a layer. What is no matrix is sent as it is and has no decomposition.
struct Job {
  Scratch<std::uint32_t> body;  ///< staged
  std::uint32_t layer = 0;
  std::uint32_t svd = 0;     ///< its SvdJob
  std::uint32_t matrix = 0;  ///< 0: there is none
  std::uint64_t pairs = 0;   ///< 0 when there is no matrix
  std::uint64_t first_pair = 0;
  std::uint64_t keep = 0;  ///< pairs, expected
};

/// One a job; zeroed.
struct State {
  std::uint64_t kept = 0;
};

struct Plan {
  static constexpr Stages kStages{.analyse = true, .size = true, .handles = true};
  Table<Job> jobs;
  SvdPlan svd;
  Split ranks;                   ///< of the pairs: 32 a unit
  Split pieces;                  ///< 1,024 entries of a vector, of as many pairs as can be kept
  Scratch<double> sigma;         ///< of each pair, by job
  Scratch<std::uint32_t> order;  ///< pairs by descending sigma
  Scratch<std::uint64_t> probabilities;  ///< of each pair, in units of 2^-32
  Scratch<std::uint32_t> kept;           ///< numbers of the kept pairs
  Scratch<State> states;
  [[nodiscard]] bool empty() const { return pieces.jobs == 0; }
};

/// Matrices are decomposed by the caller's libraries.
[[nodiscard]] inline bool needs_handles(const Plan& plan) { return !plan.svd.empty(); }

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
/// The decomposition.
void analyse(const Frame& frame, const Plan& plan, Queue& queue);
/// Bodies: three launches.
void size(const Frame& frame, const Plan& plan, Queue& queue);

}  // namespace atomo::cuda::factors
