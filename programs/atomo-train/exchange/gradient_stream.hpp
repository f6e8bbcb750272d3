// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Gradients on their way to the server, a layer at a time while back-propagation runs.

#include <atomo/atomo.hpp>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "exchange/background.hpp"
#include "exchange/coder.hpp"
#include "exchange/threads.hpp"
#include "exchange/transport.hpp"
#include "learning/learner.hpp"
#include "run/timeline.hpp"

namespace train {

/// A payload of this one byte says that a layer is as it was: nothing is added for it. No message of a
/// codec is as short.
inline constexpr std::byte kUnchanged{0};

/// The worker's end: encodes a layer the moment its gradient exists and posts it to the server
/// that holds the layer.
class GradientSender {
 public:
  /// `server_of`: the rank that serves each layer. With `depth` 2 a step's payloads may still be on
  /// their way while those of the next one are made.
  GradientSender(Transport& transport, Learner& learner, std::unique_ptr<Coder> coder,
                 Threads& threads, std::vector<int> server_of, std::size_t depth);

  /// `computing`: back-propagation goes on between the layers of this step, so a thread beside it
  /// encodes them, where there is one; otherwise all threads do.
  void begin(std::uint32_t step, bool computing);
  /// One layer, any order; `gradient` may change afterwards. Posts the sends of the layers that are
  /// encoded. \throws std::runtime_error when one cannot be encoded.
  void push(std::size_t layer, std::span<const float> gradient, Timeline& timeline);
  /// Posts the last sends and, with a depth of 1, waits until everything is away.
  void finish(Timeline& timeline);
  /// After `begin`: payloads stay here until `let_go`, behind `finish`.
  void hold_back() noexcept { holds_ = true; }
  /// Sends the payloads that were held back, or of each layer `kUnchanged` in their place, and waits until
  /// everything is away. For a depth of 1.
  void let_go(bool changed);
  /// model <- model + scale of each layer * what its last payload decodes to.
  void add_sent(std::span<const float> scales, std::span<float> model);
  /// Flips a bit of the first payload of the step: the server must refuse it.
  void corrupt_next() noexcept { corrupt_next_ = true; }

  /// Since the step began: what encoding held up, and what of it went on beside back-propagation.
  [[nodiscard]] double encode_milliseconds() const noexcept { return background_.held(); }
  [[nodiscard]] double beside_milliseconds() const noexcept { return background_.beside(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  /// One payload a layer, which stays put until its send is done.
  struct Message {
    std::vector<std::vector<std::byte>> payloads;
    std::vector<std::uint64_t> lengths;
    std::vector<Transfer> transfers;
  };

  void encode(std::size_t layer, std::span<const float> gradient, bool corrupt);
  void send_encoded(Timeline& timeline);

  Transport& transport_;
  Learner& learner_;
  Threads& threads_;
  std::vector<int> server_of_;
  std::uint32_t step_ = 0;
  bool computing_ = false;
  bool corrupt_next_ = false;
  bool holds_ = false;
  std::uint64_t bytes_ = 0;
  std::vector<Message> messages_;
  std::size_t current_ = 0;
  std::unique_ptr<Coder> coder_;
  std::span<float> copies_;           ///< of gradients, for a thread beside back-propagation
  std::deque<std::size_t> not_sent_;  ///< layers that were pushed, in this order
  Background background_;             ///< last: what it works on outlives it
};

/// The server's end: adds payloads to the gradient as they come, each layer in rank order, so that
/// the sum does not depend on who was first. Payloads of a linear codec that `atomo::add` takes
/// (coordinates at one agreed step) are added as they are once all of a layer are there, and
/// decoded once: the values are those of decoding one by one up to that order of rounding, and the
/// same bits where a power of two workers have a step that is one (atomo/arithmetic.hpp).
class GradientReceiver {
 public:
  /// Of layers [first, last). At most `depth` messages of a worker may be on their way at once.
  /// `unchanged`: whether `kUnchanged` is a payload.
  GradientReceiver(Transport& transport, const atomo::Compressor& compressor,
                   std::unique_ptr<Coder> coder, const Replica& replica, std::size_t first,
                   std::size_t last, std::size_t depth, bool unchanged);

  /// Posts the receives of a worker's next message.
  void expect(std::size_t worker, std::uint32_t step);
  /// Messages of a worker that are expected and not yet taken.
  [[nodiscard]] std::size_t outstanding(std::size_t worker) const noexcept;
  /// Whether all of the oldest of them is there; never waits.
  [[nodiscard]] bool arrived(std::size_t worker);
  /// The step that the oldest of them is of.
  [[nodiscard]] std::uint32_t step(std::size_t worker) const noexcept;

  /// Takes the oldest message of each of `workers`, which ascend: their layers of `gradient` become
  /// the mean of what was sent. Every call has the same array. \throws Fault naming the worker whose
  /// payload is refused, and why.
  void take_mean(std::span<const std::size_t> workers, std::span<float> gradient,
                 Timeline& timeline);
  /// Takes the oldest message of a worker, which has arrived, and forgets it.
  void drop(std::size_t worker);

  /// Since the last call.
  [[nodiscard]] double take_decode_milliseconds() noexcept;

 private:
  /// A worker's layers, by their place among this server's.
  struct Message {
    std::uint32_t step = 0;
    std::vector<std::vector<std::byte>> payloads;
    std::vector<Transfer> transfers;
  };
  /// A ring of messages of one worker.
  struct Queue {
    std::vector<Message> messages;
    std::size_t expected = 0, taken = 0;
  };

  [[nodiscard]] Message& oldest(std::size_t worker);
  [[nodiscard]] atomo::ConstBytes payload_of(std::size_t worker, std::size_t layer);
  /// A layer of the sum.
  [[nodiscard]] std::span<float> sum_of(std::size_t layer) const;
  /// What became of a payload, as far as it is known.
  [[nodiscard]] atomo::Status& status_of(std::size_t worker, std::size_t layer);
  /// \throws Fault where it was refused.
  void check_payload(std::size_t worker, std::size_t layer);
  void add(std::size_t worker, std::size_t layer, float share, Timeline& timeline);
  /// All payloads of a layer, undecoded where that is possible.
  void add_together(std::span<const std::size_t> workers, std::size_t layer, Timeline& timeline);
  /// The payload of their sum; empty when they do not add.
  atomo::ConstBytes payload_of_sum(std::span<const std::size_t> workers, std::size_t layer);

  Transport& transport_;
  const atomo::Compressor& compressor_;
  std::unique_ptr<Coder> coder_;
  const Replica& replica_;
  std::size_t first_, last_;
  bool unchanged_;
  double decode_milliseconds_ = 0;
  std::vector<Queue> queues_;            ///< one a worker
  std::span<float> sum_;                 ///< of these layers, where the coder works
  std::vector<atomo::Status> statuses_;  ///< of the payloads that are taken, by worker and layer
  std::vector<std::uint8_t> adds_;       ///< of a layer: 1 when its payloads may add undecoded
  std::vector<std::byte> payload_sum_, sum_workspace_;
};

/// A layer of a flat array.
[[nodiscard]] inline std::span<float> layer_of(std::span<float> flat, const Replica& replica,
                                               std::size_t layer) {
  return flat.subspan(replica.offset(layer), replica.layers()[layer].shape.elements());
}

}  // namespace train
