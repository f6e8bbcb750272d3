// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "format/thinning.hpp"
#include "model/model.hpp"

namespace atomo {

using namespace model;

using price::Pool;

/// Bytes that the caps leave for the bodies of the capped layers.
std::size_t Compressor::Impl::cap_room(bool streamed) const noexcept {
  double bytes = 0;
  std::size_t head = streamed ? 0 : layout.bytes();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    bytes += plans[i].method->cap_bits() * static_cast<double>(plans[i].n) / 8;
    if (streamed) head += one_head[i];
  }
  return price::capped_bytes(bytes * 8, 1, head);
}

/// Whatever is drawn, some of the layers fit: any two of them do.
void Compressor::Impl::check_cap() const {
  std::size_t n = 0, first = 0, second = 0;  // the two that may need most
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    n += plans[i].n;
    second = std::max(second, std::min(first, plans[i].least_limit_bytes));
    first = std::max(first, plans[i].least_limit_bytes);
  }
  const std::size_t least = first + second, room = cap_room(false);
  if (n == 0 || room >= least) return;
  throw Error(
      "cap= leaves " + std::to_string(room) +
      " bytes for the layers' bodies, but one run of atoms of each of two layers may need " +
      std::to_string(least) + " (" +
      std::to_string(8.0 * static_cast<double>(least) / static_cast<double>(n)) +
      " bits a parameter)");
}

/// Of the room of a step whose layers come one by one: what one of them may need beside its limit.
std::uint64_t Compressor::Impl::cap_reserve() const noexcept {
  std::size_t most = 0;
  for (const auto& plan : plans) most = std::max(most, plan.least_limit_bytes);
  return most;
}

/// The messages of single layers have heads of their own.
bool Compressor::Impl::streams_under_cap() const noexcept {
  return cap_reserve() == 0 || cap_room(true) > cap_reserve();
}

price::Allotment Compressor::Impl::allot_lone(std::size_t i, const codec::LayerWork& layer,
                                              const format::Row& row) const noexcept {
  const price::LoneCap cap{limits[i], cap_reserve(), price::layers_log2(plans.size())};
  const price::CappedBody whole = capped_body(plans[i], layer, row, false);
  if (whole.bytes <= cap.limit) return {cap.limit, 1};
  return price::allot_alone(capped_body(plans[i], layer, row, true), cap, layer.input.key);
}

/// The finished bodies of a whole message share the room under their caps (allotment.hpp).
Status Compressor::Impl::allot(const Key& key) noexcept {
  const auto measure = [&](bool with_least) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      capped_bodies[i] = capped_body(plans[i], work[i], rows[i], with_least);
      sum += capped_bodies[i].bytes;
    }
    return sum;
  };
  const std::uint64_t room = cap_room(false);
  const bool fit = measure(false) <= room;
  for (std::size_t i = 0; i < plans.size(); ++i) allotments[i] = {capped_bodies[i].bytes, 1};
  if (fit) return Status::ok;
  measure(true);
  const auto fits = [&](std::uint64_t words) {
    std::uint64_t sum = 0;
    for (const auto& body : capped_bodies) sum += bytes_at_level(body, words);
    return sum <= room;
  };
  if (!fits(0)) return leave_layers_out(key, room);
  std::uint64_t low = 0, high = room / 4;  // the level fits `low`, and is at most `high`
  while (low < high) {
    const std::uint64_t middle = (low + high + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  for (std::size_t i = 0; i < plans.size(); ++i)
    allotments[i].limit = bytes_at_level(capped_bodies[i], low);
  return Status::ok;
}

Status Compressor::Impl::leave_layers_out(const Key& key, std::uint64_t room) noexcept {
  const auto count = static_cast<std::uint64_t>(std::count_if(
      capped_bodies.begin(), capped_bodies.end(), [](const auto& body) { return body.bytes > 0; }));
  const format::Runs runs = price::runs_of_layers(count);
  std::fill_n(layer_runs.begin(), runs.count(), std::uint64_t{0});
  const auto for_each_body = [&](auto visit) {  // with its layer and its run
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (capped_bodies[i].bytes > 0) visit(i, runs.run_of(number++));
    }
  };
  std::uint64_t total = 0;
  for_each_body([&](std::size_t i, std::uint64_t run) {
    layer_runs[run] += raised_bytes(capped_bodies[i]);
    total += raised_bytes(capped_bodies[i]);
  });
  const auto dropped = format::least_dropped({layer_runs.data(), runs.count()}, total, room);
  if (dropped >= runs.count()) return Status::unsupported;  // check_cap() made sure of the room
  const std::uint32_t start = runs.start(price::draw_of_layers(key));
  for_each_body([&](std::size_t i, std::uint64_t run) {
    const float gain = runs.drops(run, dropped, start) ? 0.0f : runs.gain(dropped);
    allotments[i] = {raised_bytes(capped_bodies[i]), gain};
  });
  return Status::ok;
}

/// What each capped layer is expected to take at a price: a function of the gradients alone.
void Compressor::Impl::expect_sizes(float price) noexcept {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    const bool sends = seen[i] == 2 && price > 0;
    expected_bits[i] =
        sends ? static_cast<double>(
                    plans[i].method->expected(plans[i].kind.shape, demand[i], price).bits_256)
              : 0;
  }
}

/// Shares the room of a step out whose layers come one by one, as the last step expected.
void Compressor::Impl::set_limits() noexcept {
  const std::uint64_t reserve = cap_reserve();
  if (reserve == 0 || !streams_under_cap()) return;
  double all = 0;
  const auto weight = [&](std::size_t i) {
    return price::lone_weight(expected_bits[i], plans[i].n);
  };
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (capped(i)) all += weight(i);
  }
  const auto room = static_cast<double>(cap_room(true) - reserve);
  for (std::size_t i = 0; i < plans.size(); ++i)
    limits[i] = capped(i) ? price::lone_limit(room * (weight(i) / all)) : 0;
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
    fixed += streamed ? one_layer_fixed_bits(i) : model::kMeanPaddingBits;
    if (seen[i] == 2) pool_demands.push_back({plans[i].method, &plans[i].kind.shape, demand[i]});
  }
  if (!streamed && all > 0) fixed += 8.0 * static_cast<double>(layout.bytes()) * share / all;
  return price::body_budget(budget, fixed);
}

/// After a streamed step at `price`: counts what its bodies took of the budget (the price came from
/// the steps before, and content costs a little more or less than the tables say), then finds the
/// price for the next. `overspent` when no price would have met the target.
Status Compressor::Impl::learn(Pool pool, float price, price::PoolState& state,
                               bool& overspent) noexcept {
  const double target = gather(pool, true);
  if (pool_demands.empty()) return Status::ok;
  double actual = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (in_pool(i, pool) && seen[i] == 2) actual += 8.0 * static_cast<double>(rows[i].bytes);
  }
  const auto plain = codec::find_price(pool_demands, target);
  overspent = overspent || plain.overspent;
  price::count_step(state, price, plain.price, actual, target);
  const auto corrected = codec::find_price(pool_demands, target / price::payment(state));
  price::predict_price(state, plain.price, corrected.price);
  return corrected.underspent ? Status::underspent : Status::ok;
}

Status Compressor::Impl::end_step() noexcept {
  bool overspent = false;
  const Status of_atoms = learn(Pool::atoms, prices.atoms, atoms, overspent);
  expect_sizes(atoms.price);
  set_limits();
  const Status of_grid = learn(Pool::grid, prices.grid, grid, overspent);
  return core::with_overspent(core::worse(of_atoms, of_grid), overspent);
}

price::StepPrices Compressor::Impl::step_prices() const noexcept {
  return {!given, {prices.atoms, prices.grid}};
}

Status Compressor::Impl::read_prices(price::LearntPrices& learnt) const noexcept {
  if (device != nullptr) return device->read_prices(learnt);
  learnt = {{atoms, grid}, {prices.atoms, prices.grid}};
  return Status::ok;
}

Status Compressor::Impl::set_learnt(const price::PoolState& of_atoms,
                                    const price::PoolState& of_grid) noexcept {
  if (device == nullptr) {
    atoms = of_atoms;
    grid = of_grid;
    return Status::ok;
  }
  price::LearntPrices learnt;
  if (const Status s = device->read_prices(learnt); failed(s)) return s;
  learnt.pools[0] = of_atoms;
  learnt.pools[1] = of_grid;
  return device->write_prices(learnt);
}

std::size_t Compressor::Impl::capped_layers() const noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) count += capped(i) ? 1 : 0;
  return count;
}

/// Whether a step under these keeps to the cap: they share the room. Rounding may give a layer
/// whose part is below 4 bytes one byte more.
bool Compressor::Impl::may_be_limits(std::span<const std::uint64_t> of_capped) const noexcept {
  const bool shared = streams_under_cap();
  const std::uint64_t room = shared ? cap_room(true) - cap_reserve() + of_capped.size() : 0;
  std::uint64_t sum = 0;
  for (const std::uint64_t limit : of_capped) {
    if (shared ? limit == 0 || limit > room - sum : limit != 0) return false;
    sum += limit;
  }
  return true;
}

Status Compressor::Impl::read_limits(std::span<std::uint64_t> of_capped) const noexcept {
  if (device != nullptr) return device->read_limits(of_capped);
  std::size_t next = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (capped(i)) of_capped[next++] = limits[i];
  }
  return Status::ok;
}

Status Compressor::Impl::write_limits(std::span<const std::uint64_t> of_capped) noexcept {
  if (device != nullptr) return device->write_limits(of_capped);
  std::size_t next = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (capped(i)) limits[i] = of_capped[next++];
  }
  return Status::ok;
}

float Compressor::Impl::price_of(std::size_t pool) const noexcept {
  const price::StepPrices step = step_prices();
  if (device != nullptr && in_step && step.predicted) return predicted(pool);
  if (device == nullptr || in_step) return step.given[pool];
  price::LearntPrices learnt;
  return failed(read_prices(learnt)) ? 0 : learnt.used[pool];
}

float Compressor::Impl::predicted(std::size_t pool) const noexcept {
  price::LearntPrices learnt;
  return failed(read_prices(learnt)) ? 0 : learnt.pools[pool].price;
}

}  // namespace atomo
