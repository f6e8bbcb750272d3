// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Codes of up to 256 symbols by a canonical Huffman code whose words have at most 12 bits.

#include <cstdint>
#include <span>

#include "catalogue/body.hpp"

namespace atomo::catalogue {

/// What `put_symbols` writes at most.
std::size_t symbols_bound(std::size_t count, unsigned bits) noexcept;

/// Writes codes below 2^`bits`: a byte that says how, then packed words of `bits` bits, or 4 bits for the length of each
/// symbol's word and the words. The shorter one. \throws Error
void put_symbols(Writer& out, std::span<const std::uint8_t> codes, unsigned bits);
/// \throws Error for lengths that make no code, and beyond the end.
void get_symbols(Reader& in, std::span<std::uint8_t> codes, unsigned bits);

/// Lengths of words for symbols that occur so often, at most 12; 0 for those that do not occur.
void huffman_lengths(std::span<const std::uint64_t> counts, std::span<std::uint8_t> lengths);

}  // namespace atomo::catalogue
