// SPDX-License-Identifier: Apache-2.0
/// \file
/// The sender posts its part of the weights to each worker, as plain floats or as an encoded
/// difference, which it also decodes into its own view of what the worker has. Messages stay in
/// memory until their sends are done, because a server waits for no worker. The receiver fills one
/// array of the whole model from the messages of all servers.

#include "exchange/weight_stream.hpp"

#include <algorithm>
#include <atomo/own_codec.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace train {
namespace {

/// Channels of keys: 0 is the workers' way up.
constexpr std::uint16_t kToAll = 1, kToFirstWorker = 2;

}  // namespace

WeightSender::WeightSender(Transport& transport, Shard& shard, std::unique_ptr<Coder> coder,
                           Threads& threads, Views views, std::span<const float> weights)
    : transport_(transport),
      shard_(shard),
      coder_(std::move(coder)),
      threads_(threads),
      kind_(views) {
  if (kind_ != Views::none) views_.emplace_back(weights.begin(), weights.end());
  if (kind_ != Views::encoded || shard_.empty()) return;
  change_.resize(shard_.elements);
  coder_->prepare(*shard_.compressor, Coder::Messages::whole);
}

void WeightSender::send(std::span<const std::size_t> workers, std::span<const float> weights,
                        atomo::Key key) {
  const bool all = workers.size() == static_cast<std::size_t>(transport_.workers());
  if (kind_ != Views::none && !all) split_views();
  if (kind_ != Views::encoded || shard_.empty()) {
    send_plain(workers, weights);
    if (kind_ == Views::none) return;
    for (const std::size_t k : workers)
      std::copy(weights.begin(), weights.end(), views_[views_.size() == 1 ? 0 : k].begin());
    return;
  }
  key.worker = static_cast<std::uint16_t>(transport_.rank());
  key.channel = kToAll;
  if (views_.size() == 1) return send_change(workers, weights, views_.front(), key);
  for (const std::size_t k : workers) {
    key.channel = static_cast<std::uint16_t>(kToFirstWorker + k);
    send_change(std::span(&k, 1), weights, views_[k], key);
  }
}

void WeightSender::send_plain(std::span<const std::size_t> workers,
                              std::span<const float> weights) {
  auto& parcel = free_parcel();
  const auto bytes = std::as_bytes(weights);
  parcel.bytes.assign(bytes.begin(), bytes.end());
  parcel.length = bytes.size();
  post(parcel, workers);
}

void WeightSender::send_change(std::span<const std::size_t> workers, std::span<const float> weights,
                               std::vector<float>& view, const atomo::Key& key) {
  for (std::size_t i = 0; i < change_.size(); ++i) change_[i] = weights[i] - view[i];
  auto& parcel = free_parcel();
  parcel.bytes.resize(shard_.compressor->max_encoded_bytes());
  std::uint64_t length = 0;
  auto status = coder_->encode(*shard_.compressor, change_, key,
                               {parcel.bytes.data(), parcel.bytes.size(), &length}, threads_.all());
  parcel.length = length;
  if (!atomo::failed(status)) {
    status = coder_->decode_add(*shard_.compressor, std::span(parcel.bytes).first(length), 1, view);
  }
  if (atomo::failed(status)) {
    throw std::runtime_error("cannot encode the change of the weights before step " +
                             std::to_string(key.step) + " (--down): " + atomo::explain(status));
  }
  post(parcel, workers);
}

std::span<const float> WeightSender::view(std::size_t worker) const {
  return views_.size() == 1 ? views_.front() : views_[worker];
}

void WeightSender::set_view(std::size_t worker, std::span<const float> weights) {
  if (std::equal(weights.begin(), weights.end(), view(worker).begin())) return;
  if (worker == 0 && views_.size() == 1) {
    views_.front().assign(weights.begin(), weights.end());  // of all, unless another one differs
    return;
  }
  split_views();
  views_[worker].assign(weights.begin(), weights.end());
}

void WeightSender::split_views() {
  if (views_.size() == 1) views_.resize(static_cast<std::size_t>(transport_.workers()), views_[0]);
}

void WeightSender::post(Parcel& parcel, std::span<const std::size_t> workers) {
  for (const std::size_t k : workers) {
    parcel.transfers.push_back(transport_.send(transport_.rank_of_worker(static_cast<int>(k)),
                                               kWeightsTag,
                                               std::span(parcel.bytes).first(parcel.length)));
  }
}

WeightSender::Parcel& WeightSender::free_parcel() {
  const auto is_free = [this](Parcel& parcel) {
    return std::all_of(parcel.transfers.begin(), parcel.transfers.end(),
                       [this](auto& transfer) { return transport_.done(transfer); });
  };
  auto found = std::find_if(parcels_.begin(), parcels_.end(), is_free);
  if (found == parcels_.end()) found = parcels_.emplace(parcels_.end());
  found->transfers.clear();
  return *found;
}

WeightReceiver::WeightReceiver(Transport& transport, std::span<Shard> shards,
                               std::unique_ptr<Coder> coder, bool encoded,
                               std::span<const float> weights)
    : transport_(transport),
      shards_(shards),
      coder_(std::move(coder)),
      encoded_(encoded),
      weights_(weights.begin(), weights.end()),
      messages_(shards.size()) {
  for (std::size_t s = 0; encoded_ && s < shards_.size(); ++s) {
    if (shards_[s].empty()) continue;
    messages_[s].resize(shards_[s].compressor->max_encoded_bytes());
    coder_->prepare(*shards_[s].compressor, Coder::Messages::whole);
  }
}

std::uint64_t WeightReceiver::receive(std::uint32_t step) {
  std::vector<Transfer> transfers;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    auto into = encoded_ ? atomo::Bytes(messages_[s])
                         : std::as_writable_bytes(shards_[s].part_of(std::span(weights_)));
    transfers.push_back(transport_.receive(static_cast<int>(s), kWeightsTag, into));
  }
  transport_.wait(transfers);
  std::uint64_t bytes = 0;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    bytes += transfers[s].received;
    if (!encoded_ || shards_[s].empty()) continue;
    const auto status = coder_->decode_add(*shards_[s].compressor,
                                           std::span(messages_[s]).first(transfers[s].received), 1,
                                           shards_[s].part_of(std::span(weights_)));
    if (!atomo::failed(status)) continue;
    const int rank = static_cast<int>(s);
    throw Fault(rank, transport_.name(rank) + " sent weights that are refused, step " +
                          std::to_string(step) + ": " + atomo::explain(status));
  }
  return bytes;
}

void WeightReceiver::receive_plain(std::span<float> weights) {
  std::vector<Transfer> transfers;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    transfers.push_back(transport_.receive(static_cast<int>(s), kWeightsTag,
                                           std::as_writable_bytes(shards_[s].part_of(weights))));
  }
  transport_.wait(transfers);
}

}  // namespace train
