// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the algorithms without a server share that cut the model into shards, one a rank: rank s
/// ends up with the sum of shard s, and all ranks with the payload of it.

#include <atomo/compressor.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "exchange/background.hpp"
#include "exchange/coder.hpp"
#include "exchange/shards.hpp"
#include "roles/peer.hpp"

namespace train {

/// A payload in memory that stays put while it travels.
struct Message {
  std::vector<std::byte> memory{};
  std::uint64_t bytes = 0;
  [[nodiscard]] atomo::ConstBytes payload() const { return std::span(memory).first(bytes); }
};

class ShardedPeer : public Peer {
 protected:
  explicit ShardedPeer(Run& run);

  /// A shard of this rank's gradient as a message of its own. The channel keeps the draws of this
  /// rank's messages of a step apart.
  struct Own {
    std::size_t channel;
    Message* message;
  };
  /// How a shard of this rank's gradient is encoded, as soon as back-propagation has all of it;
  /// without a message it is not.
  [[nodiscard]] virtual Own own_message(std::size_t s) = 0;
  /// That message is there. Back-propagation may go on.
  virtual void own_encoded(std::size_t s) = 0;

  /// This rank's gradient into `own_`, and its shards into messages.
  void compute_gradient(std::uint32_t step);
  /// Shard `s` of an array of the coder's, of the whole model.
  void encode(std::size_t s, std::span<const float> model, std::uint32_t step, std::size_t channel,
              Message& message);
  /// model += alpha * what rank `from` sent of shard `s`. A payload that is refused is remembered,
  /// for `agree`, and leaves nothing but zeros in the shard.
  void decode_add(std::size_t s, const Message& message, std::size_t from, float alpha,
                  std::span<float> model);

  [[nodiscard]] Transfer receive(std::size_t from, int tag, Message& message);
  /// What is posted here is waited for in `agree`.
  void send(std::size_t to, int tag, Message& message);
  /// Waits for a message.
  void take(Transfer& transfer, Message& message, const char* what);

  /// Exchanges reports once every message is there. A refused payload is known to one rank alone:
  /// all hear of it before they go on. \throws Fault naming who sent it.
  void agree(std::uint32_t step);
  /// One optimiser step along alpha times what `means_` decode to. Returns whether a process was
  /// interrupted.
  [[nodiscard]] bool step_along_means(float alpha, std::uint32_t step);

  [[nodiscard]] Shard& mine() noexcept { return shards_[rank_]; }

  std::size_t rank_;
  std::vector<Shard> shards_;
  std::unique_ptr<Coder> coder_;
  std::span<float> own_;        ///< gradient of the whole model, an array of the coder's
  std::vector<Message> sent_;   ///< by shard: what this rank tells of it
  std::vector<Message> means_;  ///< by shard: what all ranks decode

 private:
  void decoded(Clock::time_point begin);
  void encode_own(std::size_t s, std::uint32_t step);
  /// Hands on what was encoded so far.
  void take_own();
  void encode(std::size_t s, std::span<const float> model, std::uint32_t step, std::size_t channel,
              Message& message, atomo::Executor* executor);

  std::vector<float> gradient_;  ///< of the whole model, the mean
  std::span<float> sum_;         ///< the same where the coder works
  std::vector<Transfer> outgoing_;
  bool corrupt_next_ = false;
  std::vector<std::size_t> shard_of_;  ///< by layer
  std::vector<std::size_t> missing_;   ///< by shard: layers that back-propagation has not reached
  std::deque<std::size_t> encoding_;   ///< shards, in the order in which they were complete
  Background background_;              ///< last: what it works on outlives it
};

}  // namespace train
