// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the algorithms without a server share: every rank trains, holds the same weights and takes
/// the same step. Rank 0 also writes what is kept and seen.

#include <atomo/types.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "learning/learner.hpp"
#include "learning/optimiser.hpp"
#include "run/run.hpp"
#include "run/timeline.hpp"

namespace train {

class Peer {
 public:
  /// Of the weights that all ranks hold.
  using MakeOptimiser =
      std::unique_ptr<Optimiser> (Run::*)(std::span<const atomo::LayerSpec> layers) const;

  /// Loads the data and makes the network; `begin` must follow.
  explicit Peer(Run& run, MakeOptimiser make = &Run::make_optimiser);
  virtual ~Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  /// Steps that are done, those of the checkpoint included.
  [[nodiscard]] std::uint32_t done() const noexcept { return done_; }
  [[nodiscard]] std::span<const float> weights() { return learner_.replica().weights(); }
  /// Whether the checkpoint is of a run that owes the test after its last step.
  [[nodiscard]] bool owes_test() const noexcept { return owes_test_; }
  /// A test of all ranks after `done` steps. False on all: it was broken off.
  [[nodiscard]] bool test(std::uint32_t done);
  /// Writes a checkpoint. Every rank calls it.
  void save(std::uint32_t done, bool owes_test);
  void finish(std::uint32_t done, bool stopped);

 protected:
  /// Goes on from the checkpoint, if there is one, and opens the log. The last thing a role does
  /// when it is made.
  void begin();
  [[nodiscard]] bool first() const noexcept { return transport_.rank() == 0; }

  /// Forward and backward over this rank's samples of a step. Begins a new report and timeline.
  /// Time that `on_gradient` counts as encoding is none of computing.
  void back_propagate(std::uint32_t step, const Replica::OnGradient& on_gradient);
  /// Tells every rank what this one reports.
  void exchange_reports();
  /// One optimiser step along the mean gradient, and the log's line. Returns whether any process
  /// was interrupted.
  [[nodiscard]] bool step_along(std::span<float> gradient, std::uint32_t step);
  /// The first of these two alone: moves the weights by the optimiser's step number `step`.
  void take_step(std::span<float> gradient, std::uint32_t step);
  /// The second alone: `reports_` of a step into the log, as the last step that is done.
  [[nodiscard]] bool tell(std::uint32_t step);
  /// Whether this rank has to flip a bit of what it sends at `step`.
  [[nodiscard]] bool corrupts(std::uint32_t step) const {
    return first() && run_.options.corrupt_payload_at == step;
  }
  /// What a checkpoint holds of this rank alone, and its return.
  [[nodiscard]] virtual WorkerState own_state() { return learner_.state(); }
  virtual void restore_own(const WorkerState& state) { learner_.restore(state); }
  /// \throws Fault when `status` refuses what `rank` sent.
  void check_payload(atomo::Status status, int rank, std::uint32_t step) const;
  /// \throws std::runtime_error when this rank could not encode.
  static void check_encoded(atomo::Status status, std::uint32_t step);

  Run& run_;
  Transport& transport_;
  std::size_t workers_;
  Learner learner_;
  StepReport report_;                ///< of this rank
  std::vector<StepReport> reports_;  ///< of every rank
  double wire_ = 0, decode_ = 0;     ///< milliseconds of the step
  /// Of the step that is recorded; off in others.
  Timeline timeline_{false, 0, ""};
  /// Of the weights that all ranks hold.
  std::unique_ptr<Optimiser> optimiser_;
  std::optional<Log> log_;  ///< of rank 0

 private:
  /// Returns the bytes that were sent before.
  std::uint64_t restore();
  void share_events(std::uint32_t step);
  template <class T>
  std::vector<T> gather(const T& mine);

  std::uint32_t done_ = 0;
  std::uint64_t sent_bytes_ = 0;
  bool owes_test_ = false;
};

}  // namespace train
