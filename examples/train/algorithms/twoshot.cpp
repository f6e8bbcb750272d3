// SPDX-License-Identifier: Apache-2.0
/// \file
/// Two shots: each rank adds up one shard of the model for all. What a rank sends and receives
/// hardly grows with their number W, where an all-gather's grows with W - 1; but gradients are
/// encoded twice.
///
///   every rank k, every step; shard s is a run of layers that rank s adds up
///   ------------------------------------------------------------------------
///   g_k <- back-propagation over this rank's samples
///   for every shard s:
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
#include <atomo/atomo.hpp>
#include <stdexcept>

#include "algorithms/algorithms.hpp"
#include "exchange/shards.hpp"
#include "roles/peer.hpp"

namespace train {
namespace {

enum Tag : int { kShardTag = 20, kMeanTag };

/// A payload in memory that stays put while it travels.
struct Message {
  std::vector<std::byte> memory{};
  std::uint64_t bytes = 0;
  [[nodiscard]] atomo::ConstBytes payload() const { return std::span(memory).first(bytes); }
};

class TwoShot final : public Peer {
 public:
  explicit TwoShot(Run& run)
      : Peer(run),
        rank_(static_cast<std::size_t>(transport_.rank())),
        shards_(cut_into_shards(learner_.replica().layers(),
                                atomo::Policy::parse(run.options.policy), workers_)),
        own_(learner_.replica().weights().size()),
        mean_(own_.size()),
        gradient_(own_.size()),
        sent_(workers_),
        received_(workers_),
        means_(workers_) {
    std::size_t workspace = 0;
    for (std::size_t s = 0; s < workers_; ++s) {
      if (shards_[s].empty()) continue;
      const auto& compressor = *shards_[s].compressor;
      sent_[s].memory.resize(compressor.max_encoded_bytes());
      means_[s].memory.resize(compressor.max_encoded_bytes());
      workspace = std::max(workspace, compressor.workspace_bytes());
    }
    for (auto& message : received_) message.memory.resize(sent_[rank_].memory.size());
    workspace_.resize(workspace);
    begin();
  }

  [[nodiscard]] bool train(std::uint32_t step) {
    const auto& replica = learner_.replica();
    back_propagate(step, [&](std::size_t layer, std::span<const float> gradient) {
      std::copy(gradient.begin(), gradient.end(),
                own_.begin() + static_cast<std::ptrdiff_t>(replica.offset(layer)));
    });
    send_shards(step);
    add_my_shard();
    send_mean(step);
    gather_means(step);
    decode_means(step);
    return step_along(gradient_, step);
  }

 private:
  /// First shot, outwards. What a rank sends itself does not travel.
  void send_shards(std::uint32_t step) {
    incoming_.assign(workers_, {});
    outgoing_.clear();
    for (std::size_t j = 0; j < workers_ && !mine().empty(); ++j) {
      if (j != rank_) incoming_[j] = receive(j, kShardTag, received_[j]);
    }
    for (std::size_t s = 0; s < workers_; ++s) {
      if (shards_[s].empty()) continue;
      encode(s, own_, step, s, sent_[s]);
      if (first() && run_.options.corrupt_payload_at == step)
        sent_[s].memory[sent_[s].bytes / 2] ^= std::byte{1};
      if (s == rank_) continue;
      outgoing_.push_back(send(s, kShardTag, sent_[s]));
      report_.payload_bytes += sent_[s].bytes;
    }
  }

  /// First shot, inwards: in rank order, so that the sum does not depend on who was first.
  void add_my_shard() {
    if (mine().empty()) return;
    const auto views = mine().views_of(std::span(mean_));
    std::fill_n(mean_.begin() + static_cast<std::ptrdiff_t>(mine().offset), mine().elements, 0.0F);
    for (std::size_t j = 0; j < workers_; ++j) {
      if (j != rank_) take(incoming_[j], received_[j], "all to all");
      const auto begin = Clock::now();
      const auto status = mine().compressor->decode_add(
          (j == rank_ ? sent_ : received_)[j].payload(), 1.0F / static_cast<float>(workers_), views,
          {.workspace = workspace_});
      if (atomo::failed(status) && report_.refused == 0) {
        report_.refused = j + 1;
        report_.refusal = static_cast<std::uint64_t>(status);
      }
      decoded(begin);
    }
  }

  /// Second shot, outwards. The mean of a refused payload is worth nothing, but is awaited.
  void send_mean(std::uint32_t step) {
    if (report_.refused != 0) std::fill(mean_.begin(), mean_.end(), 0.0F);
    for (std::size_t s = 0; s < workers_; ++s) {
      if (s != rank_ && !shards_[s].empty()) incoming_[s] = receive(s, kMeanTag, means_[s]);
    }
    if (mine().empty()) return;
    encode(rank_, mean_, step, workers_, means_[rank_]);
    for (std::size_t j = 0; j < workers_; ++j) {
      if (j == rank_) continue;
      outgoing_.push_back(send(j, kMeanTag, means_[rank_]));
    }
    report_.payload_bytes += means_[rank_].bytes;
  }

  /// Second shot, inwards. A refused payload is known to one rank alone, so all have to hear of it
  /// before they go on.
  void gather_means(std::uint32_t step) {
    for (std::size_t s = 0; s < workers_; ++s) {
      if (s != rank_ && !shards_[s].empty()) take(incoming_[s], means_[s], "all-gather");
    }
    const auto begin = Clock::now();
    transport_.wait(outgoing_);
    exchange_reports();
    wire_ += milliseconds(Clock::now() - begin);
    for (const auto& report : reports_) {
      if (report.refused == 0) continue;
      check_payload(static_cast<atomo::Status>(report.refusal),
                    static_cast<int>(report.refused) - 1, step);
    }
  }

  void decode_means(std::uint32_t step) {
    const auto begin = Clock::now();
    for (std::size_t s = 0; s < workers_; ++s) {
      if (shards_[s].empty()) continue;
      check_payload(shards_[s].compressor->decode(means_[s].payload(),
                                                  shards_[s].views_of(std::span(gradient_)),
                                                  {.workspace = workspace_}),
                    static_cast<int>(s), step);
    }
    decoded(begin);
  }

  void encode(std::size_t s, std::span<const float> model, std::uint32_t step, std::size_t channel,
              Message& message) {
    auto& shard = shards_[s];
    const auto begin = Clock::now();
    auto key = learner_.key(step);
    key.channel = static_cast<std::uint16_t>(channel);
    check_encoded(
        shard.compressor->encode(shard.views_of(model), key,
                                 {message.memory.data(), message.memory.size(), &message.bytes},
                                 {.workspace = workspace_}),
        step);
    const auto end = Clock::now();
    report_.encode += milliseconds(end - begin);
    timeline_.span("encode", "shard " + std::to_string(s + 1), begin, end);
  }

  Transfer send(std::size_t rank, Tag tag, const Message& message) {
    report_.sent += message.bytes;
    return transport_.send(static_cast<int>(rank), tag, message.payload());
  }
  Transfer receive(std::size_t rank, Tag tag, Message& message) {
    return transport_.receive(static_cast<int>(rank), tag, message.memory);
  }
  void take(Transfer& transfer, Message& message, const char* what) {
    const auto begin = Clock::now();
    transport_.wait(transfer);
    message.bytes = transfer.received;
    report_.received += message.bytes;
    const auto end = Clock::now();
    wire_ += milliseconds(end - begin);
    timeline_.span(what, "", begin, end);
  }
  void decoded(Clock::time_point begin) {
    const auto end = Clock::now();
    decode_ += milliseconds(end - begin);
    timeline_.span("decode", "", begin, end);
  }

  Shard& mine() noexcept { return shards_[rank_]; }

  std::size_t rank_;
  std::vector<Shard> shards_;
  std::vector<float> own_, mean_, gradient_;  ///< of the whole model, the mean of my shard alone
  std::vector<Message> sent_;                 ///< by shard
  std::vector<Message> received_;             ///< my shard, by rank
  std::vector<Message> means_;                ///< by shard
  std::vector<Transfer> incoming_, outgoing_;
  std::vector<std::byte> workspace_;
};

}  // namespace

Outcome two_shot(Run& run) { return run_peer<TwoShot>(run); }

}  // namespace train
