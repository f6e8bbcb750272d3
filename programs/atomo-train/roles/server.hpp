// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a serving process can do; an algorithm is a loop over it (algorithms/ps.cpp).
///
/// Several servers share the layers. All run the same loop; where it depends on who was first, the
/// lead decides and the others follow. Each holds the weights and the optimiser's moments of its
/// own layers, and all arrays here are that part of the model.
///
/// A worker gets its next weights after its last message has come, so it has one order at a time;
/// with --double-buffer it has two, and computes each gradient at weights that are a step old.

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exchange/gradient_stream.hpp"
#include "exchange/weight_stream.hpp"
#include "learning/optimiser.hpp"
#include "roles/orders.hpp"
#include "run/run.hpp"
#include "run/timeline.hpp"

namespace train {

class Server {
 public:
  Server(Run& run, const Plan& plan);

  /// Ends the last round: logs it, tests and saves when that is due. False when it was the last.
  [[nodiscard]] bool begin_round();
  /// To every worker that waits for them. With --double-buffer the first call comes before the
  /// first round.
  void send_weights();

  /// The mean of what all workers sent, or the first --aggregate of them.
  [[nodiscard]] std::span<float> receive_mean();
  /// What one worker sent, the first whose message is there; see `source`.
  [[nodiscard]] std::span<float> receive_any();
  /// What this worker sent.
  [[nodiscard]] std::span<float> receive_from(std::size_t worker);
  /// The worker whose message came last.
  [[nodiscard]] std::size_t source() const noexcept { return source_; }

  /// One step of the optimiser: of the outer one where workers have their own.
  void take_step(std::span<float> gradient);
  [[nodiscard]] std::span<float> weights() noexcept { return mine(replica_->weights()); }
  /// What a worker has got.
  [[nodiscard]] std::span<const float> weights_of(std::size_t worker) const {
    return sender_.view(worker);
  }

  [[nodiscard]] const Options& options() const noexcept { return run_.options; }
  [[nodiscard]] std::size_t workers() const noexcept { return seats_.size(); }
  /// How many times too large the gradients of this round are.
  [[nodiscard]] double gradient_scale() const { return run_.options.gradient_scale(step_); }
  /// A factor a layer as one an element.
  [[nodiscard]] std::vector<float> of_elements(std::span<const float> of_layers) const;
  [[nodiscard]] const atomo::Compressor& compressor() const noexcept { return compressor_; }

  /// Before the first round: a checkpoint keeps `values`, and fills them now when it has them.
  void keep(const std::string& name, std::vector<float>& values);
  /// The same for what each worker keeps under this name and its server has a copy of.
  void restore_copies(const std::string& name, std::vector<std::vector<float>>& values) const;

  [[nodiscard]] Outcome outcome() const noexcept { return outcome_; }

 private:
  /// A worker's order and what the lead hears of it.
  struct Errand {
    std::uint32_t step = 0;
    StepReport report{};
    Transfer transfer{};
  };
  struct Seat {
    std::array<Errand, 2> errands;
    std::size_t given = 0, taken = 0;
    std::uint32_t next_step = 0;  ///< where each worker counts its own
    [[nodiscard]] Errand& oldest() noexcept { return errands[taken % errands.size()]; }
  };

  [[nodiscard]] bool leads() const noexcept { return transport_.rank() == kLead; }
  [[nodiscard]] bool lead();
  [[nodiscard]] bool follow();
  void end_round();
  /// Does the test that the run that goes on owes.
  void make_up_test();
  /// Whether a worker computes a gradient that is not wanted yet.
  [[nodiscard]] bool ahead() const noexcept {
    return run_.options.double_buffer && receiver_.outstanding(0) != 0;
  }
  void log_step(std::uint32_t taken);

  void give(std::span<const std::size_t> workers, std::uint32_t step,
            std::span<const float> weights);
  [[nodiscard]] std::span<float> take(std::span<const std::size_t> workers);
  void take_report(std::size_t worker, std::vector<StepReport>& reports);
  [[nodiscard]] bool here(std::size_t worker);
  [[nodiscard]] int rank_of(std::size_t worker) const {
    return transport_.rank_of_worker(static_cast<int>(worker));
  }

  /// Whether the run goes on without workers that give no sign of life.
  [[nodiscard]] bool spares() const noexcept {
    return run_.options.aggregate != 0 && run_.options.aggregate < workers();
  }
  [[nodiscard]] std::size_t first_to_arrive();
  [[nodiscard]] std::vector<std::size_t> choose(std::size_t count);
  [[nodiscard]] std::vector<std::size_t> follow_choice(std::size_t count);
  void drop(std::size_t worker);
  /// Of `awaited`, those without whom there are not `needed`.
  [[nodiscard]] std::vector<int> needed_of(const std::vector<int>& awaited,
                                           std::size_t needed) const;
  /// Until nobody who gives signs of life has an order under way. Returns those workers.
  [[nodiscard]] std::vector<std::size_t> wait_for_arrivals();

  /// After the steps that are done. Returns whether it was not broken off.
  [[nodiscard]] bool test();
  void average_buffers(std::span<const std::size_t> workers);
  void save();
  /// Weights into the lead's replica; returns the rest of this server's state, whole on the lead.
  [[nodiscard]] Checkpoint collect_state();
  void dismiss();
  void restore();

  void order(int rank, const Order& order);
  void order_servers(const Order& order);
  [[nodiscard]] Order receive_order();
  /// On the lead the whole of an array as long as the model, of which each server has its part.
  void collect(std::span<float> model);
  /// `part` in an array as long as the model; on the lead all of it.
  [[nodiscard]] std::vector<float> whole(std::span<const float> part);
  [[nodiscard]] std::span<float> mine(std::span<float> model) const noexcept {
    return model.subspan(shard_.offset, shard_.elements);
  }
  [[nodiscard]] std::span<const float> mine(std::span<const float> model) const noexcept {
    return model.subspan(shard_.offset, shard_.elements);
  }

  Run& run_;
  Transport& transport_;
  Plan plan_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Replica> replica_;
  atomo::Compressor compressor_;
  std::vector<Shard> shards_;
  Shard& shard_;
  GradientReceiver receiver_;
  WeightSender sender_;
  std::unique_ptr<Optimiser> optimiser_;
  std::vector<float> gradient_;  ///< as long as the model
  std::vector<Seat> seats_;
  std::vector<std::size_t> everybody_;
  std::vector<StepReport> reports_;  ///< of the step under way
  std::vector<StepReport> dropped_;
  std::optional<Log> log_;  ///< the lead's
  std::optional<Checkpoint> checkpoint_;
  std::vector<std::pair<std::string, std::vector<float>*>> kept_;
  /// With --double-buffer: the weights of an order that is held back until a checkpoint is written.
  std::vector<float> held_;

  std::uint64_t sent_before_ = 0;
  std::uint32_t step_ = 0;      ///< steps done, and the one under way
  std::uint32_t arrivals_ = 0;  ///< of the step under way
  std::size_t source_ = 0;
  bool in_round_ = false, stopped_ = false;
  bool owes_test_ = false;   ///< that after the steps that are done was left out, or broken off
  bool last_round_ = false;  ///< nobody is sent ahead
  Outcome outcome_ = Outcome::finished;
  Timeline timeline_{false, kLead, ""};
  nlohmann::json events_ = nlohmann::json::array();  ///< of workers, in the step to record
  Clock::time_point step_began_;
};

}  // namespace train
