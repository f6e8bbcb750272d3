// SPDX-License-Identifier: Apache-2.0
/// The prices of a model: found for a whole message, learnt from step to step where layers come one
/// by one.
#include "model/model.hpp"
#include "price/price_input.hpp"

namespace atomo {

using namespace model;

/// The budget of a whole message, 0 when no layer has one.
double Compressor::Impl::budget_bytes() const noexcept {
  double bits = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) bits += budget_bits(i);
  return share() * bits / 8;
}

/// Gathers the layers of a pool (those of this step, when streamed) for the price search; returns
/// the bits that `share` of their budget leaves for bodies.
double Compressor::Impl::gather(Pool pool, bool streamed, double share) noexcept {
  pool_inputs.clear();
  double budget = 0, fixed = 0, gathered = 0, all = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (has_budget(i)) all += static_cast<double>(plans[i].n);
    if (!in_pool(i, pool) || (streamed && seen[i] == 0)) continue;
    budget += budget_bits(i);
    gathered += static_cast<double>(plans[i].n);
    fixed += streamed ? one_layer_fixed_bits(i) : model::kMeanPaddingBits;
    if (seen[i] == 2) pool_inputs.push_back(&encoders[i].price_input());
  }
  if (!streamed && all > 0) fixed += 8.0 * static_cast<double>(layout.bytes()) * gathered / all;
  return body_budget(share * budget, fixed);
}

float Compressor::Impl::price_of_whole(Pool pool) const noexcept {
  if (whole_model == nullptr) return 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (in_pool(i, pool))
      return pool == Pool::atoms ? whole_model->prices.atoms : whole_model->prices.grid;
  }
  return 0;
}

/// The prices of a whole message whose layers are prepared.
Status Compressor::Impl::find_prices(LayerPrices& found, Executor* executor) noexcept {
  const auto find = [&](Pool pool) {
    if (const float shared = price_of_whole(pool); shared > 0) return FoundPrice{.price = shared};
    const double target = gather(pool, false, share());
    return find_price(pool_inputs, target, executor);
  };
  const FoundPrice of_atoms = find(Pool::atoms), of_grid = find(Pool::grid);
  found = {of_atoms.price, of_grid.price};
  return of_atoms.notices() | of_grid.notices();
}

/// After a streamed step at `price`: counts what its bodies took of the budget (the price came from
/// the steps before, and content costs a little more or less than the tables say), then finds the
/// price for the next. Status::overspent when no price would have met the target.
Status Compressor::Impl::learn(Pool pool, float price, ControllerState& state) noexcept {
  const double whole = gather(pool, true, 1), next = gather(pool, true, budget_share),
               target = gather(pool, true, step_share);
  if (pool_inputs.empty()) return Status::ok;
  double actual = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (in_pool(i, pool) && seen[i] == 2)
      actual += 8.0 * static_cast<double>(encoders[i].row().bytes);
  }
  const auto plain = find_price(pool_inputs, whole);
  count_step(state, price, plain.price, actual, target, whole);
  const auto corrected = find_price(pool_inputs, next / payment(state, budget_share));
  predict_price(state, plain.price, corrected.price);
  return (plain.overspent ? Status::overspent : Status::ok) |
         (corrected.underspent ? Status::underspent : Status::ok);
}

Status Compressor::Impl::end_step() noexcept {
  ranks = next_ranks;
  const Status of_atoms = learn(Pool::atoms, prices.atoms, atoms);
  expect_sizes(atoms.price);
  set_limits();
  const Status of_grid = learn(Pool::grid, prices.grid, grid);
  return of_atoms | of_grid;
}

Status Compressor::Impl::read_ranks(std::vector<RankState>& learnt) const {
  std::vector<RankState> all = next_ranks;
  const Status status = device == nullptr ? Status::ok : device->read_ranks(all);
  learnt.clear();
  for (const std::size_t i : ranked_layers) learnt.push_back(all[i]);
  return status;
}

Status Compressor::Impl::write_ranks(std::span<const RankState> learnt) noexcept {
  const bool own = learnt.size() == ranked_layers.size();
  for (std::size_t k = 0; k < ranked_layers.size(); ++k)
    next_ranks[ranked_layers[k]] = own ? learnt[k] : RankState{};
  ranks = next_ranks;
  return device == nullptr ? Status::ok : device->write_ranks(ranks);
}

StepPrices Compressor::Impl::step_prices() const noexcept {
  return {!given, {prices.atoms, prices.grid}};
}

Status Compressor::Impl::read_prices(LearntPrices& learnt) const noexcept {
  if (device != nullptr) return device->read_prices(learnt);
  learnt = {{atoms, grid}, {prices.atoms, prices.grid}};
  return Status::ok;
}

Status Compressor::Impl::set_learnt(const ControllerState& of_atoms,
                                    const ControllerState& of_grid) noexcept {
  if (device == nullptr) {
    atoms = of_atoms;
    grid = of_grid;
    return Status::ok;
  }
  LearntPrices learnt;
  if (const Status s = device->read_prices(learnt); failed(s)) return s;
  learnt.pools[0] = of_atoms;
  learnt.pools[1] = of_grid;
  return device->write_prices(learnt);
}

Prices Compressor::Impl::used_prices() const noexcept {
  const StepPrices step = step_prices();
  if (device != nullptr && in_step && step.predicted) return predicted_prices();
  if (device == nullptr || in_step) return {step.given[0], step.given[1]};
  LearntPrices learnt;
  return failed(read_prices(learnt)) ? Prices{} : Prices{learnt.used[0], learnt.used[1]};
}

Prices Compressor::Impl::predicted_prices() const noexcept {
  LearntPrices learnt;
  return failed(read_prices(learnt)) ? Prices{}
                                     : Prices{learnt.pools[0].price, learnt.pools[1].price};
}

}  // namespace atomo
