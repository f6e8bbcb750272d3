// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// An all-reduce whose result has the same bits on all ranks.

#include <cstdint>
#include <span>
#include <vector>

#include "exchange/transport.hpp"

namespace train {

/// Means over the ranks of a run without servers. Each element is added up by one rank, in rank
/// order, and its mean goes to all: MPI_Allreduce need not give the same bits everywhere.
class RankMean {
 public:
  struct Traffic {
    std::uint64_t sent = 0, received = 0;  ///< bytes to and from others
  };

  /// `transport` outlives it.
  explicit RankMean(Transport& transport) : transport_(transport) {}

  /// values <- their mean over the ranks, which all have as many. Waits for all of them. The ranks
  /// together send 2 (W - 1) times the bytes of `values`. \throws Fault
  Traffic take(std::span<float> values);

 private:
  Transport& transport_;
  std::vector<float> received_, sum_;  ///< of this rank's part: of each rank, and of all
};

}  // namespace train
