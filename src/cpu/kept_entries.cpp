// SPDX-License-Identifier: Apache-2.0
/// Groups of 64 entries: a group without marks costs one store an entry when decoding and nothing
/// when encoding.

#include "cpu/kept_entries.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "core/run_tasks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kept_entries.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Spreads the values of one group; returns the first value after them.
HWY_INLINE const std::byte* spread64(std::uint64_t marks, const std::byte* values, float scale,
                                     float* group) {
  for (; marks != 0; marks &= marks - 1, values += 4) {
    float v;
    std::memcpy(&v, values, 4);
    group[std::countr_zero(marks)] = v * scale;
  }
  return values;
}

template <bool kAdd>
HWY_INLINE void scatter_groups(const std::uint64_t* words, const std::byte* values, float scale,
                               float alpha, float* y, std::size_t n) {
  const hn::CappedTag<float, 16> d;
  alignas(64) float group[64];
  for (std::size_t at = 0; at < n; at += 64) {
    for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) hn::Store(hn::Zero(d), d, group + i);
    values = spread64(words[at / 64], values, scale, group);
    if (n - at < 64) {
      for (std::size_t i = 0; i < n - at; ++i)
        y[at + i] = kAdd ? y[at + i] + (alpha * group[i]) : group[i];
      return;
    }
    for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
      auto v = hn::Load(d, group + i);
      if constexpr (kAdd) v = hn::Add(hn::LoadU(d, y + at + i), hn::Mul(hn::Set(d, alpha), v));
      hn::StoreU(v, d, y + at + i);
    }
  }
}

void set_groups(const std::uint64_t* words, const std::byte* values, float scale, float* y,
                std::size_t n) {
  scatter_groups<false>(words, values, scale, 1, y, n);
}
void add_groups(const std::uint64_t* words, const std::byte* values, float scale, float alpha,
                float* y, std::size_t n) {
  scatter_groups<true>(words, values, scale, alpha, y, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(set_groups);
HWY_EXPORT(add_groups);

std::uint64_t KeptSet::count() noexcept {
  constexpr std::size_t kWords = kKeptGrain / 64;
  std::uint64_t total = 0;
  for (std::size_t w = 0; w < words.size(); ++w) {
    if (w % kWords == 0) before[w / kWords] = total;
    total += static_cast<std::uint64_t>(std::popcount(words[w]));
  }
  return total;
}

void gather_marked(const float* x, std::size_t n, const std::uint64_t* words,
                   std::byte* values) noexcept {
  for (std::size_t at = 0; at < n; at += 64) {
    for (std::uint64_t left = words[at / 64]; left != 0; left &= left - 1, values += 4)
      std::memcpy(values, x + at + std::countr_zero(left), 4);
  }
}

void gather_kept(const float* x, std::size_t n, const KeptSet& set, Executor* executor,
                 std::byte* values) noexcept {
  run_ranges(executor, n, kKeptGrain, [&](std::size_t begin, std::size_t end) {
    gather_marked(x + begin, end - begin, set.words.data() + begin / 64,
                  values + 4 * set.before[begin / kKeptGrain]);
  });
}

Status check_values(const std::byte* values, std::size_t count, float scale) noexcept {
  std::uint32_t largest = 0;  // magnitudes order as integers
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, values + 4 * i, 4);
    largest = std::max(largest, bits & 0x7FFFFFFFu);
  }
  if (largest >= 0x7F800000u) return Status::corrupt;
  return std::isinf(std::bit_cast<float>(largest) * scale) ? Status::overflow : Status::ok;
}

void scatter_marked(const std::byte* values, const std::uint64_t* words, float scale, bool add,
                    float alpha, float* y, std::size_t n) noexcept {
  if (add) {
    HWY_DYNAMIC_DISPATCH(add_groups)(words, values, scale, alpha, y, n);
  } else {
    HWY_DYNAMIC_DISPATCH(set_groups)(words, values, scale, y, n);
  }
}

}  // namespace atomo::cpu
#endif
