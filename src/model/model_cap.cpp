// SPDX-License-Identifier: Apache-2.0
/// Sharing the room under a cap: of a finished whole message, and of a step whose layers come one
/// by one (price/allotment.hpp).
#include <algorithm>

#include "model/model.hpp"
#include "price/allotment.hpp"

namespace atomo {

using namespace model;

/// Bytes that the caps leave for the bodies of the capped layers.
std::size_t Compressor::Impl::cap_room(bool streamed) const noexcept {
  double bytes = 0;
  std::size_t head = streamed ? 0 : layout.bytes();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    bytes += plans[i].price_rule.cap_bits * static_cast<double>(plans[i].n) / 8;
    if (streamed) head += one_head[i];
  }
  return capped_bytes(bytes * 8, 1, head);
}

/// Most bytes of a whole message whose layers are all bounded. Bodies under a cap are multiples of 4
/// bytes, as their room is, so padding adds nothing to them.
std::optional<std::size_t> Compressor::Impl::wire_bytes() const noexcept {
  std::size_t fixed = 0, under_cap = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].n > 0 && !plans[i].bounded) return std::nullopt;
    (capped(i) ? under_cap : fixed) += static_cast<std::size_t>(padded(plans[i].max_body_bytes));
  }
  return layout.bytes() + fixed + std::min(under_cap, cap_room(false));
}

/// Whatever is drawn, some of the layers fit: any two of them do.
void Compressor::Impl::check_cap() const {
  std::size_t n = 0, first = 0, second = 0;  // the two that may need most
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    n += plans[i].n;
    second = std::max(second, std::min(first, plans[i].min_limit_bytes));
    first = std::max(first, plans[i].min_limit_bytes);
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
  for (const auto& plan : plans) most = std::max(most, plan.min_limit_bytes);
  return most;
}

/// The messages of single layers have heads of their own.
bool Compressor::Impl::streams_under_cap() const noexcept {
  return cap_reserve() == 0 || cap_room(true) > cap_reserve();
}

Allotment Compressor::Impl::allot_streamed_layer(std::size_t i, const Key& key) const noexcept {
  const StreamedCap cap{limits[i], cap_reserve(), layers_log2(plans.size())};
  const CappedBody whole = encoders[i].capped_body(false);
  if (whole.bytes <= cap.limit) return {cap.limit, 1};
  return allot_streamed(encoders[i].capped_body(true), cap, key);
}

/// The finished bodies of a whole message share the room under their caps (allotment.hpp).
Status Compressor::Impl::allot(const Key& key) noexcept {
  const auto measure = [&](bool with_least) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      capped_bodies[i] = encoders[i].capped_body(with_least);
      sum += capped_bodies[i].bytes;
    }
    return sum;
  };
  const std::uint64_t room = cap_room(false);
  const bool fit = measure(false) <= room;
  for (std::size_t i = 0; i < plans.size(); ++i) allotments[i] = {capped_bodies[i].bytes, 1};
  if (fit) return Status::ok;
  measure(true);
  const auto at_level = [&](std::uint64_t words) {
    std::uint64_t sum = 0;
    for (const auto& body : capped_bodies) sum += bytes_at_limit(body, words);
    return sum;
  };
  if (at_level(0) > room) return leave_layers_out(key, room);
  const std::uint64_t level = highest_level(room, at_level);
  for (std::size_t i = 0; i < plans.size(); ++i)
    allotments[i].limit = bytes_at_limit(capped_bodies[i], level);
  return Status::ok;
}

Status Compressor::Impl::leave_layers_out(const Key& key, std::uint64_t room) noexcept {
  const auto count = static_cast<std::uint64_t>(std::count_if(
      capped_bodies.begin(), capped_bodies.end(), [](const auto& body) { return body.bytes > 0; }));
  const Runs runs = runs_of_layers(count);
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
  const auto dropped = min_dropped({layer_runs.data(), runs.count()}, total, room);
  if (dropped >= runs.count()) return Status::unsupported;  // check_cap() made sure of the room
  const std::uint32_t start = runs.start(draw_of_layers(key));
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
        sends ? static_cast<double>(encoders[i].price_input().expected(price).bits_256) : 0;
  }
}

/// Shares the room of a step out whose layers come one by one, as the last step expected.
void Compressor::Impl::set_limits() noexcept {
  const std::uint64_t reserve = cap_reserve();
  if (reserve == 0 || !streams_under_cap()) return;
  double all = 0;
  const auto weight = [&](std::size_t i) { return streamed_weight(expected_bits[i], plans[i].n); };
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (capped(i)) all += weight(i);
  }
  const auto room = static_cast<double>(cap_room(true) - reserve);
  for (std::size_t i = 0; i < plans.size(); ++i)
    limits[i] = capped(i) ? streamed_limit(room * (weight(i) / all)) : 0;
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

}  // namespace atomo
