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
  /// Passes over the pool before a step.
  [[nodiscard]] std::uint64_t epoch(std::uint32_t step) const noexcept {
    return step / steps_per_epoch_;
  }
  [[nodiscard]] std::size_t steps_per_epoch() const noexcept { return steps_per_epoch_; }

 private:
  void shuffle_for(std::uint64_t epoch);
  Share share_;
  std::size_t batch_, steps_per_epoch_;
  std::uint64_t seed_;
  std::uint64_t epoch_ = ~std::uint64_t{0};
  std::vector<std::uint32_t> order_;
};

/// Of `epochs` passes of the worker that has the most samples over its share, so that every sample
/// of the run is seen. \throws std::runtime_error as `share_of` and `DataOrder` do, and for more
/// steps than a run can have.
[[nodiscard]] std::uint32_t steps_of_epochs(std::uint32_t epochs, const SplitSpec& split,
                                            const Samples& samples, std::size_t batch,
                                            std::size_t workers, std::uint64_t seed);

/// The same for every standard library, unlike std::shuffle.
void shuffle(std::span<std::uint32_t> numbers, std::mt19937_64& random);

}  // namespace train
