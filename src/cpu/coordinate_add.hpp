// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Adding bodies of coordinates of one grid step: levels are integers, so nothing is rounded.

#include <cstdint>
#include <span>

#include "atomo/types.hpp"
#include "core/workspace.hpp"
#include "cpu/coordinate_write.hpp"
#include "format/coordinate_body.hpp"

namespace atomo::cpu {

/// One of the bodies that are added; empty for zeros.
struct AddedBody {
  ConstBytes body;
  std::uint64_t next = 0;  ///< where the content of the segment at hand begins
};

/// Adds bodies segment by segment, in memory that does not depend on their number or length.
class CoordinateAdder {
 public:
  /// Takes the memory of one segment: 448 KiB.
  explicit CoordinateAdder(core::Carver& carver) noexcept;

  /// The body of the sum of `bodies`, of n entries each, as an encoder writes these levels; `bytes`
  /// is 0 when every level is. Status::corrupt when a body breaks the format, Status::too_large
  /// when a level, added up in the order of the bodies, reaches 2^53 in magnitude on the way,
  /// Status::buffer_too_small.
  Status add(std::span<AddedBody> bodies, std::size_t n, Bytes out, std::uint64_t& bytes) noexcept;

 private:
  Status add_segment(std::span<AddedBody> bodies, std::size_t s, std::size_t m, bool& any) noexcept;
  std::uint32_t write_segment(std::size_t m, Bytes out, Status& status) noexcept;
  template <typename Value>
  std::uint32_t write_levels(std::size_t m, unsigned level_bits, Bytes out,
                             Status& status) noexcept;

  std::span<std::int64_t> levels_;
  ListMemory lists_;
};

}  // namespace atomo::cpu
