// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Weights on their way from the servers to the workers, each server those of its layers.
///
/// They travel as they are, or as encoded changes. Then the server keeps a view of what a worker
/// has: it sends C(w - view), and both ends add what that decodes to. What a message leaves out is
/// still in the next difference, so errors do not add up. All workers share one view until one of
/// them gets a message of its own.

#include <atomo/types.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/coder.hpp"
#include "exchange/shards.hpp"
#include "exchange/threads.hpp"
#include "exchange/transport.hpp"

namespace train {

inline constexpr int kWeightsTag = 100;

/// A server's end. Sends are posted and never waited for: a worker that does not take its weights
/// holds up nobody. All arrays are the shard's part of the model.
class WeightSender {
 public:
  enum class Views {
    none,        ///< weights travel as they are
    remembered,  ///< so do they, and `view` tells what each worker has
    encoded,     ///< changes travel, by the shard's compressor
  };

  /// All workers begin with `weights`.
  WeightSender(Transport& transport, Shard& shard, std::unique_ptr<Coder> coder, Threads& threads,
               Views views, std::span<const float> weights);

  /// The next weights of some workers. `key`: of the run and the step; who and where to is filled
  /// in. \throws std::runtime_error when a change cannot be encoded.
  void send(std::span<const std::size_t> workers, std::span<const float> weights, atomo::Key key);
  /// As they are, and without a trace in the views.
  void send_plain(std::span<const std::size_t> workers, std::span<const float> weights);
  /// What a worker has when all that was sent has come.
  [[nodiscard]] std::span<const float> view(std::size_t worker) const;
  void set_view(std::size_t worker, std::span<const float> weights);
  /// Gives every worker a view of its own, as long as all have one the one that is there.
  void split_views();

 private:
  /// A message that stays put until the last of its sends is done.
  struct Parcel {
    std::vector<std::byte> bytes;
    std::size_t length = 0;
    std::vector<Transfer> transfers;
  };
  [[nodiscard]] Parcel& free_parcel();
  void post(Parcel& parcel, std::span<const std::size_t> workers);
  /// Moves `view` towards `weights` by a message that is posted.
  void send_change(std::span<const std::size_t> workers, std::span<const float> weights,
                   std::vector<float>& view, const atomo::Key& key);

  Transport& transport_;
  Shard& shard_;
  std::unique_ptr<Coder> coder_;
  Threads& threads_;
  Views kind_;
  std::vector<std::vector<float>> views_;  ///< one a worker, or one for all
  std::vector<float> change_;
  std::vector<Parcel> parcels_;
};

/// A worker's end.
class WeightReceiver {
 public:
  /// `weights`: of the whole model, at the beginning. `encoded`: changes travel.
  WeightReceiver(Transport& transport, std::span<Shard> shards, std::unique_ptr<Coder> coder,
                 bool encoded, std::span<const float> weights);
  /// Every server's message into its place of `weights()`. Returns the bytes that came.
  /// \throws Fault naming the server whose message is refused, and why.
  std::uint64_t receive(std::uint32_t step);
  /// What `send_plain` sent.
  void receive_plain(std::span<float> weights);
  /// As they came.
  [[nodiscard]] std::vector<float>& weights() noexcept { return weights_; }

 private:
  Transport& transport_;
  std::span<Shard> shards_;
  std::unique_ptr<Coder> coder_;
  bool encoded_;
  std::vector<float> weights_;
  std::vector<std::vector<std::byte>> messages_;  ///< one a server
};

}  // namespace train
