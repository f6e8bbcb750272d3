// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace train {

/// Which samples each worker sees at each step: a permutation an epoch, a function of the seed and
/// the step alone, so a resumed run needs no stored position.
class DataOrder {
 public:
  /// \throws std::runtime_error when one step of all workers needs more samples than there are.
  DataOrder(std::size_t samples, std::size_t workers, std::size_t batch, std::uint64_t seed);
  [[nodiscard]] std::span<const std::uint32_t> samples(std::uint32_t step, std::size_t worker);

 private:
  void shuffle(std::uint64_t epoch);
  std::size_t workers_, batch_, steps_per_epoch_;
  std::uint64_t seed_;
  std::uint64_t epoch_ = ~std::uint64_t{0};
  std::vector<std::uint32_t> order_;
};

}  // namespace train
