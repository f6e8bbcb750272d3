// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Adam and AdamW, with the second moment of matrices as the settings say.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "learning/optimiser.hpp"

namespace train {

/// m <- b1 m + (1 - b1) g;  s <- b2 s + (1 - b2) g^2;  w <- w - lr m^ / (sqrt(s^) + eps), ^
/// corrected for the zero start. The decay d w is added to g, or, decoupled, to what lr multiplies.
///
/// Of a matrix workers may tell squares (second_moment.hpp). Running means R and C of the row and
/// column means, of the sum of one worker's squares and of the average's make the factored second
/// moment: s^ of entry (i, j) is R_i C_j / mean(R) times the ratio of the last two, which is kept
/// between half of 1 / W, what independent gradients would give, and 1.
/// An entry whose gradient was 0 whenever squares were told would move without bound, so m^ / sqrt(s^)
/// is kept within what Adam's own moments allow: (1 - b1) / sqrt(1 - b2) (arXiv 1412.6980, section 2.1).
///
/// Scaled: s^ is Adam's own, times the running mean of the average's squares over that of the decoded
/// average's, which hold the noise; kept between 1 / 1024 and 1. Matched: the update is Adam's own,
/// times the root mean square of the factored one over its own. Exact: the g of s is not the decoded one,
/// and the update is kept within the same bound as the factored one.
class Adam : public Optimiser {
 public:
  Adam(OptimiserSettings settings, std::span<const atomo::LayerSpec> layers, bool decoupled);

  void see_squares(std::size_t i, const LayerSquares& squares) override;
  void see_exact(std::span<const float> average) override;
  void find_units(std::uint32_t step, std::span<float> units) override;
  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t step) override;

 protected:
  /// A layer that moves in another way: its update, the rate and the decay left out. `at` is where
  /// it begins among the weights. Returns whether it is one.
  virtual bool find_own_update(std::size_t /*layer*/, std::size_t /*at*/,
                               std::span<const float> /*gradient*/, std::span<float> /*update*/) {
    return false;
  }

 private:
  /// Running means of what was told of a layer.
  struct Told {
    std::span<float> rows, columns;
    float &of_one, &of_average, &of_decoded;
  };
  [[nodiscard]] Told told(const FactoredLayer& layer) noexcept;
  /// `keeps_squares`: for each entry.
  void mix_gradient(std::span<const float> weights, std::span<const float> gradient, std::size_t at,
                    bool keeps_squares);
  /// `share` of the second moment is the gradient's, the rest noise.
  void find_update(std::size_t at, std::uint32_t step, double share, std::span<float> update) const;
  /// Puts two vectors whose outer product is the root of the factored second moment into `rows_` and `columns_`.
  void find_factors(const FactoredLayer& layer, std::uint32_t step);
  /// The same of the moments of the entries themselves.
  void find_own_factors(const FactoredLayer& layer, std::uint32_t step);
  void find_factored_update(const FactoredLayer& layer, std::uint32_t step,
                            std::span<float> update);
  void find_matrix_update(const FactoredLayer& layer, std::uint32_t step, std::span<float> update);
  void move(std::span<float> weights, std::span<const float> update, float lr) const;

  bool decoupled_;
  float largest_update_;  ///< (1 - b1) / sqrt(1 - b2)
  std::vector<std::size_t> sizes_;
  std::vector<FactoredLayer> matrices_;
  std::vector<FactoredLayer> factored_;  ///< those of which squares are told: all of them, or none
  std::vector<float> update_, other_, rows_, columns_;  ///< of the layer at hand
  std::vector<float> exact_;  ///< the average of this step, where the second moment is of it
};

}  // namespace train
