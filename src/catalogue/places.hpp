// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Places of kept entries as gaps in Rice words.

#include <cstdint>
#include <span>
#include <vector>

#include "catalogue/body.hpp"

namespace atomo::catalogue {

/// What `put_places` writes at most for up to `most` places of `n` entries.
std::size_t places_bound(std::size_t n, std::size_t most) noexcept;

/// Writes ascending places below `n`: u64 their number, then each gap in words of Rice with log2(n / number) low bits.
/// \throws Error
void put_places(Writer& out, std::size_t n, std::span<const std::uint64_t> places);
/// At most `most` of them. \throws Error
std::vector<std::uint64_t> get_places(Reader& in, std::size_t n, std::size_t most);

}  // namespace atomo::catalogue
