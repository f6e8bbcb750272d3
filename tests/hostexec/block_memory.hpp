// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The shared memory of blocks: every object at its exact size, garbage when a block begins.

#include <cstddef>

#include "settings.hpp"

namespace hostexec {

/// Blocks that count as concurrent under TSan. Its cost grows with the fibres there are.
inline constexpr std::size_t kMaxGroup = 2;

/// Before each block: what the block before left is garbage again.
void begin_block_memory(std::size_t dynamic_bytes, Settings& settings);
/// Before each group of blocks that count as concurrent (TSan): all memory may be used anew.
void begin_group_memory();
/// After the last block of a grid.
void end_grid_memory();

}  // namespace hostexec
