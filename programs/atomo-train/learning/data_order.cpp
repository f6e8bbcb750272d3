// SPDX-License-Identifier: Apache-2.0
/// \file
/// Each epoch has a permutation of its own, drawn from the run's seed, the number of the epoch and
/// the number of the pool. Workers that read the same pool draw the same permutation, and each
/// takes the batches of it that its share names. A pool that is too small for one step is refused
/// when the run starts.

#include "learning/data_order.hpp"

#include <stdexcept>
#include <string>
#include <utility>

namespace train {

DataOrder::DataOrder(Share share, std::size_t batch, std::uint64_t seed)
    : share_(std::move(share)),
      batch_(batch),
      steps_per_epoch_(share_.samples.size() / (share_.readers * batch)),
      seed_(seed) {
  if (steps_per_epoch_ == 0) {
    const std::string who =
        share_.readers == 1 ? "a worker" : std::to_string(share_.readers) + " workers";
    throw std::runtime_error("a step of " + who + " with --batch " + std::to_string(batch) +
                             " needs " + std::to_string(share_.readers * batch) +
                             " samples, the training set has " +
                             std::to_string(share_.samples.size()) + " for it");
  }
}

std::span<const std::uint32_t> DataOrder::samples(std::uint32_t step) {
  const std::uint64_t epoch = step / steps_per_epoch_;
  if (epoch != epoch_) shuffle_for(epoch);
  const std::size_t batch = (step % steps_per_epoch_) * share_.readers + share_.place;
  return std::span(order_).subspan(batch * batch_, batch_);
}

void DataOrder::shuffle_for(std::uint64_t epoch) {
  epoch_ = epoch;
  order_ = share_.samples;
  std::seed_seq seeds{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32),
                      static_cast<std::uint32_t>(epoch), share_.pool};
  std::mt19937_64 random(seeds);
  shuffle(order_, random);
}

void shuffle(std::span<std::uint32_t> numbers, std::mt19937_64& random) {
  for (std::size_t i = numbers.size(); i > 1; --i) {
    // A modulo is off by less than i / 2^64.
    std::swap(numbers[i - 1], numbers[random() % i]);
  }
}

}  // namespace train
