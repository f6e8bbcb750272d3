// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Pairs with dithered factors at a price: singular ones (kind `atoms`, family 2) and those of a
/// sketch (family 3). The decoding side is called by methods/atoms.cpp, the encoding side by
/// methods/svd.cpp, where the body's layout stands, and methods/sketch.cpp. Steps and costs are in
/// pair_steps.cpp, bodies in cpu/pairs.cpp.
///
/// The pair sigma u v^T, u of m entries along the shorter side and v of n along the longer, is
/// (u sqrt m)(sigma v / sqrt m)^T: the first factor has rms 1, the second sigma / sqrt(m n). Its
/// amplitude is A = sigma / (kappa sqrt(m + n)), kappa a table's entry for the aspect n / m; its
/// ratio r = A / a decides, as an atom's does, whether it is certain, its class and its
/// probability.

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/atoms.hpp"
#include "atomo/svd.hpp"
#include "atomo/types.hpp"
#include "workspace.hpp"

namespace atomo::detail {

/// The pairs of a layer: all min(rows, columns) of a decomposition, or those of a sketch.
struct PairLayer {
  MatrixShape view;
  std::size_t count = 0;

  [[nodiscard]] static constexpr PairLayer all_of(const MatrixShape& view) noexcept {
    return {view, view.shorter()};
  }
};

[[nodiscard]] std::size_t max_pairs_body_bytes(const PairLayer& layer) noexcept;
/// Most bits of the content of a pair.
[[nodiscard]] std::uint64_t max_pair_content_bits(const MatrixShape& shape) noexcept;

/// Where the factors of kept pairs are decoded to, one behind the other in the order of pairs.
struct PairFactors {
  std::span<float> shorter;  ///< room for PairLayer::count rows of shorter() entries
  std::span<float> longer;   ///< the same of longer() entries
  std::size_t kept = 0;
  double scale = 1;  ///< what products are multiplied by, a power of two

  PairFactors(const PairLayer& layer, Carver& carver) noexcept
      : shorter(carver.take<float>(layer.count * layer.view.shorter())),
        longer(carver.take<float>(layer.count * layer.view.longer())) {}
};
/// Any bytes at all give `ok` or `corrupt`. `gain` multiplies the steps of the second factors.
Status decode_pair_factors(ConstBytes body, const PairLayer& layer, float price, float gain,
                           const Key& key, PairFactors& factors) noexcept;
/// Walks the index of a body: how many pairs it holds.
Status inspect_pairs(ConstBytes body, const PairLayer& layer, std::uint64_t& kept) noexcept;

/// The body's frame as that of atoms: pairs of up to 1,024 entries in all share groups or have one,
/// larger ones have a group for each piece of their factors.
[[nodiscard]] AtomLayout pairs_frame(const PairLayer& layer) noexcept;
/// How kept pairs fall into groups (atom_body.hpp).
[[nodiscard]] struct GroupShape group_shape(const MatrixShape& shape) noexcept;

/// How one factor of a class is coded.
struct FactorStep {
  std::uint32_t step = 0;  ///< of kCodingSteps
  unsigned escape_bits = 0;
  float size = 1;  ///< the step; of the second factor in units of the price
};
struct PairStep {
  FactorStep shorter, longer;
};
[[nodiscard]] PairStep pair_step(const MatrixShape& shape, std::size_t atom_class) noexcept;

/// Half octaves of longer / shorter side, rounded: the row of the pairs' tables.
[[nodiscard]] std::size_t pair_aspect(const MatrixShape& shape) noexcept;
/// Amplitude of a pair of sigma 1.
[[nodiscard]] double pair_amplitude(const MatrixShape& shape) noexcept;
[[nodiscard]] cpu::PriceCosts pair_costs(const MatrixShape& shape) noexcept;
/// What a pair weighs in the price search.
[[nodiscard]] std::uint64_t pair_weight(const MatrixShape& shape) noexcept;

[[nodiscard]] std::size_t encode_pairs_workspace_bytes(const PairLayer& layer) noexcept;
/// `amplitudes` are sigma times `pair_amplitude`; `price` is at least `cpu::price_floor`
/// (`unsupported` otherwise). `bytes` is 0 when no pair was kept.
Status encode_pairs(const SingularPairs& pairs, const PairLayer& layer,
                    std::span<const double> amplitudes, float price, const Key& key, Bytes body,
                    Bytes workspace, std::size_t& bytes) noexcept;

}  // namespace atomo::detail
