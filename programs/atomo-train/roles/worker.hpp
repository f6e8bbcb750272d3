// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a training process of the server family can do; an algorithm is a loop over it
/// (algorithms/ps.cpp). Arrays are as long as the model.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exchange/gradient_stream.hpp"
#include "exchange/shards.hpp"
#include "exchange/weight_stream.hpp"
#include "learning/learner.hpp"
#include "learning/optimiser.hpp"
#include "roles/orders.hpp"
#include "run/run.hpp"
#include "run/timeline.hpp"

namespace train {

class Worker {
 public:
  Worker(Run& run, const Plan& plan);

  /// Waits for the next round's weights, and meanwhile tests and hands in its state when told to.
  /// False when the run is over.
  [[nodiscard]] bool receive_weights();

  /// Back-propagates over this worker's samples of the step; each layer is encoded as soon as it is
  /// there, and leaves. `memory`: of the gradient, what it differs by from there is sent.
  void stream_gradient(std::span<const float> memory = {});
  /// The same, but nothing leaves before the whole message is encoded and `worth` has said whether it does:
  /// it gets the squared norms of what the message decodes to and of what it leaves out. Returns its
  /// answer; where that is false the servers get a byte a layer.
  bool stream_gradient_if(std::span<const float> memory,
                          const std::function<bool(double change, double error)>& worth);
  /// The learning rate of the round.
  [[nodiscard]] double learning_rate() const { return run_.options.learning_rate(step_); }
  /// The round's steps, with this worker's optimiser.
  void take_local_steps();
  /// Encodes an array and sends it, the last layer first, as back-propagation would.
  void send(std::span<const float> model);
  /// model <- model + scale of each layer * what was sent decodes to.
  void add_sent(std::span<const float> scales, std::span<float> model) {
    sender_.add_sent(scales, model);
  }

  [[nodiscard]] std::span<float> weights() noexcept { return learner_.replica().weights(); }
  /// As they came at the beginning of the round.
  [[nodiscard]] std::span<const float> received_weights() noexcept { return receiver_.weights(); }
  [[nodiscard]] const Options& options() const noexcept { return run_.options; }
  [[nodiscard]] const atomo::Compressor& compressor() noexcept { return learner_.compressor(); }
  /// Before the first round: a checkpoint keeps `values`, and fills them now when it has them.
  void keep(const std::string& name, std::vector<float>& values);

 private:
  void begin_round(std::uint32_t step);
  /// Back-propagates and keeps the gradient here.
  [[nodiscard]] std::span<float> gradient();
  void test(const Order& order);
  void send_state();
  void begin_message(bool computing);
  void end_message();
  /// Behind a message's sends.
  void report_message();
  /// Back-propagates; each layer, less what is in `memory`, goes to the sender, and into `differences`.
  void push_gradient(std::span<const float> memory, std::span<float> differences);
  void send(int tag, atomo::ConstBytes bytes);
  void receive(int tag, atomo::Bytes bytes);

  Run& run_;
  Transport& transport_;
  Plan plan_;
  std::size_t worker_;  ///< counted from 0
  Learner learner_;
  std::vector<Shard> shards_;
  WeightReceiver receiver_;
  GradientSender sender_;
  std::unique_ptr<Optimiser> optimiser_;  ///< where it takes steps of its own
  std::vector<float> gradient_;
  std::vector<float> differences_, decoded_;  ///< of a message that is held back
  WorkerState restored_;
  std::map<std::string, std::vector<float>*> kept_;
  std::uint32_t step_ = 0;   ///< the first of the round
  std::uint32_t steps_ = 1;  ///< of the round
  StepReport report_;
  Timeline timeline_{false, 0, ""};
};

}  // namespace train
