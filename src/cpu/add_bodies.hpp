// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Bodies of one layer, of several messages, added a stretch of the tensor at a time: it stays in a
/// cache while one body after the other is added to it.

#include <array>
#include <cstddef>
#include <span>

#include "atomo/types.hpp"
#include "core/run_tasks.hpp"
#include "format/layer_body.hpp"

namespace atomo::cpu {

using format::LayerBody;

/// Bodies that are added together at most.
inline constexpr std::size_t kBodiesAtOnce = 8;
/// Entries of a stretch, about: with what is read of the bodies it leaves room in an L2 cache.
inline constexpr std::size_t kStretch = std::size_t{1} << 16;

/// What is known of bodies that are added together.
template <typename Opened>
class OpenBodies {
 public:
  /// `open(body, opened)` checks a whole body, whose status becomes what it returns. One that it
  /// refuses is left out.
  template <typename Open>
  OpenBodies(std::span<LayerBody> bodies, const Open& open) noexcept {
    for (LayerBody& body : bodies) {
      body.status = open(body, opened_[count_]);
      if (!failed(body.status)) ++count_;
    }
  }
  [[nodiscard]] std::span<Opened> all() noexcept { return std::span(opened_).first(count_); }

 private:
  std::array<Opened, kBodiesAtOnce> opened_;
  std::size_t count_ = 0;
};

/// Calls `add(opened, begin, end)` for the entries [begin, end) of n, kStretch or the last of them,
/// and for each body in its order.
template <typename Opened, typename Open, typename Add>
void add_bodies(std::span<LayerBody> bodies, std::size_t n, Executor* executor, const Open& open,
                const Add& add, std::size_t stretch = kStretch) noexcept {
  OpenBodies<Opened> opened(bodies, open);
  core::run_ranges(executor, n, stretch, [&](std::size_t begin, std::size_t end) {
    for (const Opened& body : opened.all()) add(body, begin, end);
  });
}

}  // namespace atomo::cpu
