// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../detail/collective.hpp"

namespace cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS
};

/// Results are thread 0's.
template <typename T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1,
          int Z = 1>
class BlockReduce {
  using Group = detail::Block<X * Y * Z>;

 public:
  using TempStorage = detail::Slots<T, X * Y * Z>;
  explicit BlockReduce(TempStorage& storage) : slots_(storage) {}

  T Sum(T input) { return Reduce(input, detail::Plus{}); }
  T Sum(T input, int valid) { return Reduce(input, detail::Plus{}, valid); }
  template <int Items>
  T Sum(T (&input)[Items]) {
    return Reduce(input, detail::Plus{});
  }
  template <typename Op>
  T Reduce(T input, Op op) {
    return Reduce(input, op, X * Y * Z);
  }
  template <typename Op>
  T Reduce(T input, Op op, int valid) {
    return detail::reduce<Group>(slots_, input, valid, op);
  }
  template <int Items, typename Op>
  T Reduce(T (&input)[Items], Op op) {
    T mine = input[0];
    for (int i = 1; i < Items; ++i) mine = op(mine, input[i]);
    return Reduce(mine, op);
  }

 private:
  TempStorage& slots_;
};

}  // namespace cub
