// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Decoding of pairs with f32 factors on the device (method factors). Encoding has a plan of its
/// own.

#include "cuda/outer.cuh"

namespace atomo::cuda::factors {

/// f32 vectors, or a tensor that is no matrix as it is.
struct DecodeJob {
  std::uint32_t layer = 0;
  std::uint32_t outer = 0;   ///< its OuterJob
  std::uint32_t matrix = 0;  ///< 0: there is none
};

struct DecodePlan {
  static constexpr Stages kStages{};  ///< decoding alone
  Jobs<DecodeJob> jobs;  ///< units of 1,024 entries of a vector, as many as there can be
  OuterPlan outer;
  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan);
/// Vectors and their sums take turns, as all messages have one room for vectors.
inline void decode(const Frames&, const DecodePlan&, DecodeInto, Queue&) {}
[[nodiscard]] inline bool has_turns(const Frames&, const DecodePlan&, DecodeInto) { return true; }
/// Two launches a message.
void decode_in_turn(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
                    DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::factors
