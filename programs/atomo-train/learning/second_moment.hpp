// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What workers tell each other of the squares of their gradients, so that Adam's second moment does
/// not have to be taken from decoded gradients, whose noise is in it.
///
/// Of a matrix each worker k sends the means of g_k^2 over its rows and over its columns, the sum of
/// g_k^2, and the sum of c_k^2, c_k being what its message decodes to. Of the average a over W workers
///
///   E sum a^2 = (sum over k of sum g_k^2 + sum over j != k of <c_j, c_k>) / W^2
///
/// without bias, since the messages' draws are independent and unbiased, and the second sum is
/// |sum c_k|^2 - sum |c_k|^2. So the second moment of the average's entry (i, j) is taken as that of
/// one worker's gradient, row mean i times column mean j over the mean of all (Adafactor, arXiv
/// 1804.04235, section 3), times the ratio of the two sums.

#include <atomo/atomo.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace train {

/// A layer whose second moment is factored: its first dimension by all others.
struct FactoredLayer {
  std::size_t layer = 0, offset = 0;  ///< its number, and where it begins in the weights
  std::size_t rows = 0, columns = 0;

  [[nodiscard]] std::size_t elements() const noexcept { return rows * columns; }
};
/// Those of a model; a layer with a side below 4 keeps a moment for each entry.
[[nodiscard]] std::vector<FactoredLayer> factored_layers(std::span<const atomo::LayerSpec> layers);

/// What all workers' squares of a layer come to.
struct LayerSquares {
  std::span<const float> row_means, column_means;  ///< of g_k^2, means over workers
  double of_one = 0;                               ///< sum of g_k^2, mean over workers
  double of_average = 0;                           ///< estimate of the sum of the average's squares
  double of_decoded = 0;  ///< sum of the squares of what messages average to
};

/// One worker's message about its squares, and all workers' put together. The message is a container
/// of fixed size: means by `natural`, 9 bits each, sums in f32.
class SquaresExchange {
 public:
  SquaresExchange(std::span<const atomo::LayerSpec> layers, std::size_t workers);

  [[nodiscard]] const std::vector<FactoredLayer>& layers() const noexcept { return layers_; }
  [[nodiscard]] std::size_t message_bytes() const noexcept { return message_.size(); }

  /// Takes the squares of layer `number` of the model, in units of `scale`^2.
  void add(std::size_t number, std::span<const float> gradient, double scale);
  /// The message, valid until the next call. `decoded` is what this worker's own message of the
  /// gradient decodes to, all layers one behind the other.
  [[nodiscard]] atomo::ConstBytes encode(const atomo::Key& key, std::span<const float> decoded,
                                         double scale);
  /// Reads the messages of all workers, one behind the other. Returns what became of each.
  [[nodiscard]] std::vector<atomo::Status> decode(atomo::ConstBytes messages);
  /// Of factored layer i, once all are read. `average` is the mean of what the workers' messages of
  /// the gradient decode to, all layers one behind the other.
  [[nodiscard]] LayerSquares squares(std::size_t i, std::span<const float> average,
                                     double scale) const;

 private:
  [[nodiscard]] std::span<float> of_rows(std::vector<float>& values, std::size_t i) noexcept {
    return std::span(values).subspan(begin_[i], layers_[i].rows);
  }
  [[nodiscard]] std::span<float> of_columns(std::vector<float>& values, std::size_t i) noexcept {
    return std::span(values).subspan(begin_[i] + layers_[i].rows, layers_[i].columns);
  }

  std::size_t workers_;
  std::vector<FactoredLayer> layers_;
  std::vector<std::size_t> begin_;  ///< of each layer's means in `own_` and `mean_`
  std::vector<float> own_, mean_;   ///< row means, column means, layer by layer; then sums
  std::size_t sums_at_ = 0;         ///< sums of g^2 and of c^2, a layer each
  std::vector<atomo::Shape> shapes_;
  std::unique_ptr<atomo::Compressor> compressor_;
  std::vector<std::byte> message_, workspace_;
};

}  // namespace train
