// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a server does between rounds: orders, tests, checkpoints, the end.

#include <algorithm>

#include "roles/server.hpp"

namespace train {
namespace {

/// Of the weights that a step ahead is computed at, in a checkpoint.
constexpr const char* kHeld = "held";
constexpr const char* kView = "view";

}  // namespace

void Server::order(int rank, const Order& order) {
  auto transfer = transport_.send(rank, kOrderTag, bytes_of(order));
  transport_.wait(transfer);
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

std::vector<float> Server::whole(std::span<const float> part) {
  std::vector<float> model(replica_->weights().size());
  std::copy(part.begin(), part.end(), mine(std::span<float>(model)).begin());
  collect(model);
  return model;
}

bool Server::test() {
  const auto there = wait_for_arrivals();
  for (std::size_t i = 0; i < there.size(); ++i) {
    const Order text{.what = What::test,
                     .step = step_,
                     .worker = static_cast<std::uint32_t>(there[i]),
                     .part = static_cast<std::uint32_t>(i),
                     .parts = static_cast<std::uint32_t>(there.size()),
                     .whole = ahead() ? 1U : 0U};
    order(rank_of(there[i]), text);
    order_servers(text);
  }
  sender_.send_plain(there, weights());
  if (!replica_->buffers().empty()) average_buffers(there);
  std::vector<Score> scores(there.size());
  std::vector<Transfer> transfers;
  for (std::size_t i = 0; i < there.size(); ++i) {
    transfers.push_back(
        transport_.receive(rank_of(there[i]), kScoreTag, writable_bytes_of(scores[i])));
  }
  transport_.wait(transfers);
  const auto score = total_of(scores);
  if (score) log_->evaluation(step_, *score);
  return score.has_value();
}

void Server::average_buffers(std::span<const std::size_t> workers) {
  std::vector<float> all;
  for (const std::size_t k : workers) {
    const auto bytes = transport_.receive_any_length(rank_of(k), kBuffersTag);
    const auto* values = reinterpret_cast<const float*>(bytes.data());
    all.insert(all.end(), values, values + bytes.size() / sizeof(float));
  }
  const auto mean = mean_over_workers(all, workers.size());
  std::vector<Transfer> transfers;
  for (const std::size_t k : workers) {
    transfers.push_back(
        transport_.send(rank_of(k), kMeanBuffersTag, std::as_bytes(std::span(mean))));
  }
  transport_.wait(transfers);
}

void Server::save() {
  check_weights(weights(), step_);
  const auto there = wait_for_arrivals();
  for (const std::size_t k : there) order(rank_of(k), {.what = What::save, .step = step_});
  order_servers({.what = What::save, .step = step_});
  auto checkpoint = collect_state();
  checkpoint.fingerprint = run_.options.fingerprint(transport_.workers());
  checkpoint.step = step_;
  checkpoint.owes_test = owes_test_;
  checkpoint.sent_bytes = log_->sent_bytes();
  const auto model = replica_->weights();
  checkpoint.weights.assign(model.begin(), model.end());
  std::vector<float> buffers;
  checkpoint.workers.resize(workers());
  for (const std::size_t k : there) {
    auto& state = checkpoint.workers[k];
    state = WorkerState::unpack(transport_.receive_any_length(rank_of(k), kStateTag));
    buffers.insert(buffers.end(), state.buffers.begin(), state.buffers.end());
  }
  // One that gives no sign of life begins afresh; its statistics do not change the mean of all.
  const auto mean = mean_over_workers(buffers, there.size());
  for (auto& state : checkpoint.workers) {
    if (state.compressor.empty()) state.buffers = mean;
  }
  run_.save(checkpoint, replica_->layers());
  log_->checkpoint(step_);
}

Checkpoint Server::collect_state() {
  Checkpoint checkpoint;
  collect(replica_->weights());
  for (const auto& moment : optimiser_->moments()) checkpoint.moments.push_back(whole(moment));
  for (const auto& [name, values] : kept_) checkpoint.arrays[name] = whole(*values);
  if (run_.options.double_buffer) {
    // Held back, as a round that a checkpoint follows sends nobody ahead.
    checkpoint.arrays[kHeld] = whole(held_);
  }
  return checkpoint;
}

void Server::dismiss() {
  const auto there = wait_for_arrivals();
  std::vector<int> missing;
  for (const std::size_t k : everybody_) {
    if (std::ranges::find(there, k) == there.end()) missing.push_back(rank_of(k));
  }
  const Order stop{
      .what = What::stop, .step = step_, .missing = static_cast<std::uint32_t>(missing.size())};
  for (const std::size_t k : there) order(rank_of(k), stop);
  order_servers(stop);
  const bool early = stopped_ && step_ < run_.last_step();
  log_->finish(step_, early);
  outcome_ = early ? Outcome::interrupted : Outcome::finished;
  if (missing.empty()) return;
  // All is written; a worker that gives no sign of life would not come to the end with the others.
  for (const int rank : missing)
    log_->note("the run ended without " + transport_.name(rank) + ", which gave no sign of life");
  transport_.end_without(missing, early ? kInterruptedStatus : 0);
}

void Server::restore() {
  checkpoint_ = run_.resume(*replica_);
  if (!checkpoint_) return;
  step_ = checkpoint_->step;
  owes_test_ = checkpoint_->owes_test || run_.was_finished(step_);
  sent_before_ = checkpoint_->sent_bytes;
  std::copy(checkpoint_->weights.begin(), checkpoint_->weights.end(), replica_->weights().begin());
  for (std::size_t m = 0; m < checkpoint_->moments.size(); ++m) {
    const auto part = mine(std::span<const float>(checkpoint_->moments[m]));
    optimiser_->moments()[m].assign(part.begin(), part.end());
  }
  // A worker that was missing when its state was asked for begins with the first weights, and so does
  // its view: not with that of worker 0, which is otherwise that of all.
  const auto has_view = [&](std::size_t k) {
    return checkpoint_->workers[k].arrays.contains(kView);
  };
  if (std::ranges::any_of(everybody_, has_view) && !std::ranges::all_of(everybody_, has_view))
    sender_.split_views();
  for (const std::size_t k : everybody_) {
    seats_[k].next_step = step_;
    const auto& arrays = checkpoint_->workers[k].arrays;
    if (const auto view = arrays.find(kView); view != arrays.end())
      sender_.set_view(k, mine(std::span<const float>(view->second)));
  }
  if (const auto held = checkpoint_->arrays.find(kHeld); held != checkpoint_->arrays.end()) {
    const auto part = mine(std::span<const float>(held->second));
    held_.assign(part.begin(), part.end());
  }
}

void Server::keep(const std::string& name, std::vector<float>& values) {
  kept_.emplace_back(name, &values);
  if (!checkpoint_) return;
  if (const auto found = checkpoint_->arrays.find(name); found != checkpoint_->arrays.end()) {
    const auto part = mine(std::span<const float>(found->second));
    values.assign(part.begin(), part.end());
  }
}

void Server::restore_copies(const std::string& name,
                            std::vector<std::vector<float>>& values) const {
  for (std::size_t k = 0; checkpoint_ && k < values.size(); ++k) {
    const auto& arrays = checkpoint_->workers[k].arrays;
    if (const auto found = arrays.find(name); found != arrays.end()) {
      const auto part = mine(std::span<const float>(found->second));
      values[k].assign(part.begin(), part.end());
    }
  }
}

}  // namespace train
