// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The frame around the body of a codec that is not the library's (FORMAT.md, "own"): u8 length of
/// its spec, the spec, what the codec wrote.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo::format {

inline constexpr std::size_t kMaxOwnSpec = 255;  ///< bytes of a spec
inline constexpr std::size_t kMinOwnName = 2, kMaxOwnName = 32;

/// The most bytes of a body of n entries, frame included.
[[nodiscard]] constexpr std::size_t max_own_body_bytes(std::size_t n) noexcept {
  return 8 * n + 32768;
}
[[nodiscard]] constexpr std::size_t own_head_bytes(std::string_view spec) noexcept {
  return 1 + spec.size();
}

[[nodiscard]] constexpr bool is_own_name(std::string_view name) noexcept {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return name.size() >= kMinOwnName && name.size() <= kMaxOwnName && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) {
           return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-';
         });
}
/// `name` or `name:keys`, of printable characters.
[[nodiscard]] constexpr bool is_own_spec(std::string_view spec) noexcept {
  const bool printable =
      std::all_of(spec.begin(), spec.end(), [](char c) { return c > ' ' && c <= '~'; });
  return spec.size() <= kMaxOwnSpec && printable && is_own_name(spec.substr(0, spec.find(':')));
}

/// The parameters of a kind: the lower half of the spec's XXH3.
[[nodiscard]] std::uint32_t own_params(std::string_view spec) noexcept;

/// An opened body.
struct OwnBody {
  std::string_view spec;
  ConstBytes proper;  ///< what the codec wrote
};
/// Checks the frame. `body` is any bytes.
Status open_own_body(ConstBytes body, std::uint32_t params, std::size_t n,
                     OwnBody& opened) noexcept;

}  // namespace atomo::format
