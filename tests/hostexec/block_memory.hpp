// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The shared memory of blocks: every object at its exact size, garbage when a block begins.

#include <cstddef>

#include "fiber.hpp"
#include "settings.hpp"

namespace hostexec {

/// Blocks that run at the same time, or count as such under TSan. Its cost grows with the fibres there are.
inline constexpr std::size_t kMaxGroup = kTsan ? 2 : 4;

/// Whenever another block of a group runs: the memory of that place is its own.
void use_block_memory(std::size_t place);
/// Before each block, in its place: what the block before left there is garbage again.
void begin_block_memory(std::size_t dynamic_bytes, Settings& settings);
/// Before each group of blocks that count as concurrent (TSan): all memory may be used anew.
void begin_group_memory();
/// After the last block of a grid.
void end_grid_memory();

}  // namespace hostexec
