// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Chunked top-k: in each chunk of consecutive entries the k largest magnitudes, ties by the lowest
/// index, zeros never. Their places are Rice-coded gaps, their values have a few bits: the content of
/// SparseLoCo, DeMo and DisTrO. FORMAT.md ("chunked top-k") has the body. Biased, but where entries are
/// drawn in place of the largest.
///
/// Nothing here allocates or throws; the bytes do not depend on the executor. `x` and `y` are n
/// f32 in host memory. The processor must not flush subnormals to zero (a Codec sees to that).

#include <cstddef>
#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "cpu/add_bodies.hpp"
#include "cpu/tile_sequence.hpp"
#include "format/chunk_body.hpp"

namespace atomo::cpu {

using format::ChunkConfig;

[[nodiscard]] std::size_t max_encoded_bytes(const ChunkConfig& config, std::size_t n) noexcept;

/// Writes at most `max_encoded_bytes`, which `body` has room for. `non_finite` when an entry is Inf or
/// NaN. `tiles`: those of x where they are the sequence, else null; `executor` may be null.
Status encode(const ChunkConfig& config, const TileReader* tiles, const float* x, std::size_t n,
              const Key& key, Executor* executor, Bytes body, std::size_t& bytes) noexcept;
/// y[i] = v, or, where `add`, y[i] + (alpha * v) for one body after the other; v is 0 where nothing was
/// kept. Any bytes give a Status: `truncated`, or `corrupt` for whatever contradicts the format.
void decode(const ChunkConfig& config, std::span<LayerBody> bodies, bool add, float alpha, float* y,
            std::size_t n, Executor* executor) noexcept;
/// The same of a sequence of n entries that are tiles.
void decode(const ChunkConfig& config, std::span<LayerBody> bodies, const TileWriter& tiles,
            Executor* executor) noexcept;

}  // namespace atomo::cpu
