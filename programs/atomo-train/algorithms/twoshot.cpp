// SPDX-License-Identifier: Apache-2.0
/// \file
/// Two shots: each rank adds up one shard of the model for all. What a rank sends and receives
/// hardly grows with their number W, where an all-gather's grows with W - 1; but gradients are
/// encoded twice.
///
///   every rank k, every step; shard s is a run of layers that rank s adds up
///   ------------------------------------------------------------------------
///   g_k <- back-propagation over this rank's samples; for every shard s, once g_k of it is there:
///     send encode(g_k of s, channel s) to rank s                    first shot: all to all
///   m <- sum over ranks j, in rank order, of decode(payload of j) / W, of shard k
///   send encode(m, channel W) to every rank                         second shot: all-gather
///   for every shard s:
///     g of s <- decode(payload of rank s)
///   w <- optimiser(w, g)
///
/// The owner of a shard decodes its own mean again, too: all ranks take the same step. A shard has
/// a price of its own, so a budget in bits a parameter holds for each.

#include <algorithm>

#include "algorithms/algorithms.hpp"
#include "roles/sharded_peer.hpp"

namespace train {
namespace {

enum Tag : int { kShardTag = 20, kMeanTag };

class TwoShot final : public ShardedPeer {
 public:
  explicit TwoShot(Run& run)
      : ShardedPeer(run), mean_(coder_->make_array(own_.size())), received_(workers_) {
    for (auto& message : received_) message.memory.resize(sent_[rank_].memory.size());
    begin();
  }

  [[nodiscard]] bool train(std::uint32_t step) {
    await_shards();
    compute_gradient(step);
    add_my_shard();
    send_mean(step);
    gather_means();
    agree(step);
    return step_along_means(1, step);
  }

 private:
  /// First shot: what the others send of my shard may come while this rank computes.
  void await_shards() {
    incoming_.assign(workers_, {});
    for (std::size_t j = 0; j < workers_ && !mine().empty(); ++j) {
      if (j != rank_) incoming_[j] = receive(j, kShardTag, received_[j]);
    }
  }

  /// First shot, outwards.
  [[nodiscard]] Own own_message(std::size_t s) override { return {s, &sent_[s]}; }
  /// What a rank sends itself does not travel.
  void own_encoded(std::size_t s) override {
    if (s == rank_) return;
    send(s, kShardTag, sent_[s]);
    report_.payload_bytes += sent_[s].bytes;
  }

  /// First shot, inwards: in rank order, so that the sum does not depend on who was first.
  void add_my_shard() {
    if (mine().empty()) return;
    coder_->clear(mine().part_of(mean_));
    for (std::size_t j = 0; j < workers_; ++j) {
      if (j != rank_) take(incoming_[j], received_[j], "all to all");
      decode_add(rank_, (j == rank_ ? sent_ : received_)[j], j, 1.0F / static_cast<float>(workers_),
                 mean_);
    }
  }

  /// Second shot, outwards. The mean of a refused payload is worth nothing, but is awaited.
  void send_mean(std::uint32_t step) {
    for (std::size_t s = 0; s < workers_; ++s) {
      if (s != rank_ && !shards_[s].empty()) incoming_[s] = receive(s, kMeanTag, means_[s]);
    }
    if (mine().empty()) return;
    encode(rank_, mean_, step, workers_, means_[rank_]);
    for (std::size_t j = 0; j < workers_; ++j) {
      if (j != rank_) send(j, kMeanTag, means_[rank_]);
    }
    report_.payload_bytes += means_[rank_].bytes;
  }

  /// Second shot, inwards.
  void gather_means() {
    for (std::size_t s = 0; s < workers_; ++s) {
      if (s != rank_ && !shards_[s].empty()) take(incoming_[s], means_[s], "all-gather");
    }
  }

  std::span<float> mean_;          ///< of the whole model; only my shard is used
  std::vector<Message> received_;  ///< my shard, by rank
  std::vector<Transfer> incoming_;
};

}  // namespace

Outcome two_shot(Run& run) { return run_peer<TwoShot>(run); }

}  // namespace train
