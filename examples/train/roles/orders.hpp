// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What servers and workers say to each other besides gradients and weights.
///
/// The first server, rank 0, leads: it tells the workers what to do, and the other servers what it
/// has decided, so that all servers run the same loop over the same workers.

#include <cstdint>

namespace train {

inline constexpr int kLead = 0;

enum OrderTag : int {
  kOrderTag = 10,
  kReportTag,
  kBuffersTag,
  kMeanBuffersTag,
  kScoreTag,
  kStateTag,
  kTimelineTag,
  kSliceTag,
};

/// How a run is cut into rounds.
enum class Rounds {
  of_a_step,       ///< one step of every worker
  of_local_steps,  ///< --local-steps of every worker
  of_an_arrival,   ///< one worker's message; as many as there are workers make a step
};

enum class What : std::uint32_t {
  train,   ///< to a worker: the steps of a round; to a server: begin a round
  test,    ///< a worker's part of the test samples; to a server: send the weights
  save,    ///< send what a checkpoint keeps of this process
  stop,    ///< the run is over
  accept,  ///< to a server: the message of this worker is next
};

struct Order {
  What what = What::stop;
  std::uint32_t step = 0;    ///< the first of the round, or how many are done
  std::uint32_t worker = 0;  ///< whom it is about, counted from 0
};

}  // namespace train
