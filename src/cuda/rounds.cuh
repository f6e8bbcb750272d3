// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A launch that does several rounds of the same units, each of which needs the results of all
/// units of the round before. A unit of a round is a turn. A block takes the next turn while it
/// runs, so the blocks that it waits for run already, in whatever order blocks begin, and any
/// number of blocks does all turns.

#include "cuda/gpu.cuh"

namespace atomo::cuda {

/// Zeroed, and zero again behind the last round.
struct Rounds {
  std::uint32_t turns = 0;  ///< that blocks have taken
  std::uint32_t ended = 0;  ///< rounds
};

struct Turn {
  std::uint32_t round = 0;
  std::uint64_t unit = 0;
};

struct BlockFlag {
  std::uint32_t value;
};

/// Blocks that turns are worth: more than any device runs at once of those that take 256 threads
/// and 40 registers.
inline constexpr std::uint64_t kTurnBlocks = 1024;
__host__ __device__ constexpr std::uint64_t blocks_of_turns(std::uint64_t turns) {
  return turns < kTurnBlocks ? turns : kTurnBlocks;
}

/// By whole blocks, all of a grid: `of_turn(turn)` does a unit in one of `count` rounds. The shared
/// memory of the turn before is free then.
template <typename OfTurn>
__device__ void take_turns(Rounds& rounds, std::uint32_t count, std::uint64_t units,
                           OfTurn of_turn) {
  auto& taken = shared<BlockFlag>();
  const std::uint64_t turns = count * units;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) taken.value = atomicAdd(&rounds.turns, 1u);
    __syncthreads();
    const std::uint32_t number = taken.value;
    if (number >= turns) {  // each block ends with such a one
      if (threadIdx.x == 0 && number + 1 == turns + gridDim.x) atomicExch(&rounds.turns, 0u);
      return;
    }
    of_turn(Turn{static_cast<std::uint32_t>(number / units), number % units});
  }
}

/// By a whole block: waits until `tickets` were taken, and sees what was written before they were.
__device__ inline void wait_together(std::uint32_t& tickets, std::uint32_t count) {
  if (threadIdx.x == 0) wait_for_tickets(&tickets, count);
  __syncthreads();
}

/// By a whole block, once what its threads wrote is to be seen: takes a ticket.
__device__ inline std::uint32_t take_together(std::uint32_t& tickets) {
  auto& taken = shared<BlockFlag>();
  __syncthreads();
  if (threadIdx.x == 0) taken.value = take_ticket(&tickets);
  __syncthreads();
  return taken.value;
}

/// By a whole block: the results of the rounds before are there.
__device__ inline void wait_for_round(Rounds& rounds, std::uint32_t round) {
  wait_together(rounds.ended, round);
}

/// By one thread, all units of the round being done and their results written.
__device__ inline void end_round(Rounds& rounds, bool last) {
  if (last) {
    rounds.ended = 0;
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
