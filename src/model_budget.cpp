// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "model.hpp"

namespace atomo {

using detail::Pool;

/// Bytes that the caps leave for the bodies of the capped layers.
std::size_t Compressor::Impl::cap_room(bool streamed) const noexcept {
  double bytes = 0;
  std::size_t head = streamed ? 0 : layout.bytes();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    bytes += plans[i].method->cap_bits() * static_cast<double>(plans[i].n) / 8;
    if (streamed) head += one_head[i];
  }
  return detail::capped_bytes(bytes * 8, 1, head);
}

void Compressor::Impl::check_cap() const {
  std::size_t least = 0, n = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    least += plans[i].least_limit_bytes;
    if (capped(i)) n += plans[i].n;
  }
  if (n == 0) return;
  const std::size_t room = std::min(cap_room(false), cap_room(true));
  if (room >= least) return;
  throw Error("cap= leaves " + std::to_string(room) +
              " bytes for the layers' bodies, but one run of atoms of each may need " +
              std::to_string(least) + " (" +
              std::to_string(8.0 * static_cast<double>(least) / static_cast<double>(n)) +
              " bits a parameter)");
}

/// What each capped layer is expected to take at a price: a function of the gradients alone.
void Compressor::Impl::expect_sizes(float price) noexcept {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    const bool sends = seen[i] == 2 && price > 0;
    expected_bits[i] = sends ? static_cast<double>(plans[i].method->expected_bits256(
                                   plans[i].kind.shape, demand[i], price))
                             : 0;
  }
}

/// Shares the room under the cap out: to each layer what one run may need, the rest as expected.
void Compressor::Impl::set_limits(bool streamed) noexcept {
  std::size_t least = 0;
  double all = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    least += plans[i].least_limit_bytes;
    if (capped(i)) all += expected_bits[i];
  }
  if (least == 0) return;
  const auto rest = static_cast<double>(cap_room(streamed) - least);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const double share = all > 0 && capped(i) ? rest * (expected_bits[i] / all) : 0;
    limits[i] = plans[i].least_limit_bytes + static_cast<std::size_t>(share) / 4 * 4;
  }
}

/// Gathers the layers of a pool (those of this step, when streamed) for the price search; returns
/// the bits that their budget leaves for bodies.
double Compressor::Impl::gather(Pool pool, bool streamed) noexcept {
  pool_demands.clear();
  double budget = 0, fixed = 0, share = 0, all = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool budgeted = in_pool(i, Pool::atoms) || in_pool(i, Pool::grid);
    if (budgeted) all += static_cast<double>(plans[i].n);
    if (!in_pool(i, pool) || (streamed && seen[i] == 0)) continue;
    budget += budget_bits(i);
    share += static_cast<double>(plans[i].n);
    fixed += streamed ? one_layer_fixed_bits(i) : detail::kMeanPaddingBits;
    if (seen[i] == 2) pool_demands.push_back({plans[i].method, &plans[i].kind.shape, demand[i]});
  }
  if (!streamed && all > 0) fixed += 8.0 * static_cast<double>(layout.bytes()) * share / all;
  return detail::body_budget(budget, fixed);
}

/// After a streamed step at `price`: counts what its bodies took of the budget (the price came from
/// the steps before, and content costs a little more or less than the tables say), then finds the
/// price for the next.
Status Compressor::Impl::learn(Pool pool, float price, detail::PoolState& state) noexcept {
  const double target = gather(pool, true);
  if (pool_demands.empty()) return Status::ok;
  double actual = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (in_pool(i, pool) && seen[i] == 2) actual += 8.0 * static_cast<double>(rows[i].bytes);
  }
  const auto plain = detail::find_price(pool_demands, target);
  detail::count_step(state, price, plain.price, actual, target);
  const auto corrected = detail::find_price(pool_demands, target / detail::payment(state));
  detail::predict_price(state, plain.price, corrected.price);
  return corrected.underspent ? Status::underspent : Status::ok;
}

Status Compressor::Impl::end_step() noexcept {
  const Status status = learn(Pool::atoms, prices.atoms, atoms);
  expect_sizes(atoms.price);
  return detail::worse(status, learn(Pool::grid, prices.grid, grid));
}

detail::StepPrices Compressor::Impl::step_prices() const noexcept {
  return {!given, {prices.atoms, prices.grid}};
}

Status Compressor::Impl::read_prices(detail::LearntPrices& learnt) const noexcept {
  if (device != nullptr) return device->read_prices(learnt);
  learnt = {{atoms, grid}, {prices.atoms, prices.grid}};
  return Status::ok;
}

Status Compressor::Impl::set_learnt(const detail::PoolState& of_atoms,
                                    const detail::PoolState& of_grid) noexcept {
  if (device == nullptr) {
    atoms = of_atoms;
    grid = of_grid;
    return Status::ok;
  }
  detail::LearntPrices learnt;
  if (const Status s = device->read_prices(learnt); failed(s)) return s;
  learnt.pools[0] = of_atoms;
  learnt.pools[1] = of_grid;
  return device->write_prices(learnt);
}

float Compressor::Impl::price_of(std::size_t pool) const noexcept {
  const detail::StepPrices step = step_prices();
  if (device != nullptr && in_step && step.predicted) return predicted(pool);
  if (device == nullptr || in_step) return step.given[pool];
  detail::LearntPrices learnt;
  return failed(read_prices(learnt)) ? 0 : learnt.used[pool];
}

float Compressor::Impl::predicted(std::size_t pool) const noexcept {
  detail::LearntPrices learnt;
  return failed(read_prices(learnt)) ? 0 : learnt.pools[pool].price;
}

}  // namespace atomo
