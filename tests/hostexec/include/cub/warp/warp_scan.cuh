// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../detail/collective.hpp"

namespace cub {

template <typename T, int LogicalWarpThreads = 32>
class WarpScan {
  using Group = detail::Warp<LogicalWarpThreads>;

 public:
  using TempStorage = detail::Slots<T, LogicalWarpThreads>;
  explicit WarpScan(TempStorage& storage) : slots_(storage) {}

  void InclusiveSum(T input, T& output) { InclusiveScan(input, output, detail::Plus{}); }
  void InclusiveSum(T input, T& output, T& aggregate) {
    InclusiveScan(input, output, detail::Plus{}, aggregate);
  }
  void ExclusiveSum(T input, T& output) { ExclusiveScan(input, output, T{}, detail::Plus{}); }
  void ExclusiveSum(T input, T& output, T& aggregate) {
    ExclusiveScan(input, output, T{}, detail::Plus{}, aggregate);
  }
  template <typename Op>
  void InclusiveScan(T input, T& output, Op op) {
    T aggregate;
    InclusiveScan(input, output, op, aggregate);
  }
  template <typename Op>
  void InclusiveScan(T input, T& output, Op op, T& aggregate) {
    detail::scan<Group>(slots_, input, true, T{}, op);
    output = slots_.value[Group::rank()];
    aggregate = slots_.total;
  }
  template <typename Op>
  void ExclusiveScan(T input, T& output, T first, Op op) {
    T aggregate;
    ExclusiveScan(input, output, first, op, aggregate);
  }
  template <typename Op>
  void ExclusiveScan(T input, T& output, T first, Op op, T& aggregate) {
    detail::scan<Group>(slots_, input, false, first, op);
    output = slots_.value[Group::rank()];
    aggregate = slots_.total;
  }

 private:
  TempStorage& slots_;
};

}  // namespace cub
