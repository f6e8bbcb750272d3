// SPDX-License-Identifier: Apache-2.0
/// \file
/// Ring all-reduce on payloads: every rank talks to two neighbours only, and what it sends and
/// receives, twice (W - 1) / W of the model, hardly grows with the number of ranks W.
///
///   every rank k, every step; shard s is a run of layers; ranks and shards count modulo W
///   -------------------------------------------------------------------------------------
///   g <- back-propagation over this rank's samples; once g of shard k-1 is there:
///     p <- encode(g of shard k-1, channel 0)
///   for hop = 1 .. W-1:                                               reduce-scatter
///     send p to rank k+1
///     receive from rank k-1 the payload q of a partial sum of shard s = k-hop-1
///     p <- add(q, encode(g of s, channel hop))          where payloads of the codec add, otherwise
///     p <- encode(decode(q) + g of s, channel hop)
///   p is now the payload of the sum of shard k over all ranks
///   for hop = 1 .. W-1:                                               all-gather
///     send p to rank k+1; p <- the payload of the sum of shard k-hop from rank k-1
///   w <- optimiser(w, sums decoded / W)
///
/// All ranks decode the same bytes and take the same step. A partial sum is encoded again at every
/// hop, with the errors it has by then. For an unbiased codec with E|decode(x) - x|^2 <= omega
/// |x|^2 the squared error of the sum S_h of h gradients is at most
///
///   e_h = (1 + omega) e_{h-1} + omega |S_h|^2,   e_0 = 0,
///
/// and that of the mean e_W / W^2. Where W omega is far below 1 and the gradients are independent
/// and of one length, that is about omega / 2 of a gradient's square however many ranks there are,
/// where an all-gather has omega / W; where omega is not small it grows like (1 + omega)^W, and two
/// shots or an all-gather are the better choice. Payloads that add (`delta=`) are rounded once, by
/// the rank whose gradient they are, and the error is that of an all-gather.

#include <algorithm>
#include <atomo/arithmetic.hpp>
#include <atomo/atomo.hpp>

#include "algorithms/algorithms.hpp"
#include "roles/sharded_peer.hpp"

namespace train {
namespace {

enum Tag : int { kSumTag = 30, kMeanTag };

class Ring final : public ShardedPeer {
 public:
  explicit Ring(Run& run) : ShardedPeer(run), adds_(workers_), parts_(workers_) {
    for (std::size_t s = 0; s < workers_; ++s) {
      if (shards_[s].empty()) continue;
      make_room_for_sums(s);
      received_.memory.resize(std::max(received_.memory.size(), sent_[s].memory.size()));
    }
    begin();
  }

  [[nodiscard]] bool train(std::uint32_t step) {
    await_sum(1);
    compute_gradient(step);
    reduce_scatter(step);
    all_gather();
    agree(step);
    return step_along_means(1.0F / static_cast<float>(workers_), step);
  }

 private:
  /// The first shard goes round as it is; the others' parts are needed as payloads where these add.
  [[nodiscard]] Own own_message(std::size_t s) override {
    const std::size_t hop = (before(1) + workers_ - s) % workers_;  // on which it is added to a sum
    if (hop == 0) return {0, &sum_of(s)};
    return {hop, adds_[s] != 0 ? &parts_[s] : nullptr};
  }
  void own_encoded(std::size_t s) override {
    if (s == before(1) && workers_ > 1) send_sum(s);
  }

  void send_sum(std::size_t s) {
    send(after(), kSumTag, sum_of(s));
    report_.payload_bytes += sum_of(s).bytes;
  }
  void await_sum(std::size_t hop) {
    const bool comes = hop < workers_ && !shards_[before(hop + 1)].empty();
    incoming_ = comes ? receive(before(1), kSumTag, received_) : Transfer{};
  }

  void reduce_scatter(std::uint32_t step) {
    for (std::size_t hop = 1; hop < workers_; ++hop) {
      const std::size_t s = before(hop + 1);
      if (!shards_[s].empty()) {
        take(incoming_, received_, "reduce-scatter");
        add_own(s, step, hop);
      }
      await_sum(hop + 1);
      if (hop + 1 < workers_ && !shards_[s].empty()) send_sum(s);
    }
  }

  /// The payload that came plus this rank's part, as a payload.
  void add_own(std::size_t s, std::uint32_t step, std::size_t hop) {
    if (adds_[s] != 0 && add_undecoded(s)) return;
    // Other codecs, levels beyond what adds, or a payload that is refused: decoding tells which.
    decode_add(s, received_, before(1), 1, own_);
    encode(s, own_, step, hop, sum_of(s));
  }

  bool add_undecoded(std::size_t s) {
    const auto begin = Clock::now();
    auto& sum = sum_of(s);
    const atomo::ConstBytes both[] = {parts_[s].payload(), received_.payload()};
    const auto status =
        atomo::add(both, add_workspace_, {sum.memory.data(), sum.memory.size(), &sum.bytes});
    const auto end = Clock::now();
    decode_ += milliseconds(end - begin);
    timeline_.span("add payloads", "shard " + std::to_string(s + 1), begin, end);
    return !atomo::failed(status);
  }

  void all_gather() {
    for (std::size_t hop = 1; hop < workers_; ++hop) {
      const std::size_t out = before(hop - 1), in = before(hop);
      Transfer incoming;
      if (!shards_[in].empty()) incoming = receive(before(1), kMeanTag, means_[in]);
      if (!shards_[out].empty()) send(after(), kMeanTag, means_[out]);
      if (!shards_[in].empty()) take(incoming, means_[in], "all-gather");
    }
    if (!mine().empty()) report_.payload_bytes += means_[rank_].bytes;
  }

  /// Whether the shard's payloads add undecoded, and memory for their sums, whose levels are larger
  /// than those of a gradient.
  void make_room_for_sums(std::size_t s) {
    auto& compressor = *shards_[s].compressor;
    for (std::size_t i = 0; i < compressor.layers().size(); ++i) {
      if (!compressor.codec(i).traits().linear) return;
    }
    auto& message = sent_[s];
    check_encoded(coder_->encode(compressor, shards_[s].part_of(own_), {},
                                 {message.memory.data(), message.memory.size(), &message.bytes},
                                 run_.threads.all()),
                  0);
    const atomo::ConstBytes zeros[] = {message.payload()};
    const std::uint64_t bound = atomo::added_bytes_bound(zeros);
    if (bound == 0) return;
    adds_[s] = 1;
    add_workspace_.resize(atomo::add_workspace_bytes(2));
    parts_[s].memory.resize(message.memory.size());
    for (auto* memory : {&message.memory, &means_[s].memory})
      memory->resize(std::max<std::size_t>(memory->size(), bound));
  }

  /// Shard `hop` places before this rank's own, and the rank that has it.
  [[nodiscard]] std::size_t before(std::size_t hop) const noexcept {
    return (rank_ + workers_ - hop) % workers_;
  }
  [[nodiscard]] std::size_t after() const noexcept { return (rank_ + 1) % workers_; }
  /// Where this rank writes what it knows of a shard's sum: of its own shard that is all of it.
  [[nodiscard]] Message& sum_of(std::size_t s) { return (s == rank_ ? means_ : sent_)[s]; }

  std::vector<std::uint8_t> adds_;  ///< of a shard: 1 when its payloads add undecoded
  Message received_;                ///< a partial sum of others
  Transfer incoming_;               ///< of it
  std::vector<Message> parts_;      ///< by shard: this rank's own part, where payloads add
  std::vector<std::byte> add_workspace_;
};

}  // namespace

Outcome ring(Run& run) { return run_peer<Ring>(run); }

}  // namespace train
