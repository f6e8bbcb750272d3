// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What targets hold decoded values to.

#include "format/kind.hpp"

namespace atomo::fuzz {

/// Whether a decoder says `overflow` when a value is infinite. The others: `identity` sends any value,
/// whose encoder speaks of it, and dithered blocks and rows are infinite beyond the range of f32
/// (FORMAT.md, "Content").
[[nodiscard]] inline bool announces_infinity(const format::Kind& kind) noexcept {
  using format::Family;
  using format::MethodId;
  if (kind.method == MethodId::identity || kind.method == MethodId::automatic) return false;
  if (kind.method != MethodId::atoms) return true;
  const Family family = format::family_of(kind.params);
  return family != Family::blocks && family != Family::rows;
}

}  // namespace atomo::fuzz
