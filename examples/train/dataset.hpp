// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Labelled images from disk: MNIST and Fashion-MNIST (idx files, plain or gzip), CIFAR-10 (binary
/// version).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace train {

struct ImageShape {
  std::int64_t channels = 1, height = 28, width = 28;
  [[nodiscard]] std::size_t pixels() const noexcept {
    return static_cast<std::size_t>(channels * height * width);
  }
};

inline constexpr std::int64_t kClasses = 10;

struct Dataset {
  ImageShape shape;
  std::vector<std::uint8_t> images;  ///< size() x channels x height x width
  std::vector<std::uint8_t> labels;  ///< size(), below kClasses
  [[nodiscard]] std::size_t size() const noexcept { return labels.size(); }
};

enum class Split { train, test };

/// \throws std::runtime_error naming the file that is missing or wrong, and the package that holds
/// Fashion-MNIST.
[[nodiscard]] Dataset load_dataset(const std::string& folder, Split split);

/// Mean and standard deviation of each channel, of pixels scaled to [0, 1].
struct Normalisation {
  std::vector<float> mean, deviation;
};
[[nodiscard]] Normalisation measure(const Dataset& dataset);

/// A batch ready for a network: normalised pixels and labels.
struct Batch {
  std::vector<float> images;
  std::vector<std::int64_t> labels;
};
void gather(const Dataset& dataset, const Normalisation& by, std::span<const std::uint32_t> which,
            Batch& batch);

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
