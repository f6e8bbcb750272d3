// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What methods with pairs keep of a layer between its analysis and its body: the decomposition,
/// and what the price search needs of it.

#include <cstdint>
#include <span>

#include "core/workspace.hpp"
#include "cpu/svd.hpp"
#include "format/pair_body.hpp"
#include "price/price.hpp"

namespace atomo::codec {

/// What the price search needs.
struct PairDemand {
  std::span<double> largest;      ///< one: the largest amplitude
  std::span<std::uint64_t> used;  ///< one: bins in use
  std::span<PriceCosts> costs;    ///< one: of the layer's shape
  std::span<PriceBin> bins;

  PairDemand(const PairLayer& layer, Carver& carver) noexcept
      : largest(carver.take<double>(1)),
        used(carver.take<std::uint64_t>(1)),
        costs(carver.take<PriceCosts>(1)),
        bins(carver.take<PriceBin>(layer.count)) {}
  [[nodiscard]] static PairDemand open(const PairLayer& layer, ConstBytes demand) noexcept;

  /// Bins of equal keys, in ascending order; pairs of amplitude 0 cost nothing. `scratch` holds 2
  /// bytes a pair, of any alignment.
  void fill(const PairLayer& layer, std::span<const double> amplitudes,
            Bytes scratch) const noexcept;
  [[nodiscard]] PriceLayer price_layer(const PairLayer& layer) const noexcept {
    return {bins.first(used[0]), costs.data(), layer.count, largest[0]};
  }
};
[[nodiscard]] std::size_t fill_pair_demand_workspace_bytes(const PairLayer& layer) noexcept;

/// The decomposition.
struct PairState {
  std::span<int> exponent;  ///< one
  std::span<double> amplitudes;
  SingularPairs pairs;

  PairState(const PairLayer& layer, Carver& carver) noexcept
      : exponent(carver.take<int>(1)), amplitudes(carver.take<double>(layer.count)) {
    pairs.shorter = carver.take<float>(layer.count * layer.view.shorter());
    pairs.longer = carver.take<float>(layer.count * layer.view.longer());
    pairs.sigma = amplitudes;
  }
  /// What `close` left; before it, room.
  [[nodiscard]] static PairState open(const PairLayer& layer, Bytes state) noexcept;
  /// Keeps the exponent, and turns singular values into amplitudes.
  void close(const PairLayer& layer) noexcept;
};

[[nodiscard]] Expected expected_of_pairs(const PairLayer& layer, ConstBytes demand,
                                         float price) noexcept;
[[nodiscard]] std::uint64_t expected_pair_loss256(const PairLayer& layer, ConstBytes demand,
                                                  float price) noexcept;
/// Code of the lowest price the pairs can be sent at.
[[nodiscard]] std::uint16_t lowest_pair_price(const PairLayer& layer, ConstBytes demand) noexcept;

}  // namespace atomo::codec
