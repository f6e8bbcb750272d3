// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../detail/collective.hpp"

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <typename T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
class BlockScan {
  using Group = detail::Block<X * Y * Z>;

 public:
  using TempStorage = detail::Slots<T, X * Y * Z>;
  explicit BlockScan(TempStorage& storage) : slots_(storage) {}

  void InclusiveSum(T input, T& output) {
    T aggregate;
    InclusiveSum(input, output, aggregate);
  }
  void InclusiveSum(T input, T& output, T& aggregate) {
    detail::scan<Group>(slots_, input, true, T{}, detail::Plus{});
    output = slots_.value[Group::rank()];
    aggregate = slots_.total;
  }
  void ExclusiveSum(T input, T& output) {
    T aggregate;
    ExclusiveSum(input, output, aggregate);
  }
  void ExclusiveSum(T input, T& output, T& aggregate) {
    detail::scan<Group>(slots_, input, false, T{}, detail::Plus{});
    output = slots_.value[Group::rank()];
    aggregate = slots_.total;
  }

  // Items of a thread follow one another.
  template <int Items>
  void InclusiveSum(T (&input)[Items], T (&output)[Items]) {
    T aggregate;
    InclusiveSum(input, output, aggregate);
  }
  template <int Items>
  void InclusiveSum(T (&input)[Items], T (&output)[Items], T& aggregate) {
    T before;
    ExclusiveSum(sum(input), before, aggregate);
    for (int i = 0; i < Items; ++i) output[i] = before = static_cast<T>(before + input[i]);
  }
  template <int Items>
  void ExclusiveSum(T (&input)[Items], T (&output)[Items]) {
    T aggregate;
    ExclusiveSum(input, output, aggregate);
  }
  template <int Items>
  void ExclusiveSum(T (&input)[Items], T (&output)[Items], T& aggregate) {
    T before;
    ExclusiveSum(sum(input), before, aggregate);
    for (int i = 0; i < Items; ++i) {
      const T mine = input[i];  // output may be input
      output[i] = before;
      before = static_cast<T>(before + mine);
    }
  }

 private:
  template <int Items>
  static T sum(const T (&input)[Items]) {
    T total = input[0];
    for (int i = 1; i < Items; ++i) total = static_cast<T>(total + input[i]);
    return total;
  }
  TempStorage& slots_;
};

}  // namespace cub
