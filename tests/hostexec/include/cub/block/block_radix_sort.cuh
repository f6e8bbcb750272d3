// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "../detail/collective.hpp"

namespace cub {

/// Stable, of unsigned keys, by their bits [begin, end).
template <typename Key, int X, int ItemsPerThread, typename Value = NullType>
class BlockRadixSort {
  static_assert(std::is_unsigned_v<Key>);
  static constexpr int kCount = X * ItemsPerThread;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(Key));
  using Group = detail::Block<X>;

 public:
  struct TempStorage {
    Key keys[2][kCount];
    Value values[2][kCount];
  };
  explicit BlockRadixSort(TempStorage& storage) : slots_(storage) {}

  void Sort(Key (&keys)[ItemsPerThread], int begin = 0, int end = kBits) {
    Value values[ItemsPerThread];
    sort(keys, values, begin, end, false);
  }
  void Sort(Key (&keys)[ItemsPerThread], Value (&values)[ItemsPerThread], int begin = 0,
            int end = kBits) {
    sort(keys, values, begin, end, false);
  }
  void SortDescending(Key (&keys)[ItemsPerThread], int begin = 0, int end = kBits) {
    Value values[ItemsPerThread];
    sort(keys, values, begin, end, true);
  }
  void SortDescending(Key (&keys)[ItemsPerThread], Value (&values)[ItemsPerThread], int begin = 0,
                      int end = kBits) {
    sort(keys, values, begin, end, true);
  }

 private:
  void sort(Key (&keys)[ItemsPerThread], Value (&values)[ItemsPerThread], int begin, int end,
            bool descending) {
    const unsigned first = Group::rank() * ItemsPerThread;
    // See collective.hpp: into slots that others read.
    for (unsigned i = 0; i < ItemsPerThread; ++i) {
      slots_.keys[1][kCount - 1 - first - i] = keys[i];
      slots_.values[1][kCount - 1 - first - i] = values[i];
    }
    Group::wait();
    if (first == 0) {
      for (int i = 0; i < kCount; ++i) {
        slots_.keys[0][i] = slots_.keys[1][kCount - 1 - i];
        slots_.values[0][i] = slots_.values[1][kCount - 1 - i];
      }
      for (int bit = begin; bit < end; ++bit) split(bit, descending);
      for (int i = 0; i < kCount; ++i) {
        slots_.keys[1][i] = slots_.keys[0][i];
        slots_.values[1][i] = slots_.values[0][i];
      }
    }
    Group::wait();
    for (unsigned i = 0; i < ItemsPerThread; ++i) {
      keys[i] = slots_.keys[1][first + i];
      values[i] = slots_.values[1][first + i];
    }
  }

  // Keys whose bit is 0 before the others, both in their order; the other way round when
  // descending.
  void split(int bit, bool descending) {
    int count = 0;
    for (const Key wanted : {Key{descending}, Key{!descending}}) {
      for (int i = 0; i < kCount; ++i) {
        if ((slots_.keys[0][i] >> bit & 1) != wanted) continue;
        slots_.keys[1][count] = slots_.keys[0][i];
        slots_.values[1][count++] = slots_.values[0][i];
      }
    }
    for (int i = 0; i < kCount; ++i) {
      slots_.keys[0][i] = slots_.keys[1][i];
      slots_.values[0][i] = slots_.values[1][i];
    }
  }

  TempStorage& slots_;
};

}  // namespace cub
