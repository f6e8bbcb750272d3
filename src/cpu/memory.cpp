// SPDX-License-Identifier: Apache-2.0
/// Loops of a read and a write an entry, which the compiler vectorises.
#include "cpu/memory.hpp"

#include <algorithm>
#include <cstring>

#include "core/run_tasks.hpp"
#include "cpu/halves.hpp"
#include "math/memory_rules.hpp"

namespace atomo::cpu {
namespace {

constexpr std::size_t kGrain = 65536;  ///< entries of a task
constexpr std::size_t kTile = 1024;    ///< entries that are widened at once

void copy_range(const ConstTensorView& view, std::size_t begin, std::size_t count,
                float* x) noexcept {
  const auto* const from = static_cast<const std::byte*>(view.data) + begin * size_of(view.dtype);
  if (view.dtype == DType::f32) {
    std::memcpy(x, from, count * sizeof(float));
  } else {
    widen_halves(from, view.dtype, count, x, nullptr);
  }
}

}  // namespace

void copy_entries(const ConstTensorView& view, std::size_t n, float* x,
                  Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    copy_range(view, begin, end - begin, x + begin);
  });
}

void add_kept(const float* e, std::size_t n, float factor, float* x, Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) x[i] = with_residual(x[i], factor, e[i]);
  });
}

void add_kept(const float* u, const float* v, std::size_t n, float factor, float* x,
              Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) x[i] = with_velocity(x[i], factor, u[i], v[i]).x;
  });
}

void scale_entries(float scale, std::size_t n, float* x, Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) x[i] = scale * x[i];
  });
}

void keep_unsent(const ConstTensorView& g, const float* left, std::size_t n, float factor,
                 const float* kept, float* to, Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    float tile[kTile];
    for (std::size_t first = begin; first < end; first += kTile) {
      const std::size_t count = std::min(kTile, end - first);
      copy_range(g, first, count, tile);
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = first + i;
        const Velocity of = with_velocity(tile[i], factor, kept[at], kept[n + at]);
        to[at] = kept_velocity(of, left[at]);
        to[n + at] = left[at];
      }
    }
  });
}

}  // namespace atomo::cpu
