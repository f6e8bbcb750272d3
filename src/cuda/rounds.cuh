// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A launch that does several rounds of the same units, each of which needs the results of all
/// units of the round before. Every round has its own blocks. A block takes the next turn when it
/// starts to run, so the blocks that it waits for run already, in whatever order blocks begin.

#include "cuda/gpu.cuh"

namespace atomo::cuda {

/// Zeroed, and zero again behind the last round.
struct Rounds {
  std::uint32_t turns = 0;  ///< of blocks that have begun
  std::uint32_t ended = 0;  ///< rounds
};

struct Turn {
  std::uint32_t round = 0;
  std::uint64_t unit = 0;
};

struct BlockFlag {
  std::uint32_t value;
};

/// By a whole block of a grid of rounds * units blocks.
__device__ inline Turn take_turn(Rounds& rounds, std::uint64_t units) {
  auto& turn = shared<BlockFlag>();
  if (threadIdx.x == 0) turn.value = atomicAdd(&rounds.turns, 1u);
  __syncthreads();
  const std::uint32_t number = turn.value;
  __syncthreads();
  return {static_cast<std::uint32_t>(number / units), number % units};
}

/// By a whole block: the results of the rounds before are there.
__device__ inline void wait_for_round(Rounds& rounds, std::uint32_t round) {
  if (threadIdx.x == 0) wait_for_tickets(&rounds.ended, round);
  __syncthreads();
}

/// By one thread, all units of the round being done and their results written.
__device__ inline void end_round(Rounds& rounds, bool last) {
  if (last) {
    rounds = {};
  } else {
    take_ticket(&rounds.ended);
  }
}

/// By a whole block, once what its threads wrote is to be seen: whether it is the last of `count`.
/// The tickets are zero again then.
__device__ inline bool block_comes_last(std::uint32_t* tickets, std::uint64_t count) {
  auto& last = shared<BlockFlag>();
  __syncthreads();
  if (threadIdx.x == 0) {
    last.value = take_ticket(tickets) + 1 == count ? 1 : 0;
    if (last.value != 0) atomicExch(tickets, 0u);
  }
  __syncthreads();
  return last.value != 0;
}

}  // namespace atomo::cuda
