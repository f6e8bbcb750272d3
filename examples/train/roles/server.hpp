// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a serving process can do; an algorithm is a loop over it (algorithms/ps.cpp).
///
/// Several servers share the layers. All run the same loop; where it depends on who was first, the
/// lead decides and the others follow. Each holds the weights and the optimiser's moments of its
/// own layers: arrays are as long as the model, and only its part of them counts.
///
/// A worker gets its next weights after its last message has come, so it has one order at a time.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "exchange/gradient_stream.hpp"
#include "exchange/weight_stream.hpp"
#include "learning/optimiser.hpp"
#include "roles/orders.hpp"
#include "run.hpp"
#include "timeline.hpp"

namespace train {

class Server {
 public:
  Server(Run& run, Rounds rounds);

  /// Ends the last round: logs it, tests and saves when that is due. False when it was the last.
  [[nodiscard]] bool begin_round();
  /// To every worker that waits for them.
  void send_weights();
  /// The mean of what all workers sent.
  [[nodiscard]] std::span<float> receive_mean();
  /// What one worker sent, the first whose message is there; see `source`.
  [[nodiscard]] std::span<float> receive_any();
  /// One step of the optimiser.
  void take_step(std::span<float> gradient);

  [[nodiscard]] const Options& options() const noexcept { return run_.options; }
  /// The worker whose message came last.
  [[nodiscard]] std::size_t source() const noexcept { return source_; }
  [[nodiscard]] std::span<float> weights() noexcept { return replica_.weights(); }
  [[nodiscard]] Outcome outcome() const noexcept { return outcome_; }

 private:
  /// What the lead knows of a worker.
  struct Seat {
    std::uint32_t step = 0;       ///< of its last order
    std::uint32_t next_step = 0;  ///< where each worker counts its own
    StepReport report{};
    Transfer report_transfer{};
  };

  [[nodiscard]] bool leads() const noexcept { return transport_.rank() == kLead; }
  [[nodiscard]] bool follow();
  [[nodiscard]] bool lead();
  void end_round();
  void take_report(std::size_t worker);
  void log_step(std::uint32_t step);
  [[nodiscard]] bool here(std::size_t worker);
  [[nodiscard]] std::size_t first_to_arrive();
  /// Until nobody has an order.
  void wait_for_arrivals();
  [[nodiscard]] std::uint32_t steps_of_round() const;

  void test();
  void save();
  /// Weights into the lead's replica; returns the optimiser's moments, whole on the lead.
  [[nodiscard]] std::vector<std::vector<float>> collect_state();
  void dismiss();
  void restore();

  void order(int rank, const Order& order);
  void order_workers(const Order& order);
  void order_servers(const Order& order);
  [[nodiscard]] Order receive_order();
  /// On the lead the whole of an array as long as the model, of which each server has its part.
  void collect(std::span<float> model);
  [[nodiscard]] std::span<float> mine(std::span<float> model) const noexcept {
    return model.subspan(shard_.offset, shard_.elements);
  }

  Run& run_;
  Transport& transport_;
  Rounds rounds_;
  std::unique_ptr<Task> task_;
  Replica replica_;
  atomo::Compressor compressor_;
  std::vector<Shard> shards_;
  const Shard& shard_;
  GradientReceiver receiver_;
  WeightSender sender_;
  std::unique_ptr<Optimiser> optimiser_;
  std::vector<float> gradient_;
  std::vector<std::size_t> everybody_;
  std::vector<Seat> seats_;
  std::vector<StepReport> reports_;  ///< of the step under way
  std::optional<Log> log_;           ///< the lead's

  std::uint64_t sent_before_ = 0;
  std::uint32_t step_ = 0;      ///< steps done, and the one under way
  std::uint32_t arrivals_ = 0;  ///< of the step under way
  std::size_t source_ = 0;
  bool in_round_ = false, stopped_ = false;
  Outcome outcome_ = Outcome::finished;
  Timeline timeline_{false, kLead, ""};
  nlohmann::json events_ = nlohmann::json::array();  ///< of workers, in the step to record
  Clock::time_point step_began_;
};

}  // namespace train
