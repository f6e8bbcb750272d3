// SPDX-License-Identifier: Apache-2.0
/// Loops over tiles, which stay in a cache while they are widened, worked on and rounded; the compiler
/// vectorises those of a read and a write an entry.
#include "cpu/memory.hpp"

#include <algorithm>
#include <cstring>

#include "core/run_tasks.hpp"
#include "cpu/halves.hpp"
#include "cpu/int8_blocks.hpp"
#include "math/memory_rules.hpp"

namespace atomo::cpu {
namespace {

using math::KeptType;

constexpr std::size_t kGrain = 65536;  ///< entries of a task
constexpr std::size_t kTile = 1024;    ///< entries that are widened at once, whole blocks of int8

/// `use(first, count)` of each tile.
template <typename Use>
void each_tile(Executor* executor, std::size_t n, const Use& use) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t first = begin; first < end; first += kTile)
      use(first, std::min(kTile, end - first));
  });
}

/// Where `count` values of a gradient are as f32: `room`, unless they are it.
const float* read_entries(const ConstTensorView& view, std::size_t first, std::size_t count,
                          float* room) noexcept {
  if (view.dtype == DType::f32) return static_cast<const float*>(view.data) + first;
  widen_halves(static_cast<const std::byte*>(view.data) + first * size_of(view.dtype), view.dtype,
               count, room, nullptr);
  return room;
}

/// The same of one of the vectors that are kept.
const float* read_kept(KeptType type, const std::byte* vector, std::size_t n, std::size_t first,
                       std::size_t count, float* room) noexcept {
  if (type == KeptType::f32) return reinterpret_cast<const float*>(vector) + first;
  const std::byte* const values =
      vector + math::scale_bytes(type, n) + math::value_bytes(type, first);
  if (type == KeptType::bf16) {
    widen_halves(values, DType::bf16, count, room, nullptr);
  } else {
    widen_int8(vector + math::scale_bytes(type, first), values, count, room);
  }
  return room;
}

/// The draws that round a vector; its entry 0 draws as `entry` of the layer.
struct VectorDraws {
  const Philox &draws, &further;
  std::uint64_t entry;
};

void write_kept(KeptType type, const float* from, const VectorDraws& of, std::byte* vector,
                std::size_t n, std::size_t first, std::size_t count) noexcept {
  std::byte* const values = vector + math::scale_bytes(type, n) + math::value_bytes(type, first);
  if (type == KeptType::f32) {
    std::memcpy(values, from, count * sizeof(float));
  } else if (type == KeptType::bf16) {
    static_cast<void>(
        round_to_half(from, count, of.draws, of.further, of.entry + first, DType::bf16, values));
  } else {
    round_to_int8(from, count, of.draws, of.further, of.entry + first,
                  vector + math::scale_bytes(type, first), values);
  }
}

}  // namespace

void form_with(const MemoryPlan& plan, const ConstTensorView& g, const std::byte* kept,
               std::size_t n, float* x, Executor* executor) noexcept {
  const std::byte* const behind = kept + math::kept_bytes(plan.type, n);
  each_tile(executor, n, [&](std::size_t first, std::size_t count) {
    float room[kTile], more_room[kTile];
    float* const to = x + first;
    const float* const of_g = read_entries(g, first, count, to);
    const float* const e = read_kept(plan.type, kept, n, first, count, room);
    if (plan.rule == MemoryPlan::Rule::velocity) {
      const float* const v = read_kept(plan.type, behind, n, first, count, more_room);
      for (std::size_t i = 0; i < count; ++i)
        to[i] = math::with_velocity(of_g[i], plan.factor, e[i], v[i]).x;
    } else {
      for (std::size_t i = 0; i < count; ++i)
        to[i] = math::with_residual(of_g[i], plan.factor, e[i]);
    }
  });
}

void scale_entries(float scale, std::size_t n, float* x, Executor* executor) noexcept {
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) x[i] = scale * x[i];
  });
}

void keep_unsent(const MemoryPlan& plan, const ConstTensorView& g, const float* left, std::size_t n,
                 const Key& key, const std::byte* kept, std::byte* to,
                 Executor* executor) noexcept {
  const Philox draws(key, kMemoryDraws.first), further(key, kMemoryDraws.further);
  const VectorDraws of_rest{draws, further, 0},
      of_u{draws, further, math::first_draw_of_velocity(n)};
  const std::size_t behind = math::kept_bytes(plan.type, n);
  const bool velocity = plan.rule == MemoryPlan::Rule::velocity;
  each_tile(executor, n, [&](std::size_t first, std::size_t count) {
    float of_gradient[kTile], room[kTile], moved[kTile];
    const auto gradient = [&] { return read_entries(g, first, count, of_gradient); };
    const auto first_kept = [&] { return read_kept(plan.type, kept, n, first, count, room); };
    const float* rest = left + first;
    if (velocity) {
      float more_room[kTile];
      const float *const of_g = gradient(), *const u = first_kept();
      const float* const v = read_kept(plan.type, kept + behind, n, first, count, more_room);
      for (std::size_t i = 0; i < count; ++i) {
        moved[i] =
            math::kept_velocity(math::with_velocity(of_g[i], plan.factor, u[i], v[i]), rest[i]);
      }
      write_kept(plan.type, moved, of_u, to, n, first, count);
    } else if (plan.rule == MemoryPlan::Rule::sum) {
      const float *const of_g = gradient(), *const s = first_kept();
      for (std::size_t i = 0; i < count; ++i) moved[i] = math::sent_so_far(of_g[i], s[i], rest[i]);
      rest = moved;
    }
    write_kept(plan.type, rest, of_rest, velocity ? to + behind : to, n, first, count);
  });
}

void copy_unsent(const MemoryPlan& plan, const std::byte* kept, std::size_t n, float* to) noexcept {
  const std::byte* const last = kept + (plan.vectors() - 1) * math::kept_bytes(plan.type, n);
  const float* const values = read_kept(plan.type, last, n, 0, n, to);
  if (values != to && n > 0) std::memcpy(to, values, n * sizeof(float));
}

}  // namespace atomo::cpu
