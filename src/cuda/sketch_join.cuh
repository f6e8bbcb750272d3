// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Where the eigenvectors and eigenvalues of leaves and of their joints stand: what sketch_tridiagonal.cu and
/// sketch_join.cu share.

#include "cuda/sketch.cuh"

namespace atomo::cuda {

/// What a level of joints leaves; vector j at j * rank, its value at j, both from those of its first leaf on.
struct Joint {
  float* vectors;
  double* values;
};
/// Level 1 is behind the reflections, level 2 behind what becomes of the Gram matrix.
__device__ inline Joint joint_of(const Frame& frame, const SketchJob& job, std::uint32_t level) {
  const std::uint64_t rank = sketch_rank(frame, job);
  auto* const room = level == 1 ? reinterpret_cast<float*>(frame(job.partials))
                                : reinterpret_cast<float*>(frame(job.gram));
  return {room + rank * rank, frame(job.values) + level * rank};
}
__device__ inline Joint last_joint(const Frame& frame, const SketchJob& job, std::uint32_t rows) {
  return joint_of(frame, job, join_levels(leaves_of(rows).count));
}

/// turn = eigenvectors of `gram` from those of its tridiagonal form, in descending order of their values.
void turn_from_tridiagonal(const Frame& frame, const SketchPlan& plan, Queue& queue);

}  // namespace atomo::cuda
