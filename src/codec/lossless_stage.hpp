// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a lossless stage may hold, so that the work of a decoder is bounded by what it received.
///
/// Linear work is bounded by the sizes that a body may unpack to. Singular pairs cost more: each is
/// multiplied out over the whole tensor, and a frame of a few bytes could unpack to all of them. So
/// a frame pays for the pairs in it. An encoder stores a body that its frame does not pay for.

#include <cstdint>

#include "codec/method.hpp"

namespace atomo::codec {

/// Pairs that every frame may hold: as many as the largest sketch has.
inline constexpr std::uint64_t kFreePairs = 256;
/// Entries of a further pair's longer vector that a byte pays for: half a bit an entry, the least
/// that dithered vectors take when they are not packed.
inline constexpr std::uint64_t kEntriesOfByte = 16;

/// `longer` is the longer side of the matrix.
[[nodiscard]] constexpr bool pays_for_pairs(std::uint64_t kept, std::uint64_t longer,
                                            std::uint64_t frame_bytes) noexcept {
  return kept <= kFreePairs || (kept - kFreePairs) * longer <= kEntriesOfByte * frame_bytes;
}

/// Whether a frame of so many bytes may hold this body. False for a body whose pairs cannot be
/// counted.
[[nodiscard]] bool pays_for_body(const Kind& kind, ConstBytes body,
                                 std::uint64_t frame_bytes) noexcept;

/// Unpacks a frame into `out`; `bytes` is the size of the body. `corrupt` for one that does not pay
/// for its body too.
Status unpack_frame(const Kind& kind, ConstBytes frame, Bytes out, std::size_t& bytes) noexcept;

}  // namespace atomo::codec
