// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Weights on their way from the servers to the workers, each server those of its layers.

#include <cstdint>
#include <span>
#include <vector>

#include "exchange/shards.hpp"
#include "exchange/transport.hpp"
#include "learning/replica.hpp"

namespace train {

inline constexpr int kWeightsTag = 100;

/// A server's end. Sends are posted and never waited for: a worker that does not take its weights
/// holds up nobody.
class WeightSender {
 public:
  WeightSender(Transport& transport, const Shard& shard) : transport_(transport), shard_(shard) {}
  /// The shard's part of `weights`, as it is now, to some workers.
  void send(std::span<const std::size_t> workers, std::span<const float> weights);

 private:
  /// A message that stays put until the last of its sends is done.
  struct Parcel {
    std::vector<std::byte> bytes;
    std::vector<Transfer> transfers;
  };
  [[nodiscard]] Parcel& free_parcel();

  Transport& transport_;
  const Shard& shard_;
  std::vector<Parcel> parcels_;
};

/// A worker's end: every server's weights into their place. Returns the bytes that came.
std::uint64_t receive_weights(Transport& transport, std::span<const Shard> shards,
                              std::span<float> weights);

}  // namespace train
