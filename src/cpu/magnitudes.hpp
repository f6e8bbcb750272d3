// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Counts the magnitudes of a layer for the price of coordinates.

#include "atomo/types.hpp"
#include "cpu/scan.hpp"

namespace atomo::cpu {

/// Room that counting n entries takes beside the histogram.
[[nodiscard]] std::size_t magnitude_scratch_bytes(std::size_t n) noexcept;

/// Fills the histogram (price/magnitude_histogram.hpp), which says nothing where an entry is not
/// finite. Runs on the executor, which may be null.
EntryScan count_magnitudes(const float* x, std::size_t n, Bytes histogram, Bytes scratch,
                           Executor* executor) noexcept;

}  // namespace atomo::cpu
