// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The most bits that dithered content can take.

#include <cstddef>
#include <cstdint>

#include "core/namespaces.hpp"

namespace atomo::format {

/// Most bits of the content of a vector of `entries` entries whose rms is at most `reach` steps, in
/// coding step `step`, whatever its entries and draws. The first call builds a table.
///
/// A pair of integers (q0, q1) costs its word, and takes at least e(q0, q1) of the vector's energy,
/// which is at most entries * reach^2 in squared steps. So for every lambda >= 0 the content takes
/// at most pairs * max(length - lambda * e) + lambda * entries * reach^2: weak duality; the least
/// of a few lambda is taken.
[[nodiscard]] std::uint64_t max_vector_bits(std::size_t step, double reach,
                                            std::uint64_t entries) noexcept;

}  // namespace atomo::format
