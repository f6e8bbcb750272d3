// SPDX-License-Identifier: Apache-2.0
#include "learning/data_order.hpp"

#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace train {

DataOrder::DataOrder(std::size_t samples, std::size_t workers, std::size_t batch,
                     std::uint64_t seed)
    : workers_(workers),
      batch_(batch),
      steps_per_epoch_(samples / (workers * batch)),
      seed_(seed),
      order_(samples) {
  if (steps_per_epoch_ == 0) {
    throw std::runtime_error("a step of " + std::to_string(workers) + " workers with --batch " +
                             std::to_string(batch) + " needs " + std::to_string(workers * batch) +
                             " samples, the training set has " + std::to_string(samples));
  }
}

std::span<const std::uint32_t> DataOrder::samples(std::uint32_t step, std::size_t worker) {
  const std::uint64_t epoch = step / steps_per_epoch_;
  if (epoch != epoch_) shuffle(epoch);
  const std::size_t first = ((step % steps_per_epoch_) * workers_ + worker) * batch_;
  return std::span(order_).subspan(first, batch_);
}

void DataOrder::shuffle(std::uint64_t epoch) {
  epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), 0U);
  std::seed_seq seeds{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32),
                      static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)};
  std::mt19937_64 random(seeds);
  for (std::size_t i = order_.size(); i > 1; --i) {
    // A modulo is off by less than i / 2^64; std::shuffle would differ between standard libraries.
    std::swap(order_[i - 1], order_[random() % i]);
  }
}

}  // namespace train
