// SPDX-License-Identifier: Apache-2.0
/// \file
/// All-gather of payloads: no server, every rank holds the same weights and takes the same step.
///
///   every rank, every step
///   ----------------------
///   g_k <- back-propagation over this rank's samples; for every layer, once it is there:
///     what encoding can do without the price of the model
///   payload <- encode(g_k), the whole model at one price
///   with --second-moment factored, scaled or matched, every so many steps: all-gather of what is told of g_k's squares
///   with --second-moment exact: all-gather of g_k as it is, which no figure counts
///   lengths <- all-gather(length of payload)
///   payloads <- all-gather(payload, padded to the longest)
///   g <- sum over ranks, in rank order, of decode(payload) / W; with --vote the sign of the sum of signs
///   w <- optimiser(w, g)

#include "algorithms/algorithms.hpp"
#include "roles/gathering_peer.hpp"

namespace train {
namespace {

class Gatherer final : public GatheringPeer {
 public:
  explicit Gatherer(Run& run) : GatheringPeer(run) { begin(); }

  [[nodiscard]] bool train(std::uint32_t step) {
    begin_payload(step, true);
    back_propagate(
        step, [this](std::size_t layer, std::span<const float> gradient) { put(layer, gradient); });
    encode(step, corrupts(step));
    exchange_squares(step);
    exchange_exact();
    gather_lengths();
    gather_payloads();
    const auto mean = decode_mean(step);
    see_squares(mean);
    return step_along(mean, step);
  }
};

}  // namespace

Outcome all_gather(Run& run) { return run_peer<Gatherer>(run); }

}  // namespace train
