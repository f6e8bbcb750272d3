// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "learning/split.hpp"

namespace train {

/// Which samples a worker sees at each step: a permutation of its pool an epoch, a function of the
/// seed and the step alone, so a resumed run needs no stored position.
class DataOrder {
 public:
  /// \throws std::runtime_error when one step of all who read the pool needs more than it has.
  DataOrder(Share share, std::size_t batch, std::uint64_t seed);
  [[nodiscard]] std::span<const std::uint32_t> samples(std::uint32_t step);

 private:
  void shuffle_for(std::uint64_t epoch);
  Share share_;
  std::size_t batch_, steps_per_epoch_;
  std::uint64_t seed_;
  std::uint64_t epoch_ = ~std::uint64_t{0};
  std::vector<std::uint32_t> order_;
};

/// The same for every standard library, unlike std::shuffle.
void shuffle(std::span<std::uint32_t> numbers, std::mt19937_64& random);

}  // namespace train
