// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a server does between rounds: tests, checkpoints, orders.

#include <algorithm>

#include "interrupt.hpp"
#include "roles/server.hpp"

namespace train {

void Server::order(int rank, const Order& order) {
  auto transfer = transport_.send(rank, kOrderTag, bytes_of(order));
  transport_.wait(transfer);
}

void Server::order_workers(const Order& text) {
  for (int k = 0; k < transport_.workers(); ++k) order(transport_.rank_of_worker(k), text);
}

void Server::order_servers(const Order& text) {
  for (int rank = 1; rank < transport_.servers(); ++rank) order(rank, text);
}

Order Server::receive_order() {
  Order text;
  auto transfer = transport_.receive(kLead, kOrderTag, writable_bytes_of(text));
  transport_.wait(transfer);
  return text;
}

void Server::collect(std::span<float> model) {
  if (!leads()) {
    auto transfer = transport_.send(kLead, kSliceTag, std::as_bytes(mine(model)));
    return transport_.wait(transfer);
  }
  std::vector<Transfer> transfers;
  for (std::size_t s = 1; s < shards_.size(); ++s) {
    const auto part = model.subspan(shards_[s].offset, shards_[s].elements);
    transfers.push_back(
        transport_.receive(static_cast<int>(s), kSliceTag, std::as_writable_bytes(part)));
  }
  transport_.wait(transfers);
}

void Server::test() {
  wait_for_arrivals();
  order_workers({What::test, step_});
  order_servers({What::test, step_});
  sender_.send(everybody_, replica_.weights());
  const std::size_t workers = everybody_.size();
  if (!replica_.buffers().empty()) {
    std::vector<float> all;
    for (const std::size_t k : everybody_) {
      const auto bytes = transport_.receive_any_length(
          transport_.rank_of_worker(static_cast<int>(k)), kBuffersTag);
      const auto* values = reinterpret_cast<const float*>(bytes.data());
      all.insert(all.end(), values, values + bytes.size() / sizeof(float));
    }
    const auto mean = mean_over_workers(all, workers);
    for (const std::size_t k : everybody_) {
      auto transfer = transport_.send(transport_.rank_of_worker(static_cast<int>(k)),
                                      kMeanBuffersTag, std::as_bytes(std::span(mean)));
      transport_.wait(transfer);
    }
  }
  std::vector<Score> scores(workers);
  std::vector<Transfer> transfers;
  for (const std::size_t k : everybody_) {
    transfers.push_back(transport_.receive(transport_.rank_of_worker(static_cast<int>(k)),
                                           kScoreTag, writable_bytes_of(scores[k])));
  }
  transport_.wait(transfers);
  log_scores(*log_, step_, scores);
}

void Server::save() {
  wait_for_arrivals();
  order_workers({What::save, step_});
  order_servers({What::save, step_});
  auto moments = collect_state();
  const auto weights = replica_.weights();
  Checkpoint checkpoint{run_.options.fingerprint(transport_.workers()),
                        step_,
                        log_->sent_bytes(),
                        {weights.begin(), weights.end()},
                        std::move(moments),
                        {}};
  for (int k = 0; k < transport_.workers(); ++k) {
    checkpoint.workers.push_back(WorkerState::unpack(
        transport_.receive_any_length(transport_.rank_of_worker(k), kStateTag)));
  }
  write_checkpoint(run_.options.save, checkpoint, replica_.layers());
  log_->checkpoint(step_);
}

std::vector<std::vector<float>> Server::collect_state() {
  collect(replica_.weights());
  std::vector<std::vector<float>> moments;
  for (const auto& moment : optimiser_->moments()) {
    auto& whole = moments.emplace_back(replica_.weights().size());
    std::copy(moment.begin(), moment.end(), mine(whole).begin());
    collect(whole);
  }
  return moments;
}

void Server::dismiss() {
  wait_for_arrivals();
  order_workers({What::stop, step_});
  order_servers({What::stop, step_});
  const bool early = stopped_ && step_ < run_.last_step();
  log_->finish(step_, early);
  outcome_ = early ? Outcome::interrupted : Outcome::finished;
}

void Server::restore() {
  const auto checkpoint = run_.resume(replica_);
  if (!checkpoint) return;
  step_ = checkpoint->step;
  sent_before_ = checkpoint->sent_bytes;
  for (auto& seat : seats_) seat.next_step = step_;
  std::copy(checkpoint->weights.begin(), checkpoint->weights.end(), replica_.weights().begin());
  for (std::size_t m = 0; m < checkpoint->moments.size(); ++m) {
    auto whole = checkpoint->moments[m];
    const auto part = mine(whole);
    std::copy(part.begin(), part.end(), optimiser_->moments()[m].begin());
  }
}

}  // namespace train
