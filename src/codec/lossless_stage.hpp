// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The lossless stage behind a codec, and what its frames may hold, so that the work of a decoder is
/// bounded by what it received.
///
/// Linear work is bounded by the sizes that a body may unpack to. Singular pairs cost more: each is
/// multiplied out over the whole tensor, and a frame of a few bytes could unpack to all of them. So
/// a frame pays for the pairs in it. An encoder stores a body that its frame does not pay for.

#include <cstdint>
#include <string>

#include "atomo/types.hpp"
#include "format/kind.hpp"

namespace atomo::codec {

/// `+blosc:` of a spec.
struct BloscOptions {
  std::string codec = "lz4";     ///< lz4, zstd, blosclz
  int level = 5;                 ///< 0..9
  std::string shuffle = "byte";  ///< none, byte, bit
  friend bool operator==(const BloscOptions&, const BloscOptions&) = default;

  /// "blosc:codec=lz4,level=5,shuffle=byte".
  [[nodiscard]] std::string to_string() const;
};
/// \throws Error for a compressor that this c-blosc does not have.
void check_blosc(const BloscOptions& options);

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

/// Puts a finished body of this kind into a frame. Returns the frame's bytes in `out`, 0 when the
/// body is to be stored: it would not shrink, or would shrink to less than pays for it. Takes heap
/// memory.
[[nodiscard]] std::size_t pack_body(const BloscOptions& options, const Kind& kind, ConstBytes body,
                                    Bytes out) noexcept;

/// Unpacks a frame into `out`; `bytes` is the size of the body. `corrupt` for one that does not pay
/// for its body too. Any bytes give a Status.
Status unpack_frame(const Kind& kind, ConstBytes frame, Bytes out, std::size_t& bytes) noexcept;
/// The size that a frame states for its contents; 0 where it is too short to state one.
[[nodiscard]] std::uint64_t frame_raw_bytes(ConstBytes frame) noexcept;

}  // namespace atomo::codec
