// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A tensor as a sequence of tiles, as they are or transformed (math/tile_transform.hpp), and back.
/// FORMAT.md ("Layouts") has the arithmetic. Nothing allocates; the values do not depend on the
/// executor, which may be null.

#include "atomo/types.hpp"
#include "math/tile_transform.hpp"

namespace atomo::cpu {

/// `sequence` has as many entries as x, all finite where they are transformed.
void to_tiles(const math::Tiles& tiles, bool transforms, const float* x, float* sequence,
              Executor* executor) noexcept;
/// y[i] = v, or y[i] + (alpha * v) where `add`.
void from_tiles(const math::Tiles& tiles, bool transforms, const float* sequence, bool add,
                float alpha, float* y, Executor* executor) noexcept;

}  // namespace atomo::cpu
