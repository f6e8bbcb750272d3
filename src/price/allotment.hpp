// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How the finished bodies of a model share the room under their caps, for the host and the device.
///
/// Bodies that fit together stay as they are. Otherwise the longest are thinned to one level, the
/// highest that makes them fit, none beyond what it can be thinned to. Where that is not enough,
/// layers are left out as runs of a body are: those with a body form K runs, K the largest power of
/// two that is at most their number; the least d that suffices from every start are left out from a
/// uniform one, and the prices of the others, which the steps of their content are proportional to,
/// are multiplied by K / (K - d).
///
/// Layers that come one by one have limits beforehand, from what the step before expected of them,
/// and are written at a price at which this gradient is expected to keep its own. One whose single
/// run is above its limit nevertheless is left out, unless it is the one layer of the step that a
/// draw gives a reserve to; then its price makes up for all the steps that it is not.
///
/// Sizes follow from what was drawn before, starts from nothing: each run, and each layer, stays
/// with a probability that is known when the sizes are, and the estimate stays unbiased.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/bit_counts.hpp"
#include "core/host_device.hpp"
#include "core/philox.hpp"
#include "format/thinning.hpp"
#include "price/budget.hpp"

namespace atomo::price {

/// A finished body under a cap, in bytes, own price included.
struct CappedBody {
  std::uint64_t bytes = 0;
  std::uint64_t least = 0;  ///< that it can be thinned to, at most `bytes`
  bool own = false;         ///< its price stands in it
};

/// The bytes that a body may take, own price included, and the factor of its price.
struct Allotment {
  std::uint64_t limit = 0;
  float gain = 1;  ///< 0: the layer is left out
};

/// Bytes of a body at a level of `words` of 4 bytes.
[[nodiscard]] constexpr std::uint64_t bytes_at_limit(const CappedBody& body,
                                                     std::uint64_t words) noexcept {
  return std::max(body.least, std::min(body.bytes, 4 * words));
}

/// The highest level at which bodies fit the room, as they do at level 0; `bytes_at(words)` is what
/// all of them take at a level.
template <typename BytesAt>
[[nodiscard]] ATOMO_HD constexpr std::uint64_t highest_level(std::uint64_t room,
                                                             BytesAt bytes_at) noexcept {
  std::uint64_t low = 0, high = room / 4;
  while (low < high) {
    const std::uint64_t middle = (low + high + 1) / 2;
    if (bytes_at(middle) <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Least bytes of a layer when others are left out: its price then stands in its body.
[[nodiscard]] constexpr std::uint64_t raised_bytes(const CappedBody& body) noexcept {
  return body.bytes == 0 ? 0 : body.least + (body.own ? 0 : sizeof(float));
}

/// The runs of the layers of a message that have a body.
[[nodiscard]] constexpr Runs runs_of_layers(std::uint64_t bodies) noexcept {
  return {bodies, static_cast<std::uint32_t>(core::bit_width(bodies)) - 1};
}
/// What chooses the first of the layers that a message leaves out. `key` is its first layer's.
[[nodiscard]] ATOMO_HD inline std::uint32_t draw_of_layers(const Key& key) noexcept {
  return Philox(key, Purpose::thinning)(1)[0];
}

[[nodiscard]] constexpr std::uint32_t layers_log2(std::size_t layers) noexcept {
  return static_cast<std::uint32_t>(core::bit_width(layers - 1));
}
/// `key.tensor` is the layer's number.
[[nodiscard]] ATOMO_HD inline Allotment allot_streamed(const CappedBody& body,
                                                       const StreamedCap& cap,
                                                       const Key& key) noexcept {
  if (std::min(body.bytes, body.least) <= cap.limit) return {cap.limit, 1};
  Key step = key;
  step.tensor = 0;
  const Runs layers{0, cap.layers_log2};
  const bool chosen = layers.start(Philox(step, Purpose::thinning)(2)[0]) == key.tensor;
  return {cap.limit + cap.reserve, chosen ? static_cast<float>(layers.count()) : 0.0f};
}
/// Bytes of a small body that are rounding, which no expectation has, and a price.
inline constexpr double kRounding = 16;
/// Bits that the body of such a layer should be expected to take: a little below its limit.
[[nodiscard]] constexpr double limit_budget_bits(std::uint64_t limit) noexcept {
  const auto bytes = static_cast<double>(limit);
  return 7.75 * std::max(bytes - kRounding, bytes / 4);
}
/// What a layer of n entries counts when the room of such a step is shared out: its expected bytes,
/// and rounding and two bits an entry of a unit for what chance adds to them.
[[nodiscard]] constexpr double streamed_weight(double expected_bits_256, std::uint64_t n) noexcept {
  return expected_bits_256 / 2048 + 2 * kRounding +
         static_cast<double>(std::min<std::uint64_t>(n, 1024)) / 4;
}
/// The limit that a part of the room gives.
[[nodiscard]] constexpr std::uint64_t streamed_limit(double bytes) noexcept {
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(bytes) / 4 * 4, 1);
}

/// A price times a gain; beyond f32 the largest that there is.
[[nodiscard]] ATOMO_HD inline float raised_price(float price, float gain) noexcept {
  return std::min(price * gain, std::numeric_limits<float>::max());
}

}  // namespace atomo::price
