// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../detail/collective.hpp"

namespace cub {

/// Results are lane 0's.
template <typename T, int LogicalWarpThreads = 32>
class WarpReduce {
  using Group = detail::Warp<LogicalWarpThreads>;

 public:
  using TempStorage = detail::Slots<T, LogicalWarpThreads>;
  explicit WarpReduce(TempStorage& storage) : slots_(storage) {}

  T Sum(T input) { return Reduce(input, detail::Plus{}); }
  T Sum(T input, int valid) { return Reduce(input, detail::Plus{}, valid); }
  template <typename Op>
  T Reduce(T input, Op op) {
    return Reduce(input, op, LogicalWarpThreads);
  }
  template <typename Op>
  T Reduce(T input, Op op, int valid) {
    return detail::reduce<Group>(slots_, input, valid, op);
  }

 private:
  TempStorage& slots_;
};

}  // namespace cub
