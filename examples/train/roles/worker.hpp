// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a training process of the server family can do; an algorithm is a loop over it
/// (algorithms/ps.cpp).

#include <vector>

#include "exchange/gradient_stream.hpp"
#include "exchange/shards.hpp"
#include "learning/learner.hpp"
#include "roles/orders.hpp"
#include "run.hpp"
#include "timeline.hpp"

namespace train {

class Worker {
 public:
  Worker(Run& run, Rounds rounds);

  /// Waits for the next round's weights, and meanwhile tests and hands in its state when told to.
  /// False when the run is over.
  [[nodiscard]] bool receive_weights();
  /// Back-propagates over this worker's samples of the step; each layer leaves as soon as it is
  /// there.
  void stream_gradient();

 private:
  void test(std::uint32_t done);
  void begin_message();
  void end_message();
  void send(int tag, atomo::ConstBytes bytes);
  void receive(int tag, atomo::Bytes bytes);

  Run& run_;
  Transport& transport_;
  std::size_t worker_;  ///< counted from 0
  Learner learner_;
  std::vector<Shard> shards_;
  GradientSender sender_;
  std::uint32_t step_ = 0;  ///< the first of the round
  StepReport report_;
  Timeline timeline_{false, 0, ""};
};

}  // namespace train
