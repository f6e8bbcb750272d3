// SPDX-License-Identifier: Apache-2.0
/// Shows text that may hold anything in a message for people.
#include "core/utf8.hpp"

#include <span>

namespace atomo::core {

std::string shown(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  const ConstBytes bytes = std::as_bytes(std::span(text.data(), text.size()));
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_character(bytes, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out;
}

}  // namespace atomo::core
