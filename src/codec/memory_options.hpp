// SPDX-License-Identifier: Apache-2.0
#pragma once
/// `ef:`, `momentum:`, `dgc:` and `ef21:` of a spec, which stand in front of a codec.

#include <cstddef>
#include <cstdint>
#include <string>

#include "math/kept_values.hpp"

namespace atomo::codec {

/// What a sender keeps of a layer: x is encoded, c is what the message decodes to.
struct MemoryOptions {
  enum class Rule : std::uint8_t {
    ef = 0,        ///< x = g + factor e; e <- x - c
    momentum = 1,  ///< the same under the name of its factor
    dgc = 2,       ///< u <- factor u + g; x = v + u; v <- x - c; u <- 0 where c was sent
    ef21 = 3,      ///< x = g - s; s <- s + c, as receivers add up
  };

  Rule rule = Rule::ef;
  double factor = 1;         ///< decay, beta or momentum; none of ef21
  bool contract = false;     ///< what is encoded is x / (1 + omega)
  math::KeptType type = math::KeptType::f32;  ///< of what is kept
  friend bool operator==(const MemoryOptions&, const MemoryOptions&) = default;

  /// Values kept an entry.
  [[nodiscard]] std::size_t values() const noexcept { return rule == Rule::dgc ? 2 : 1; }
  /// The canonical text: "ef:decay=1,scale=none,memory=f32".
  [[nodiscard]] std::string to_string() const;
};

}  // namespace atomo::codec
