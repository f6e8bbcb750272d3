// SPDX-License-Identifier: Apache-2.0
// Rounds of one launch (rounds.cuh): every block sees the results of the round before, in whatever order blocks begin.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/rounds.cuh"
#include "support/device_memory.hpp"

namespace atomo::cuda {

using namespace model;
namespace {

constexpr unsigned kThreads = 64, kUnits = 7, kRounds = 4;

struct RoundState {
  Rounds rounds;
  std::uint32_t tickets = 0;
  std::uint32_t value = 1;                      ///< of the round before
  std::uint32_t seen[kRounds][kUnits] = {};     ///< that value, as each unit had it
  std::uint32_t parts[kUnits * kThreads] = {};  ///< a thread's of the round
};

/// The value of a round is the sum of what its units make of the value before.
__device__ void do_unit(RoundState& state, const Turn& turn) {
  wait_for_round(state.rounds, turn.round);
  const std::uint32_t before = state.value;
  if (threadIdx.x == 0) state.seen[turn.round][turn.unit] = before;
  state.parts[turn.unit * kThreads + threadIdx.x] = before + threadIdx.x;
  if (!block_comes_last(&state.tickets, kUnits) || threadIdx.x != 0) return;
  std::uint32_t sum = 0;
  for (const std::uint32_t part : state.parts) sum += part;
  state.value = sum;
  end_round(state.rounds, turn.round + 1 == kRounds);
}

__global__ void run_rounds(RoundState* state) {
  take_turns(state->rounds, kRounds, kUnits, [&](const Turn& turn) { do_unit(*state, turn); });
}

/// Fewer blocks than units, as many as turns, more.
class RoundsOfBlocks : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Blocks, RoundsOfBlocks,
                         testing::Values(1u, kUnits - 2, kRounds* kUnits, kRounds* kUnits + 3));

TEST_P(RoundsOfBlocks, SeeTheRoundBefore) {
  test::Memory memory(sizeof(RoundState));
  const RoundState first;
  memory.put(std::as_bytes(std::span(&first, 1)));
  const test::StreamOwner stream;
  Queue queue(stream.get());
  for (unsigned launch = 0; launch < 2; ++launch)  // what is seen is that of the second
    queue.launch_blocks(run_rounds, GetParam(), kThreads, 0,
                        reinterpret_cast<RoundState*>(memory.data()));
  ASSERT_EQ(queue.error(), cudaSuccess);
  stream.wait();
  RoundState last;
  const auto bytes = memory.get(sizeof last);
  std::memcpy(&last, bytes.data(), sizeof last);
  std::uint32_t value = 1;
  for (unsigned round = 0; round < 2 * kRounds; ++round) {
    for (unsigned unit = 0; round >= kRounds && unit < kUnits; ++unit)
      EXPECT_EQ(last.seen[round % kRounds][unit], value) << "round " << round;
    value = kUnits * (kThreads * value + kThreads * (kThreads - 1) / 2);
  }
  EXPECT_EQ(last.value, value);
  EXPECT_EQ(last.rounds.turns, 0u);
  EXPECT_EQ(last.rounds.ended, 0u);
  EXPECT_EQ(last.tickets, 0u);
}

}  // namespace
}  // namespace atomo::cuda
