// SPDX-License-Identifier: Apache-2.0
#pragma once
/// sign on the device: src/codec/methods/sign_codec.cpp has the body. Fixed length, so there is no size stage.

#include "cuda/reduce.cuh"

namespace atomo::cuda::sign {

struct Job {
  std::uint64_t n = 0;
  std::uint64_t scale = 0;        ///< number of the first scale in the reduction's results
  std::uint64_t scale_bytes = 0;  ///< 4 with a scale, 8 a bucket with means, 0 without
  std::uint32_t layer = 0;
  std::uint32_t bucket_log = 0;  ///< with means: entry i is in bucket i >> bucket_log
  bool means = false;
};

struct Plan {
  static constexpr Stages kStages{.analyse = true, .write = true};
  Jobs<Job> jobs;
  ReducePlan scales;
  [[nodiscard]] bool empty() const { return jobs.empty(); }
};

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
void analyse(const Frame& frame, const Plan& plan, Queue& queue);
void write(const Frame& frame, const Plan& plan, Queue& queue);
void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue);

/// A vote's messages go through memory kMessagesAtOnce at a time: until the last of them y holds the sum
/// of the signs so far.
struct VoteInto {
  bool continues = false;  ///< y has the sum of earlier messages
  bool last = false;       ///< y becomes the sign of the sum
};
/// y[i] = the sum of the messages' signs, or its sign. One launch.
void count(const Frames& frames, const Plan& plan, VoteInto into, Queue& queue);

}  // namespace atomo::cuda::sign
