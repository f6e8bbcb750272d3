// SPDX-License-Identifier: Apache-2.0
/// \file
/// PowerSGD (Vogels et al., arXiv 1905.13727, Algorithms 1 and 2): gradients of low rank, whose
/// factors add up in all-reduces, with a memory or, by --residual, without bias.
///
///   every rank k, every step; M_k is a layer's gradient, its first dimension by all others
///   -----------------------------------------------------------------------------------------
///   M_k <- back-propagation over this rank's samples
///   without --residual:  M_k <- M_k + e_k
///   P <- mean over ranks of M_k Q                  all-reduce; without --residual the layers that
///                                                  are not factored go along as they are
///   P <- orthonormal columns of the span of P
///   Q <- mean over ranks of Q_k, Q_k = M_k' P      all-reduce
///   without --residual:  g <- P Q';  e_k <- M_k - g
///   with --second-moment factored, scaled or matched, every so many steps: all-gather of what is told of the
///     squares of M_k and of P P' M_k, both without e_k
///   with --residual:     g <- P Q' + sum over ranks, in rank order, of decode(payload) / W,
///     payload <- encode(M_k - P Q_k'), and of layers that are not factored encode(M_k); all-gather
///   w <- optimiser(w, g)
///
/// P Q' + mean (M_k - P Q_k') is the mean gradient whatever P is, so g is right on average whenever
/// the codec is, as P follows from the all-reduce alone and not from the messages' draws. Q is kept
/// for the next step; steps before --start-step add up all gradients as they are. The memory is of
/// gradients without their loss scale. With --device cuda a gradient comes down layer by layer, and factors
/// and the memory are the host's; the GPU encodes and decodes what --residual sends.

#include <algorithm>

#include "algorithms/algorithms.hpp"
#include "exchange/rank_mean.hpp"
#include "learning/low_rank.hpp"
#include "roles/gathering_peer.hpp"

namespace train {
namespace {

class PowerSgd final : public GatheringPeer {
 public:
  explicit PowerSgd(Run& run)
      : GatheringPeer(run, &Run::make_optimiser, !run.options.residual.empty()),
        sends_residuals_(!run.options.residual.empty()),
        low_rank_(
            layers_to_factor(learner_.replica().layers(), run.options.rank, run.options.min_ratio)),
        is_factored_(learner_.replica().layers().size()),
        gradient_(learner_.replica().weights().size()),
        mean_of_ranks_(transport_),
        q_own_(low_rank_.q_elements()) {
    for (const auto& of : low_rank_.layers()) is_factored_[of.layer] = 1;
    if (!sends_residuals_) memory_.resize(gradient_.size());
    begin();
  }

  [[nodiscard]] bool train(std::uint32_t step) {
    const bool plain = step < run_.options.start_step;
    compute_gradient(step, sends_residuals_ && !plain);
    if (plain) return step_along_plain_mean(step);
    const bool stopped = sends_residuals_ ? step_with_residuals(step) : step_with_memory(step);
    low_rank_.keep(q_);
    return stopped;
  }

 private:
  /// `begins_payload`: layers that are not factored are encoded as they come.
  void compute_gradient(std::uint32_t step, bool begins_payload) {
    if (begins_payload) {
      begin_payload(step, true);
    } else {
      begin_squares(step);
    }
    back_propagate(step, [&](std::size_t layer, std::span<const float> values) {
      if (begins_payload && is_factored_[layer] == 0) return put(layer, values);
      const auto own = of_layer(gradient_, layer);
      learner_.to_host(values, own);
      add_squares(layer, own);
    });
  }

  [[nodiscard]] bool step_along_plain_mean(std::uint32_t step) {
    tell_squares(step, gradient_, run_.options.gradient_scale(step));
    reduce(gradient_, "gradients");
    exchange_reports();
    see_squares(gradient_);
    return step_along(gradient_, step);
  }

  [[nodiscard]] bool step_with_memory(std::uint32_t step) {
    const auto scale = static_cast<float>(run_.options.gradient_scale(step));
    for (const auto& of : low_rank_.layers()) {
      for (std::size_t i = of.offset; i < of.end(); ++i) gradient_[i] += memory_[i] * scale;
    }
    find_factors(step);
    tell_projections(step, scale);
    exchange_reports();
    const auto began = Clock::now();
    mean_.assign(gradient_.size(), 0.0F);
    low_rank_.add_products(1, p(), q_, mean_);
    std::size_t at = low_rank_.p_elements();
    for_others([&](std::size_t layer) {
      const auto values = of_layer(mean_, layer);
      std::ranges::copy(std::span(summed_).subspan(at, values.size()), values.begin());
      at += values.size();
    });
    keep_rest(scale);
    see_squares(mean_);
    end_decoding(began);
    return step_along(mean_, step);
  }

  /// Of this rank's gradient, without its memory, the mean has what lies in the span of P, and the layers that are
  /// not factored as they are. The memory is a rank's own distance from the mean: it grows, and the ranks' add
  /// up to little.
  void tell_projections(std::uint32_t step, float scale) {
    if (!tells_squares()) return;
    const auto began = Clock::now();
    std::vector<float> q(q_own_.size()), own = gradient_;
    low_rank_.find_q(memory_, p(), q);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = q_own_[i] - scale * q[i];
    for (const auto& of : low_rank_.layers())
      std::fill_n(own.begin() + static_cast<std::ptrdiff_t>(of.offset), of.end() - of.offset, 0.0F);
    low_rank_.add_products(1, p(), q, own);
    report_.encode += milliseconds(Clock::now() - began);
    tell_squares(step, own, scale);
  }

  /// Once the mean gradient is there, which ends the run where it is not finite.
  void keep_rest(float scale) {
    for (const auto& of : low_rank_.layers()) {
      for (std::size_t i = of.offset; i < of.end(); ++i)
        memory_[i] = (gradient_[i] - mean_[i]) / scale;
    }
  }

  [[nodiscard]] bool step_with_residuals(std::uint32_t step) {
    find_factors(step);
    const auto began = Clock::now();
    low_rank_.add_products(-1, p(), q_own_, gradient_);
    report_.encode += milliseconds(Clock::now() - began);
    for (const auto& of : low_rank_.layers()) put(of.layer, of_layer(gradient_, of.layer));
    encode(step, corrupts(step));
    gather_lengths();
    gather_payloads();
    const auto mean = decode_mean(step);
    const auto decoded = Clock::now();
    low_rank_.add_products(1, p(), q_, mean);
    end_decoding(decoded);
    return step_along(mean, step);
  }

  /// P of all ranks, this rank's Q, and that of all. Without residuals the mean of the other layers
  /// stands behind P.
  void find_factors(std::uint32_t step) {
    const auto began = Clock::now();
    summed_.resize(low_rank_.p_elements());
    low_rank_.find_p(gradient_, run_.options.seed, step, p());
    if (!sends_residuals_) {
      for_others([&](std::size_t layer) {
        const auto values = of_layer(gradient_, layer);
        summed_.insert(summed_.end(), values.begin(), values.end());
      });
    }
    end_factoring(began, "P");
    reduce(summed_, "P");
    const auto added = Clock::now();
    low_rank_.orthonormalise(p());
    low_rank_.find_q(gradient_, p(), q_own_);
    q_ = q_own_;
    end_factoring(added, "Q");
    reduce(q_, "Q");
  }

  /// values <- their mean over the ranks.
  void reduce(std::span<float> values, const char* what) {
    const auto began = Clock::now();
    const auto traffic = mean_of_ranks_.take(values);
    report_.reduced_bytes += values.size_bytes();
    report_.sent += traffic.sent;
    report_.received += traffic.received;
    const auto end = Clock::now();
    wire_ += milliseconds(end - began);
    timeline_.span("all-reduce", what, began, end);
  }

  [[nodiscard]] std::span<float> p() { return std::span(summed_).first(low_rank_.p_elements()); }
  [[nodiscard]] std::span<float> of_layer(std::span<float> model, std::size_t layer) {
    auto& replica = learner_.replica();
    return model.subspan(replica.offset(layer), replica.layers()[layer].shape.elements());
  }
  template <class Visit>
  void for_others(const Visit& visit) {
    for (std::size_t layer = 0; layer < is_factored_.size(); ++layer) {
      if (is_factored_[layer] == 0) visit(layer);
    }
  }

  void end_factoring(Clock::time_point began, const char* what) {
    const auto end = Clock::now();
    report_.encode += milliseconds(end - began);
    timeline_.span("factor", what, began, end);
  }
  void end_decoding(Clock::time_point began) {
    const auto end = Clock::now();
    decode_ += milliseconds(end - began);
    timeline_.span("multiply", "", began, end);
  }

  [[nodiscard]] WorkerState own_state() override {
    auto state = learner_.state();
    state.arrays["q"] = low_rank_.kept();
    state.arrays["memory"] = memory_;
    return state;
  }
  void restore_own(const WorkerState& state) override {
    learner_.restore(state);
    low_rank_.kept() = state.arrays.at("q");
    memory_ = state.arrays.at("memory");
  }

  bool sends_residuals_;
  LowRank low_rank_;
  std::vector<std::uint8_t> is_factored_;  ///< of a layer
  std::vector<float> gradient_;            ///< M_k of all layers, then what is left of them
  std::vector<float> mean_;                ///< of the ranks' gradients
  std::vector<float> memory_;              ///< e_k of the factored layers among zeros, or nothing
  RankMean mean_of_ranks_;
  std::vector<float> summed_;     ///< P, and without residuals the layers that are not factored
  std::vector<float> q_own_, q_;  ///< this rank's, and the mean of all
};

}  // namespace

Outcome power_sgd(Run& run) { return run_peer<PowerSgd>(run); }

}  // namespace train
