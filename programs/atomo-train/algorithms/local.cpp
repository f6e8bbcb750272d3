// SPDX-License-Identifier: Apache-2.0
/// \file
/// Local SGD with an outer step (DiLoCo, arXiv 2311.08105; with an outer step of plain sgd at rate
/// 1 the averaging of arXiv 1805.09767): ranks train alone for tau steps and exchange what these
/// changed.
///
///   every rank k, every round; w are the weights that all ranks hold
///   ----------------------------------------------------------------
///   x <- w
///   tau times: x <- optimiser_k(x, back-propagation over this rank's samples)
///   payload <- encode(w - x)
///   lengths <- all-gather(length of payload)
///   payloads <- all-gather(payload, padded to the longest)
///   d <- sum over ranks, in rank order, of decode(payload) / W
///   w <- outer optimiser(w, d)
///
/// Each rank keeps the state of its own optimiser from round to round, and in the checkpoint. A
/// round ends at every multiple of tau, and at the last step of the run. Tests, checkpoints and
/// --stop-at come at the end of the round that they fall into. A rank that is interrupted within a
/// round breaks it off: all ranks then go back to where it began, so that a resumed run takes it
/// again.

#include <algorithm>

#include "algorithms/algorithms.hpp"
#include "roles/gathering_peer.hpp"
#include "run/interrupt.hpp"

namespace train {
namespace {

class Local final : public GatheringPeer {
 public:
  explicit Local(Run& run)
      : GatheringPeer(run, &Run::make_outer_optimiser),
        inner_(run.make_optimiser(learner_.replica().layers())),
        agreed_(learner_.replica().weights().size()),
        change_(agreed_.size()) {
    begin();
  }

  [[nodiscard]] bool train(std::uint32_t from) {
    const auto& options = run_.options;
    const std::uint32_t round = from / options.local_steps;
    const std::uint32_t end = std::min((round + 1) * options.local_steps, options.steps);
    begin_round();
    for (std::uint32_t step = from; step < end && !interrupted(); ++step) take_own_step(step);
    if (own_reports_.size() == end - from) encode_change(from, end - 1);
    gather_lengths();
    if (broken_off()) return go_back();
    gather_payloads();
    const auto mean = decode_mean(end - 1);
    std::ranges::copy(agreed_, learner_.replica().weights().begin());
    take_step(mean, round);
    tell_own_steps(from);
    return tell(end - 1);
  }

 private:
  void begin_round() {
    std::ranges::copy(learner_.replica().weights(), agreed_.begin());
    at_begin_ = own_state();
    own_reports_.clear();
    report_ = {};
  }

  void take_own_step(std::uint32_t step) {
    auto& replica = learner_.replica();
    back_propagate(step, [&](std::size_t layer, std::span<const float> gradient) {
      learner_.to_host(gradient,
                       std::span(change_).subspan(replica.offset(layer), gradient.size()));
    });
    inner_->take_step(replica.weights(), change_, step);
    replica.weights_changed();
    own_reports_.push_back(report_);
  }

  void encode_change(std::uint32_t from, std::uint32_t last) {
    auto& replica = learner_.replica();
    const auto weights = replica.weights();
    for (std::size_t i = 0; i < change_.size(); ++i) change_[i] = agreed_[i] - weights[i];
    begin_payload(last, false);
    for (std::size_t layer = 0; layer < replica.layers().size(); ++layer) {
      put(layer, std::span(change_).subspan(replica.offset(layer),
                                            replica.layers()[layer].shape.elements()));
    }
    bool corrupt = false;
    for (std::uint32_t step = from; step <= last; ++step) corrupt = corrupt || corrupts(step);
    encode(last, corrupt);
  }

  /// Whether a rank did not come to the round's end: no payload is empty.
  [[nodiscard]] bool broken_off() const {
    return std::ranges::any_of(reports_,
                               [](const auto& report) { return report.payload_bytes == 0; });
  }

  /// Undoes the round. Returns true: the run ends here.
  bool go_back() {
    std::ranges::copy(agreed_, learner_.replica().weights().begin());
    learner_.replica().weights_changed();
    restore_own(at_begin_);
    return true;
  }

  /// The log's lines of the round's steps but the last, of all ranks.
  void tell_own_steps(std::uint32_t from) {
    const std::size_t steps = own_reports_.size();
    std::vector<StepReport> all(steps * workers_), of_step(workers_);
    auto transfer = transport_.all_gather(std::as_bytes(std::span(own_reports_)),
                                          std::as_writable_bytes(std::span(all)));
    transport_.wait(transfer);
    for (std::size_t i = 0; first() && i + 1 < steps; ++i) {
      for (std::size_t k = 0; k < workers_; ++k) of_step[k] = all[k * steps + i];
      log_->step(record_of(from + static_cast<std::uint32_t>(i), of_step));
    }
  }

  [[nodiscard]] WorkerState own_state() override {
    auto state = GatheringPeer::own_state();
    for (std::size_t m = 0; m < inner_->moments().size(); ++m)
      state.arrays["moment" + std::to_string(m)] = inner_->moments()[m];
    return state;
  }

  void restore_own(const WorkerState& state) override {
    GatheringPeer::restore_own(state);
    for (std::size_t m = 0; m < inner_->moments().size(); ++m)
      inner_->moments()[m] = state.arrays.at("moment" + std::to_string(m));
  }

  std::unique_ptr<Optimiser> inner_;
  std::vector<float> agreed_;            ///< weights of the last exchange
  std::vector<float> change_;            ///< a gradient, then agreed_ - weights
  WorkerState at_begin_;                 ///< of the round
  std::vector<StepReport> own_reports_;  ///< of the round's steps
};

}  // namespace

Outcome local_sgd(Run& run) { return run_peer<Local>(run); }

}  // namespace train
