// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The workspace of coordinates, for a batch of segments in flight.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/workspace.hpp"
#include "format/coordinate_body.hpp"

namespace atomo::cpu {

inline constexpr std::size_t kSlots = 8;  ///< segments in flight

/// Entries of the chunks that m entries are in.
[[nodiscard]] constexpr std::size_t whole_chunks(std::size_t m) noexcept {
  return (m + kCoordinateChunk - 1) / kCoordinateChunk * kCoordinateChunk;
}

/// Memory of one segment being written.
struct Slot {
  std::span<std::uint32_t> levels;    ///< of whole chunks
  std::span<std::uint64_t> marks[2];  ///< levels that are not 0, and those above 1
  std::span<std::uint16_t> nonzero, ones, others;
  Bytes out;

  Slot() = default;
  Slot(Carver& carver, std::size_t m) noexcept
      : levels(carver.take<std::uint32_t>(whole_chunks(m))),
        marks{carver.take<std::uint64_t>(whole_chunks(m) / 64),
              carver.take<std::uint64_t>(whole_chunks(m) / 64)},
        nonzero(carver.take<std::uint16_t>(m)),
        ones(carver.take<std::uint16_t>(m)),
        others(carver.take<std::uint16_t>(m)),
        out(carver.take_bytes(max_segment_bytes(m) + 8)) {}
};

/// The parts of a workspace; carving and counting both go through them.
struct EncodeMemory {
  std::size_t count = 0;
  Slot slots[kSlots];

  EncodeMemory(Carver& carver, std::size_t n) noexcept : count(std::min(kSlots, segments_of(n))) {
    for (std::size_t i = 0; i < count; ++i)
      slots[i] = Slot(carver, std::min(n, kCoordinateSegment));
  }
};

struct DecodeMemory {
  std::size_t count = 0;
  std::span<float> values[kSlots];

  DecodeMemory(Carver& carver, std::size_t n) noexcept : count(std::min(kSlots, segments_of(n))) {
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = carver.take<float>(std::min(n, kCoordinateSegment));
    }
  }
};

}  // namespace atomo::cpu
