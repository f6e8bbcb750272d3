// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What servers and workers agree on, and say to each other besides gradients and weights.
///
/// The first server, rank 0, leads: it tells the workers what to do, and the other servers what it
/// has decided, so that all servers run the same loop over the same workers.

#include <atomo/compressor.hpp>
#include <cstdint>
#include <string>

#include "command_line/options.hpp"
#include "exchange/transport.hpp"

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
  of_local_steps,  ///< --local-steps of every worker, with an optimiser of its own
  of_an_arrival,   ///< one worker's message; as many as there are workers make a step
};

/// What an algorithm of the family is like, apart from its loops.
struct Plan {
  Rounds rounds = Rounds::of_a_step;
  bool remembers = false;        ///< asks for Server::weights_of
  bool compresses_down = false;  ///< without --down by the gradients' policy
};

/// \throws std::runtime_error for options of servers that do not go together.
void check_server_options(const Options& options, int workers);
/// Of the weights' changes on their way to the workers; empty when weights travel as they are.
[[nodiscard]] std::string down_policy(const Plan& plan, const Options& options);
/// By which the layers are cut into shards, and changes of weights encoded.
[[nodiscard]] atomo::Policy shard_policy(const Plan& plan, const Options& options);
/// Steps of a round that begins with `step`.
[[nodiscard]] std::uint32_t steps_of_round(const Plan& plan, const Options& options,
                                           std::uint32_t step);

enum class What : std::uint32_t {
  train,   ///< to a worker: a round's steps; to a server: begin a round
  test,    ///< a part of the test samples; to a server: send this worker the weights
  save,    ///< send what a checkpoint keeps of this process
  stop,    ///< the run is over
  accept,  ///< to a server: the message of this worker counts
  drop,    ///< to a server: it does not, and the worker waits again
};

struct Order {
  What what = What::stop;
  std::uint32_t step = 0;             ///< the first of the round, or how many are done
  std::uint32_t worker = 0;           ///< whom it is about, counted from 0
  std::uint32_t part = 0, parts = 1;  ///< of the test samples
  std::uint32_t whole = 0;            ///< 1: the test is not broken off
  std::uint32_t last = 0;             ///< 1: no round follows this one
  std::uint32_t missing = 0;          ///< workers without which the lead ends the job
};

}  // namespace train
