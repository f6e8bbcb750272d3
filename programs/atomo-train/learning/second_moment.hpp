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
///
/// Means are told as logarithms, from which the mean logarithm of the layer's rows, or columns, is taken
/// away: their spread is some units, so a bit or two each tell them, by dithered blocks; the sum of g_k^2, in
/// f32, says what all rows come to. The draws of blocks leave no bias in a logarithm. Means over workers are
/// of the means and not of their logarithms: a row that one worker alone has seen counts as a part of what that
/// worker says.

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
  double of_decoded = 0;    ///< sum of the squares of what messages average to
  std::uint32_t steps = 1;  ///< since squares were told last, this one included
};

/// One worker's message about its squares, and all workers' put together. A message is a container of two
/// layers: the logarithms, and sums in f32.
class SquaresExchange {
 public:
  /// `bits` of a message for each row and column.
  SquaresExchange(std::span<const atomo::LayerSpec> layers, std::size_t workers, double bits);

  [[nodiscard]] const std::vector<FactoredLayer>& layers() const noexcept { return layers_; }
  /// Of the longest message.
  [[nodiscard]] std::size_t max_bytes() const noexcept { return message_.size(); }

  /// Takes the squares of layer `number` of the model, in units of `scale`^2.
  void add(std::size_t number, std::span<const float> gradient, double scale);
  /// The message, valid until the next call. `decoded` is what this worker's own message of the
  /// gradient decodes to, all layers one behind the other.
  [[nodiscard]] atomo::ConstBytes encode(const atomo::Key& key, std::span<const float> decoded,
                                         double scale);
  /// Forgets what was read.
  void begin();
  /// Reads the message of one worker. Nothing is added of one that is refused.
  [[nodiscard]] atomo::Status decode_add(atomo::ConstBytes message);
  /// Of factored layer i, once all are read. `average` is the mean of what the workers' messages of
  /// the gradient decode to, all layers one behind the other; `steps` are those since the last messages.
  [[nodiscard]] LayerSquares squares(std::size_t i, std::span<const float> average, double scale,
                                     std::uint32_t steps) const;

 private:
  struct Arrays {
    std::vector<float> means;  ///< row means, column means, layer by layer
    std::vector<float> sums;   ///< of g^2 and of c^2, of each layer
  };
  /// Calls `each(i, first, count, other)` for the rows, then the columns, of factored layer i: where its
  /// means begin, how many there are, and of how many entries one is.
  template <class Each>
  void for_each_side(Each each) const;

  std::size_t workers_;
  std::vector<FactoredLayer> layers_;
  std::vector<std::size_t> begin_;  ///< of each layer's means
  Arrays own_, all_;                ///< of this worker, and of all
  std::vector<float> logarithms_;
  std::unique_ptr<atomo::Compressor> compressor_;
  std::vector<std::byte> message_, workspace_;
};

}  // namespace train
