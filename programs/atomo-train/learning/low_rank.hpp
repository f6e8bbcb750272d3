// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The linear algebra of PowerSGD (Vogels et al., arXiv 1905.13727, Algorithm 1) on the matrices of
/// a model: one step of subspace iteration a step of training, which goes on where the last one
/// ended. Nothing here knows of other ranks.

#include <atomo/compressor.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace train {

/// A layer that is factored: M, its first dimension by all others.
struct LowRankLayer {
  std::size_t layer = 0;
  std::size_t offset = 0;  ///< of M in the model's flat arrays
  std::size_t rows = 0, columns = 0;
  std::size_t rank = 0;            ///< at most its shorter side
  std::size_t p_at = 0, q_at = 0;  ///< where its factors begin in those of all layers

  [[nodiscard]] std::size_t end() const noexcept { return offset + rows * columns; }
};

/// The layers with more elements than `min_ratio` times those of their two factors. A vector is
/// never factored, nor is a matrix of one row.
[[nodiscard]] std::vector<LowRankLayer> layers_to_factor(std::span<const atomo::LayerSpec> layers,
                                                         std::size_t rank, double min_ratio);

/// Factors P (rows x rank) and Q (columns x rank) of the factored layers, one layer behind the other
/// and of each one column behind the other, and Q of the step before. `gradients` are flat arrays of
/// the whole model.
class LowRank {
 public:
  explicit LowRank(std::vector<LowRankLayer> layers);

  [[nodiscard]] const std::vector<LowRankLayer>& layers() const noexcept { return layers_; }
  [[nodiscard]] std::size_t p_elements() const noexcept { return p_elements_; }
  [[nodiscard]] std::size_t q_elements() const noexcept { return kept_.size(); }

  /// p <- M Q, with the Q that was kept. Its columns are brought to norm 1; one that is rounding
  /// beside the largest, as after a matrix of a lower rank, is drawn anew from `seed` and `step`.
  void find_p(std::span<const float> gradients, std::uint64_t seed, std::uint32_t step,
              std::span<float> p);
  /// Makes the columns of every P orthonormal, each freed from those before it. One of which nothing
  /// but rounding is left is 0. A P that has an entry that is not finite becomes NaN as a whole. The
  /// same bits come out on every machine that runs this program.
  void orthonormalise(std::span<float> p);
  /// q <- M' P.
  void find_q(std::span<const float> gradients, std::span<const float> p, std::span<float> q) const;
  /// gradients <- gradients + alpha P Q', in the factored layers. The same bits come out on every
  /// machine that runs this program.
  void add_products(float alpha, std::span<const float> p, std::span<const float> q,
                    std::span<float> gradients) const;
  /// Keeps Q for the next step, but those of layers whose Q is not finite.
  void keep(std::span<const float> q);

  /// What is kept, for a checkpoint. Zeros: all is to be drawn.
  [[nodiscard]] std::vector<float>& kept() noexcept { return kept_; }

 private:
  void begin_with(const LowRankLayer& of, std::uint64_t seed, std::uint32_t step);

  std::vector<LowRankLayer> layers_;
  std::size_t p_elements_ = 0;
  std::vector<float> kept_;    ///< Q of all layers
  std::vector<float> start_;   ///< Q of one
  std::vector<double> basis_;  ///< P of one
};

}  // namespace train
