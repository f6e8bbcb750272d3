// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What Thrust says of tensors on the current device: an answer to compare kernels with that shares
/// nothing with them. Every function waits.

#include <cstdint>

namespace atomo::test {

/// The decoded tensor `y` of a top-k of `x`, both of n entries.
struct KeptEntries {
  float threshold = 0;        ///< the k-th largest |x|, found by sorting
  std::uint64_t kept = 0;     ///< entries of y that are not 0
  std::uint64_t changed = 0;  ///< of these, other than x
  std::uint64_t small = 0;    ///< of these, |x| below the threshold
  std::uint64_t missing = 0;  ///< entries of which |x| is above it and y is 0
};
[[nodiscard]] KeptEntries look_at_kept(const float* x, const float* y, std::uint64_t n,
                                       std::uint64_t k);

[[nodiscard]] float largest_magnitude(const float* x, std::uint64_t n);
/// In f64.
[[nodiscard]] double mean_magnitude(const float* x, std::uint64_t n);

}  // namespace atomo::test
