// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// f16 and bf16 entries from and to f32, over the caller's executor.

#include <cstddef>

#include "atomo/types.hpp"
#include "core/philox.hpp"

namespace atomo::cpu {

/// The draws that round values of one kind: 16 bits an entry (core/short_draw.hpp).
struct HalfDraws {
  core::Purpose first, further;
};
inline constexpr HalfDraws kOutputDraws{core::Purpose::output, core::Purpose::output_low};
inline constexpr HalfDraws kIdentityDraws{core::Purpose::identity, core::Purpose::identity_low};
inline constexpr HalfDraws kMemoryDraws{core::Purpose::memory, core::Purpose::memory_low};

/// Notes on values that were rounded to half.
struct RoundedHalves {
  bool overflow = false;    ///< a finite one became infinite
  bool non_finite = false;  ///< one was Inf or NaN

  [[nodiscard]] Status status() const noexcept { return overflow ? Status::overflow : Status::ok; }
};

/// Rounds n values to half, stochastically, into `out`, 2 bytes each.
RoundedHalves round_to_half(const float* x, std::size_t n, const Key& key, HalfDraws draws,
                            DType dtype, void* out, Executor* executor) noexcept;

/// The same on this thread, of values that draw as the entries of a layer from `entry` on, a multiple of
/// 128.
RoundedHalves round_to_half(const float* x, std::size_t n, const Philox& draws,
                            const Philox& further, std::uint64_t entry, DType dtype,
                            void* out) noexcept;

/// Writes the n halves at `from`, 2 bytes each, as f32.
void widen_halves(const void* from, DType dtype, std::size_t n, float* to,
                  Executor* executor) noexcept;

/// Adds alpha times the halves.
void add_halves(const void* from, DType dtype, std::size_t n, float alpha, float* to,
                Executor* executor) noexcept;

}  // namespace atomo::cpu
