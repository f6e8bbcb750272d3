// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Arrays as long as the model, encoded by the policy, on their way between neighbours.
///
/// A message is the payload of the whole model, and behind it a tail of plain f32 values, as many
/// in every message. Between two nodes messages arrive in the order in which they left.

#include <atomo/atomo.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exchange/coder.hpp"
#include "exchange/threads.hpp"
#include "exchange/transport.hpp"
#include "learning/learner.hpp"

namespace train {

class Mail {
 public:
  /// What the last `begin_step` was followed by.
  struct Counts {
    double encode = 0, wait = 0, decode = 0;  ///< milliseconds
    std::uint64_t bytes = 0;                  ///< of messages, each once
    std::uint64_t sent = 0, received = 0;     ///< bytes to and from neighbours, every copy
  };

  /// `tail` values ride behind every payload. `learner` and `threads` have to outlive it.
  Mail(Transport& transport, Learner& learner, std::unique_ptr<Coder> coder, Threads& threads,
       std::size_t tail);

  void begin_step(std::uint32_t step);
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

  /// Gets ready for a message of `rank`, so that it can travel while this process computes.
  void expect(int rank);
  /// Encodes `model` once, under the step's key and `channel`, and posts it to all of `ranks`.
  /// `decoded`, where it is not empty, becomes what they decode it to.
  /// \throws std::runtime_error when it cannot be encoded.
  void send(std::span<const int> ranks, std::span<const float> model, std::span<const float> tail,
            std::uint16_t channel, std::span<float> decoded);
  /// Whether an earlier message to `rank` is still on its way.
  [[nodiscard]] bool busy(int rank);
  /// Waits for the next message of `rank`. \throws Fault naming it when it died, froze or sent what
  /// is refused.
  void receive(int rank, std::span<float> model, std::span<float> tail);
  /// Takes the latest of the messages of `rank` that have arrived; without one, returns false.
  [[nodiscard]] bool receive_latest(int rank, std::span<float> model, std::span<float> tail);

  /// Nothing more is sent to a lost process nor received from it.
  void forget(int rank);

  /// Flips a bit of the next message's payload: whom it reaches must refuse it.
  void corrupt_next() noexcept { corrupt_next_ = true; }

  /// Tells `ranks` that no more comes, and takes what of theirs is still on its way. Needed where
  /// messages were not all received.
  void close(std::span<const int> ranks);

 private:
  struct Outgoing {
    std::vector<std::byte> memory;
    std::map<int, Transfer> transfers;  ///< by rank
  };
  struct Incoming {
    std::vector<std::byte> memory;
    Transfer transfer;
    bool expected = false, closed = false;
  };

  Outgoing& free_message();
  void decode(int rank, atomo::ConstBytes message, std::span<float> model, std::span<float> tail);

  Transport& transport_;
  Learner& learner_;
  std::unique_ptr<Coder> coder_;
  Threads& threads_;
  std::size_t tail_bytes_;
  std::uint32_t step_ = 0;
  Counts counts_;
  bool corrupt_next_ = false;
  std::vector<std::shared_ptr<Outgoing>> outgoing_;
  std::map<int, Incoming> incoming_;  ///< by rank
  std::vector<std::byte> latest_;
};

}  // namespace train
