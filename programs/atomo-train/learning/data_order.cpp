// SPDX-License-Identifier: Apache-2.0
/// \file
/// Each epoch has a permutation of its own, drawn from the run's seed, the number of the epoch and
/// the number of the pool. Workers that read the same pool draw the same permutation, and each
/// takes the batches of it that its share names. A pool that is too small for one step is refused
/// when the run starts.

#include "learning/data_order.hpp"

#include <algorithm>
#include <limits>
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
  if (epoch(step) != epoch_) shuffle_for(epoch(step));
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

std::uint32_t steps_of_epochs(std::uint32_t epochs, const SplitSpec& split, const Samples& samples,
                              std::size_t batch, std::size_t workers, std::uint64_t seed) {
  std::uint64_t most = 0;  // steps of an epoch
  for (std::size_t k = 0; k < workers; ++k) {
    const DataOrder order(share_of(split, samples, k, workers, seed), batch, seed);
    most = std::max<std::uint64_t>(most, order.steps_per_epoch());
  }
  constexpr std::uint64_t kMostSteps = std::numeric_limits<std::uint32_t>::max();
  if (most * epochs > kMostSteps) {
    throw std::runtime_error("--epochs: " + std::to_string(epochs) + " epochs of " +
                             std::to_string(most) +
                             " steps are more than a run can have; at most " +
                             std::to_string(kMostSteps / most) + " go");
  }
  return static_cast<std::uint32_t>(most * epochs);
}

void shuffle(std::span<std::uint32_t> numbers, std::mt19937_64& random) {
  for (std::size_t i = numbers.size(); i > 1; --i) {
    // A modulo is off by less than i / 2^64.
    std::swap(numbers[i - 1], numbers[random() % i]);
  }
}

}  // namespace train
