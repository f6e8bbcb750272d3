// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The entries from a threshold on, and what becomes of the others.

#include <cstdint>
#include <span>
#include <vector>

#include "catalogue/body.hpp"

namespace atomo::catalogue {

/// Entries that are sent as they are, and places that are sent as plus or minus the threshold.
struct Kept {
  std::vector<std::uint64_t> places;
  std::vector<float> values;
  std::vector<std::uint64_t> raised;  ///< places of smaller entries that are sent as the threshold
  std::vector<std::uint8_t> raised_signs;  ///< 1 for minus
};

/// Entries of at least `threshold`, zeros apart.
Kept kept_entries(std::span<const float> x, float threshold);
/// Those, and each smaller entry as plus or minus the threshold with the chance |x| / threshold: right on average.
Kept kept_or_raised(std::span<const float> x, float threshold, Words& words);

/// What `put_kept` writes at most for `n` entries of which at most `most` are kept and none raised.
std::size_t kept_bound(std::size_t n, std::size_t most) noexcept;
/// What `put_kept` and `put_raised` write at most together.
std::size_t kept_or_raised_bound(std::size_t n) noexcept;

/// Places and values, f32. \throws Error
void put_kept(Writer& out, std::size_t n, const Kept& kept);
/// The threshold, f32, the places of raised entries and a sign bit of each. \throws Error
void put_raised(Writer& out, std::size_t n, const Kept& kept, float threshold);
/// Writes the entries into `y`. \throws Error
void get_kept(Reader& in, std::size_t most, std::span<float> y);
void get_raised(Reader& in, std::span<float> y);

}  // namespace atomo::catalogue
