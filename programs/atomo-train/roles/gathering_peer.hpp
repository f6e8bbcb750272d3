// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the algorithms share in which every rank gets every payload: an array of the model, encoded
/// whole by each rank, and its mean over them. The calls come in this order:
///
///   begin_payload(step, ...), put(layer, values)..., encode(step, ...), gather_lengths(),
///   gather_payloads(), decode_mean(step)

#include <memory>
#include <optional>
#include <span>

#include "exchange/exchange.hpp"
#include "roles/peer.hpp"

namespace train {

class GatheringPeer : public Peer {
 protected:
  /// `gathers`: there are payloads. Without, no call but those of `Peer` and of squares may follow, and no
  /// memory is taken for them.
  explicit GatheringPeer(Run& run, MakeOptimiser make = &Run::make_optimiser, bool gathers = true);

  /// A new payload, with the draws of `step`. `computing`: back-propagation goes on between its
  /// layers, so what encoding can do for a layer alone is done when it comes, where the process has
  /// a thread to spare; and what comes has the step's loss scale, which a memory does not see: it is
  /// divided out in front of it, in host memory, and `decode_mean` gives it back.
  void begin_payload(std::uint32_t step, bool computing);
  /// A layer of this rank's array, in the memory that the network computes in or the host's.
  void put(std::size_t layer, std::span<const float> values);
  /// The whole array into the payload. `corrupt`: flip a bit of it.
  void encode(std::uint32_t step, bool corrupt);
  /// Tells every rank of the squares of this one's gradients, of which `encode` made the payload,
  /// and takes in theirs. `put` has seen all layers. The optimiser sees them in `see_squares`.
  void exchange_squares(std::uint32_t step);
  /// The same without a payload, before reports are exchanged: `begin_squares`, `add_squares` of each layer as it is, and
  /// `tell_squares` with what others learn of them, all layers one behind the other. In a step that tells
  /// nothing the last two do nothing. Gradients have the step's loss scale, but `decoded` has `scale`.
  void begin_squares(std::uint32_t step);
  void add_squares(std::size_t layer, std::span<const float> gradient);
  void tell_squares(std::uint32_t step, std::span<const float> decoded, double scale);
  [[nodiscard]] bool tells_squares() const noexcept { return tells_squares_; }
  /// Tells every rank this one's gradients as they are, and the optimiser their average: an oracle's, so
  /// that no figure counts their bytes. `put` has seen all layers.
  void exchange_exact();
  /// Gives the optimiser the squares of a step that exchanged them.
  void see_squares(std::span<const float> average);
  /// Lengths, with the rest of the reports.
  void gather_lengths();
  /// Payloads, padded to the longest.
  void gather_payloads();
  /// The sum over ranks, in rank order, of decode(payload) / W. \throws Fault naming whose payload
  /// is refused.
  [[nodiscard]] std::span<float> decode_mean(std::uint32_t step);

  /// With the sums of differences.
  [[nodiscard]] WorkerState own_state() override;
  /// A checkpoint's memories are those of the policy of the last step before it.
  void restore_own(const WorkerState& state) override;

 private:
  void make_exchange(std::uint32_t step);
  /// Makes a layer of gradients what the exchange has of it: without what a memory does not see, in its
  /// units, times the rate that a memory has. Returns whether anything is to be done.
  bool prepare(std::size_t layer, std::span<float> values);
  /// What messages add up to so far, where they are differences.
  void add_up(std::span<float> values);
  /// All layers of what was decoded, one behind the other, become gradients again, but for the loss scale.
  void restore(std::span<float> values) const;

  std::unique_ptr<Exchange> exchange_;      ///< null where there are no payloads
  std::optional<SquaresExchange> squares_;  ///< where the second moment comes from them
  bool tells_squares_ = false;              ///< at this step
  std::vector<float> exact_;  ///< this rank's gradients, where the second moment is of them
  double scale_ = 1;          ///< of its gradients
  bool remembers_ = false;    ///< a codec has a memory
  std::vector<float> sums_;   ///< of all layers' means, where some layers' messages are differences
  float divisor_ = 1;         ///< the scale, where the payload is of gradients and one has
  std::vector<float> units_;  ///< with --precondition, of each entry of a gradient
  float rate_ = 1;            ///< with --rate-in-memory, of the step
  std::vector<float> on_host_;  ///< this rank's gradients, where something reads or changes them
};

}  // namespace train
