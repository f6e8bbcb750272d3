// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The row of a layer in a container (FORMAT.md, "Container").

#include <cstddef>
#include <cstdint>

#include "core/namespaces.hpp"

namespace atomo::format {

inline constexpr std::size_t kPriceBytes = sizeof(float);  ///< of a price in front of a body

/// Bodies and heads are padded to a multiple of 4 bytes.
[[nodiscard]] constexpr std::uint64_t padded(std::uint64_t bytes) noexcept {
  return (bytes + 3) / 4 * 4;
}

/// One layer's row: u16 kind, u8 flags, u40 bytes of the body before padding.
struct LayerRecord {
  static constexpr std::uint8_t kNonFinite = 1, kLossless = 2, kOwnPrice = 4, kThinned = 8,
                                kCentred = 0x40, kAllFlags = 0x7F;
  /// Bits 4 and 5: which of several forms the body has, where its method knows several.
  static constexpr unsigned kFormShift = 4;
  std::uint16_t kind = 0;
  std::uint8_t flags = 0;
  std::uint64_t bytes = 0;

  [[nodiscard]] constexpr std::uint8_t form() const noexcept {
    return static_cast<std::uint8_t>(flags >> kFormShift & 3u);
  }
  [[nodiscard]] constexpr std::uint64_t word() const noexcept {
    return std::uint64_t{kind} | (std::uint64_t{flags} << 16) | (bytes << 24);
  }
  [[nodiscard]] static constexpr LayerRecord of(std::uint64_t word) noexcept {
    return {static_cast<std::uint16_t>(word), static_cast<std::uint8_t>(word >> 16), word >> 24};
  }
};

}  // namespace atomo::format
