// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Counted work of decoders, and what bounds it. The library that is linked was compiled without vectors
/// and calls `__sanitizer_cov_trace_pc` in every basic block that it enters.

#include <cstring>

#include "atomo/atomo.hpp"
#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "format/container_head.hpp"
#include "format/factors_body.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"

namespace atomo::test {

using format::Kind;
using format::LayerRecord;
using format::MethodId;

/// Blocks entered since it was last set to 0.
extern std::uint64_t blocks_entered;

/// Blocks of linear work: of a byte received, of an entry written, and of every call.
inline constexpr std::uint64_t kBlocksOfByte = 32, kBlocksOfEntry = 32, kBlocksOfCall = 40'000;
/// A row of 8 bytes can make its reader go through 16 kinds of 8 dimensions.
inline constexpr std::uint64_t kBlocksOfHeadByte = 512;
/// Multiply-adds of singular pairs in a block: 4 rows of 2 columns.
inline constexpr std::uint64_t kProductsOfBlock = 8;
/// SECURITY.md: of an entry, and of a byte and an entry of the shorter side.
inline constexpr std::uint64_t kProductsOfEntry = 256, kProductsOfByte = 16;
/// SECURITY.md: those of a tile that is transformed, at most two products with a basis of 64 x 64.
/// Without vectors a multiply-add is up to three blocks, most where a tile has odd sides.
inline constexpr std::uint64_t kTransformsOfEntry = 128, kBlocksOfTransform = 3;

/// Blocks that decoding a layer of this kind, of so many bytes, may enter.
std::uint64_t most_blocks(const Kind& kind, std::uint64_t received);

std::vector<std::byte> message_of(const Kind& kind, std::uint8_t flags,
                                  const std::vector<std::byte>& body);
/// The smallest message that has this body: behind the lossless stage where it shrinks, whether the
/// frame pays for it or not.
std::vector<std::byte> packed_message(const Kind& kind, std::uint8_t flags,
                                      const std::vector<std::byte>& body);

struct Work {
  Status status = Status::ok;
  std::uint64_t blocks = 0;
};
/// Of a message of one layer.
Work decode_counted(const std::vector<std::byte>& message, const Shape& shape);

}  // namespace atomo::test
