// SPDX-License-Identifier: Apache-2.0
/// Rounds f32 to halves and widens halves to f32, in tasks of 65,536 entries on the caller's
/// executor.
#include "core/halves.hpp"

#include <atomic>
#include <cstring>

#include "core/half.hpp"
#include "core/run_tasks.hpp"

namespace atomo::core {
namespace {

/// Entries of a task: a multiple of the four draws of a block of Philox.
constexpr std::size_t kGrain = 65536;

}  // namespace

Status round_to_half(const float* x, std::size_t n, const Key& key, Purpose purpose, DType dtype,
                     void* out, Executor* executor) noexcept {
  const Philox draws(key, purpose);
  std::atomic<bool> overflow = false;
  run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    bool over = false;
    for (std::size_t i = begin; i < end; i += 4) {
      const PhiloxWords words = draws(i / 4);
      for (std::size_t k = 0; k < 4 && i + k < end; ++k) {
        const float v = x[i + k];
        const std::uint16_t h =
            dtype == DType::f16 ? to_f16(v, words[k], over) : to_bf16(v, words[k], over);
        std::memcpy(static_cast<std::byte*>(out) + 2 * (i + k), &h, 2);
      }
    }
    if (over) overflow = true;
  });
  return overflow ? Status::overflow : Status::ok;
}

void widen_halves(const void* from, DType dtype, std::size_t n, float* to,
                  Executor* executor) noexcept {
  run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      std::uint16_t half;
      std::memcpy(&half, static_cast<const std::byte*>(from) + 2 * i, 2);
      to[i] = dtype == DType::f16 ? from_f16(half) : from_bf16(half);
    }
  });
}

}  // namespace atomo::core
