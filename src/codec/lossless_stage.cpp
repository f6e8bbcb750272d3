// SPDX-License-Identifier: Apache-2.0
/// +blosc: a lossless last stage over a finished body, through c-blosc 1 (FORMAT.md, "Lossless
/// stage"). c-blosc takes heap memory in both directions, at most a few blocks, and a block is no
/// longer than its piece.
#include "codec/lossless_stage.hpp"

#include <blosc.h>

#include <algorithm>
#include <cstring>

#include "codec/body_decoder.hpp"
#include "core/bits.hpp"
#include "format/matrix.hpp"

namespace atomo::codec {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 30;  ///< below the 2 GiB of c-blosc's sizes
constexpr std::size_t kElementBytes =
    4;  ///< what is shuffled: most bodies hold f32 or words of codes

int shuffle_of(const std::string& name) noexcept {
  if (name == "none") return BLOSC_NOSHUFFLE;
  return name == "bit" ? BLOSC_BITSHUFFLE : BLOSC_SHUFFLE;
}

/// Compresses into `out`; 0 when the frame would not be shorter than `raw`.
std::size_t compress(ConstBytes raw, const BloscOptions& options, Bytes out) noexcept {
  const std::size_t room = std::min(out.size(), raw.size());
  if (room < 8) return 0;
  store_le(out.data(), static_cast<std::uint64_t>(raw.size()));
  std::size_t at = 8;
  for (std::size_t from = 0; from < raw.size(); from += kPiece) {
    const std::size_t length = std::min(kPiece, raw.size() - from);
    if (room - at < 4) return 0;
    const std::size_t limit = std::min(room - at - 4, length + BLOSC_MAX_OVERHEAD);
    const int size = blosc_compress_ctx(options.level, shuffle_of(options.shuffle), kElementBytes,
                                        length, raw.data() + from, out.data() + at + 4, limit,
                                        options.codec.c_str(), 0, 1);
    if (size <= 0) return 0;
    store_le(out.data() + at, static_cast<std::uint32_t>(size));
    at += 4 + static_cast<std::size_t>(size);
  }
  return at < raw.size() ? at : 0;
}

/// Unpacks one c-blosc buffer to exactly `length` bytes.
Status unpack_piece(ConstBytes packed, std::byte* out, std::size_t length) noexcept {
  std::size_t bytes = 0, compressed = 0, block = 0;
  if (packed.size() < BLOSC_MIN_HEADER_LENGTH ||
      blosc_cbuffer_validate(packed.data(), packed.size(), &bytes) != 0 || bytes != length)
    return Status::corrupt;
  blosc_cbuffer_sizes(packed.data(), &bytes, &compressed, &block);
  if (compressed != packed.size() || block == 0 || block > length) return Status::corrupt;
  const int unpacked = blosc_decompress_ctx(packed.data(), out, length, 1);
  return unpacked >= 0 && static_cast<std::size_t>(unpacked) == length ? Status::ok
                                                                       : Status::corrupt;
}

bool has_singular_pairs(const Kind& kind) noexcept {
  const bool pairs = kind.method == MethodId::factors ||
                     (kind.method == MethodId::atoms && kind.params == params_of(Family::pairs));
  return pairs && is_matrix(kind.shape);
}

/// Whether a frame of so many bytes may hold this body. False for a body whose pairs cannot be
/// counted.
bool pays_for_body(const Kind& kind, ConstBytes body, std::uint64_t frame_bytes) noexcept {
  if (!has_singular_pairs(kind)) return true;
  std::uint64_t pairs = 0, kept = 0;
  const Status status = find_decoder(kind.method)->count(body, kind, 0, pairs, kept);
  return !failed(status) && pays_for_pairs(kept, matrix_view(kind.shape).longer(), frame_bytes);
}

/// Unpacks into `out`; the body is `bytes` long.
Status unpack(ConstBytes body, Bytes out, std::size_t& bytes) noexcept {
  bytes = 0;
  if (body.size() < 8) return Status::truncated;
  const auto raw = load_le<std::uint64_t>(body.data());
  if (raw == 0 || raw > out.size()) return Status::corrupt;
  std::size_t at = 8;
  for (std::size_t to = 0; to < raw; to += kPiece) {
    if (body.size() - at < 4) return Status::truncated;
    const auto size = load_le<std::uint32_t>(body.data() + at);
    at += 4;
    if (body.size() - at < size) return Status::truncated;
    const std::size_t length = std::min<std::size_t>(kPiece, raw - to);
    if (const Status status = unpack_piece(body.subspan(at, size), out.data() + to, length);
        failed(status))
      return status;
    at += size;
  }
  if (at != body.size()) return Status::corrupt;
  bytes = raw;
  return Status::ok;
}

}  // namespace

std::string BloscOptions::to_string() const {
  return "blosc:codec=" + codec + ",level=" + std::to_string(level) + ",shuffle=" + shuffle;
}

void check_blosc(const BloscOptions& options) {
  if (blosc_compname_to_compcode(options.codec.c_str()) >= 0) return;
  throw Error("blosc codec '" + options.codec + "' is not in this c-blosc, which has " +
              blosc_list_compressors());
}

std::size_t pack_body(const BloscOptions& options, const Kind& kind, ConstBytes body,
                      Bytes out) noexcept {
  const std::size_t bytes = compress(body, options, out);
  return bytes != 0 && pays_for_body(kind, body, bytes) ? bytes : 0;
}

Status unpack_frame(const Kind& kind, ConstBytes frame, Bytes out, std::size_t& bytes) noexcept {
  if (const Status status = unpack(frame, out, bytes); failed(status)) return status;
  return pays_for_body(kind, out.first(bytes), frame.size()) ? Status::ok : Status::corrupt;
}

std::uint64_t frame_raw_bytes(ConstBytes frame) noexcept {
  return frame.size() < 8 ? 0 : load_le<std::uint64_t>(frame.data());
}

}  // namespace atomo::codec
