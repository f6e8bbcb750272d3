// SPDX-License-Identifier: Apache-2.0
/// \file
/// Reduce-scatter and all-gather by messages from each rank to each: the values are cut into W parts
/// whose lengths differ by one element at most, and rank k adds up part k. No rank has to wait for
/// a neighbour's sum, as in a ring, and as many bytes are sent.

#include "exchange/rank_mean.hpp"

#include <algorithm>

namespace train {
namespace {

enum Tag : int { kPartTag = 50, kMeanTag };

}  // namespace

RankMean::Traffic RankMean::take(std::span<float> values) {
  const auto ranks = static_cast<std::size_t>(transport_.size());
  const auto rank = static_cast<std::size_t>(transport_.rank());
  const auto part = [&](std::size_t k) {
    const std::size_t begin = values.size() * k / ranks, end = values.size() * (k + 1) / ranks;
    return values.subspan(begin, end - begin);
  };
  const auto mine = part(rank);
  const auto of_rank = [&](std::size_t k) {
    return std::span(received_).subspan(k * mine.size(), mine.size());
  };
  received_.resize(ranks * mine.size());
  Traffic traffic;
  std::vector<Transfer> transfers;
  const auto exchange = [&](int tag, const auto& sent, const auto& received) {
    for (std::size_t k = 0; k < ranks; ++k) {
      if (k == rank) continue;
      const auto into = std::as_writable_bytes(received(k));
      const auto from = std::as_bytes(sent(k));
      if (!into.empty()) transfers.push_back(transport_.receive(static_cast<int>(k), tag, into));
      if (!from.empty()) transfers.push_back(transport_.send(static_cast<int>(k), tag, from));
      traffic.received += into.size();
      traffic.sent += from.size();
    }
    transport_.wait(transfers);
    transfers.clear();
  };

  exchange(kPartTag, part, of_rank);
  std::ranges::copy(mine, of_rank(rank).begin());
  sum_.assign(mine.size(), 0.0F);
  const float share = 1.0F / static_cast<float>(ranks);
  for (std::size_t k = 0; k < ranks; ++k) {
    const auto values_of_rank = of_rank(k);
    for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += share * values_of_rank[i];
  }
  std::ranges::copy(sum_, mine.begin());
  exchange(
      kMeanTag, [&](std::size_t) { return mine; }, part);
  return traffic;
}

}  // namespace train
