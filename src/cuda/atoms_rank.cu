// SPDX-License-Identifier: Apache-2.0
/// What a message says of the next one's sketches (price/sketch_rank.hpp).
///
/// Mapping: a lane a family of atoms; one of pairs counts those in use. Traffic: 8 bytes a pair. No
/// shared memory, nothing random. Ranks stand in memory of the model, so that replays of a captured
/// message learn too.

#include "cuda/atoms.cuh"

namespace atomo::cuda::atoms {
namespace {

/// Of a layer that sends something.
__device__ price::RankState next_rank(const Frame& frame, const Plan& plan, const Job& job,
                                      price::RankState state) {
  if (chosen_form(frame, plan.price, job.priced) != job.form) return price::without_sketch(state);
  const auto price = static_cast<double>(choose_price(frame, plan.price, job.priced).price);
  const double* const amplitudes = frame(plan.amplitudes) + job.first_atom;
  std::size_t used = 0;
  for (std::uint64_t k = 0; k < job.layout.count; ++k)
    used += price::is_used(amplitudes[k], price) ? 1 : 0;
  return price::after_sketch(used, sketch_rank(frame, frame(plan.sketches.jobs)[job.source]));
}

__global__ void learn(Frame frame, Plan plan) {
  const std::uint64_t number = warp_in_grid() * kLanes + lane();
  const LearntRanks& ranks = frame.state().ranks;
  if (number >= plan.count || ranks.now == nullptr) return;
  const Job& job = frame(plan.jobs)[number];
  if (job.part != BodyPart::pairs || !job.learns_rank) return;
  price::RankState state = ranks.now[job.layer];
  if (frame.layer(job.layer).bytes != 0) state = next_rank(frame, plan, job, state);
  ranks.next[job.layer] = state;
  if (ranks.at_once != nullptr) ranks.at_once[job.layer] = state;
}

}  // namespace

void learn_ranks(const Frame& frame, const Plan& plan, Queue& queue) {
  if (!plan.sketches.empty()) queue.launch_warps(learn, divide_up(plan.count, kLanes), frame, plan);
}

}  // namespace atomo::cuda::atoms
