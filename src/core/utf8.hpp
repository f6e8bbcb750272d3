// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Names are UTF-8 (FORMAT.md, "Names"): well-formed as Unicode has it, so without surrogates,
/// numbers beyond 10FFFF or longer forms than needed.

#include <cstdint>
#include <string>
#include <string_view>

#include "atomo/types.hpp"
#include "core/host_device.hpp"

namespace atomo::core {

/// Bytes of the character at `at`, 0 where there is none that is well-formed.
ATOMO_HD inline std::size_t utf8_character(ConstBytes text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(text[at + i]); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (first < 0xC2 || first > 0xF4 || text.size() - at < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 2) return 0;
  }
  const std::uint32_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const std::uint32_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return byte(1) >= least && byte(1) <= most ? length : 0;
}

/// The offset of the first character that is not well-formed; the text's size if all are.
ATOMO_HD inline std::size_t utf8_prefix(ConstBytes text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_character(text, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

/// The text for a message: control characters and bytes that are not UTF-8 as \xNN.
[[nodiscard]] std::string shown(std::string_view text);

}  // namespace atomo::core
