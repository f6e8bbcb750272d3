// SPDX-License-Identifier: Apache-2.0
#include "exchange/weight_stream.hpp"

#include <algorithm>

namespace train {

void WeightSender::send(std::span<const std::size_t> workers, std::span<const float> weights) {
  auto& parcel = free_parcel();
  const auto bytes = std::as_bytes(weights.subspan(shard_.offset, shard_.elements));
  parcel.bytes.assign(bytes.begin(), bytes.end());
  for (const std::size_t worker : workers) {
    parcel.transfers.push_back(transport_.send(transport_.rank_of_worker(static_cast<int>(worker)),
                                               kWeightsTag, parcel.bytes));
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

std::uint64_t receive_weights(Transport& transport, std::span<const Shard> shards,
                              std::span<float> weights) {
  std::vector<Transfer> transfers;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    transfers.push_back(transport.receive(
        static_cast<int>(s), kWeightsTag,
        std::as_writable_bytes(weights.subspan(shards[s].offset, shards[s].elements))));
  }
  transport.wait(transfers);
  std::uint64_t bytes = 0;
  for (const auto& transfer : transfers) bytes += transfer.received;
  return bytes;
}

}  // namespace train
