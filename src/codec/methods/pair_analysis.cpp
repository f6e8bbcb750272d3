// SPDX-License-Identifier: Apache-2.0
#include "codec/methods/pair_analysis.hpp"

#include "price/pair_costs.hpp"
#include "price/price_math.hpp"

#include <algorithm>
#include <bit>

namespace atomo::codec {

PairDemand PairDemand::open(const PairLayer& layer, ConstBytes demand) noexcept {
  Carver carver(Bytes(const_cast<std::byte*>(demand.data()), demand.size()));
  return {layer, carver};
}

void PairDemand::fill(const PairLayer& layer, std::span<const double> amplitudes,
                      Bytes scratch) const noexcept {
  Carver carver(scratch);
  const auto keys = carver.take<std::uint16_t>(layer.count);
  const std::uint64_t weight = pair_weight(layer.view);
  costs[0] = pair_costs(layer.view);
  largest[0] = *std::max_element(amplitudes.begin(), amplitudes.end());
  std::size_t count = 0;
  for (const double a : amplitudes) {
    if (a > 0) keys[count++] = static_cast<std::uint16_t>(amplitude_key(a));
  }
  std::sort(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count));
  used[0] = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i == 0 || keys[i] != keys[i - 1]) bins[used[0]++] = {0, 0, keys[i]};
    bins[used[0] - 1].count += 1;
    bins[used[0] - 1].weight += weight;
  }
}

std::size_t fill_pair_demand_workspace_bytes(const PairLayer& layer) noexcept {
  Carver carver;
  carver.take<std::uint16_t>(layer.count);
  return carver.bytes();
}

PairState PairState::open(const PairLayer& layer, Bytes state) noexcept {
  Carver carver(state);
  PairState found(layer, carver);
  found.pairs.exponent = found.exponent[0];
  return found;
}

void PairState::close(const PairLayer& layer) noexcept {
  exponent[0] = pairs.exponent;
  const double unit = pair_amplitude(layer.view);
  for (double& a : amplitudes) a *= unit;
}

Expected expected_of_pairs(const PairLayer& layer, ConstBytes demand, float price) noexcept {
  const PriceLayer priced = PairDemand::open(layer, demand).price_layer(layer);
  return expected({&priced, 1}, price);
}

std::uint64_t expected_pair_loss256(const PairLayer& layer, ConstBytes demand,
                                    float price) noexcept {
  const PriceLayer priced = PairDemand::open(layer, demand).price_layer(layer);
  return expected_loss_256({&priced, 1}, price);
}

std::uint16_t lowest_pair_price(const PairLayer& layer, ConstBytes demand) noexcept {
  const PriceLayer priced = PairDemand::open(layer, demand).price_layer(layer);
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(price_floor({&priced, 1})) >> 16);
}

}  // namespace atomo::codec
