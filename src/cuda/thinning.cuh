// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Bodies of atoms above the limit that a cap sets them, on the device (thinning.cu): what is left
/// out of them, and the stages between their content and their lengths.

#include "cuda/frame.cuh"
#include "price/allotment.hpp"

namespace atomo::cuda::atoms {

/// Which units of a body stay (thinning.hpp); zero: all of them.
struct UnitsLeft {
  std::uint64_t begin = 0, end = 0;
  bool inside = false;  ///< those of [begin, end) stay, else all but those

  [[nodiscard]] __device__ bool stays(std::uint64_t unit) const {
    return (begin <= unit && unit < end) == inside;
  }
  /// How many stay of those before one that stays.
  [[nodiscard]] __device__ std::uint64_t before(std::uint64_t unit) const {
    if (inside) return unit - begin;
    return unit < begin ? unit : unit - (end - begin);
  }
  /// The same in what each unit has `count` of.
  [[nodiscard]] __device__ UnitsLeft times(std::uint64_t count) const {
    return {begin * count, end * count, inside};
  }
};

/// The layers under a cap, and what bounds them together.
struct CapPlan {
  std::uint32_t layers = 0;  ///< without them nothing is thinned
  double bytes = 0;          ///< that the caps leave for heads and bodies
  /// By priced layer, where several share the room of a message: the finished bodies (zeroed), what
  /// is allotted to them, their numbers; what those before each take, and behind them all of them.
  Scratch<price::CappedBody> bodies;
  Scratch<price::Allotment> allotments;
  Scratch<std::uint32_t> numbers;
  Scratch<std::uint64_t> ends;
  /// Of steps layer by layer: bits expected at the pool's price, in 1/256; most bytes of the body,
  /// own price included.
  Scratch<double> expected;
  Scratch<std::uint64_t> limits;
  Scratch<std::uint32_t> tickets;  ///< of the jobs that are measured; zeroed
};

struct Plan;

/// The limits of layers that come one by one under a cap, which share `room` bytes as the pool's
/// price lets expect: a launch.
void share_room(const Frame& frame, const Plan& plan, std::uint64_t room, Queue& queue);

/// Leaves units out of the bodies above their limits: afterwards `states[job].thinning` and `left`
/// say which, and the marks are those of the atoms that stay, measured again. A layer that is left
/// out keeps nothing. Two launches, three when several layers are under a cap.
void thin(const Frame& frame, const Plan& plan, Queue& queue);

}  // namespace atomo::cuda::atoms
