// SPDX-License-Identifier: Apache-2.0
#include "codec/lossless_stage.hpp"

#include "format/kind.hpp"
#include "format/matrix.hpp"

namespace atomo::codec {
namespace {

bool has_singular_pairs(const Kind& kind) noexcept {
  const bool pairs =
      kind.method == MethodId::factors || (kind.method == MethodId::atoms && kind.params == kPairs);
  return pairs && is_matrix(kind.shape);
}

}  // namespace

bool pays_for_body(const Kind& kind, ConstBytes body, std::uint64_t frame_bytes) noexcept {
  if (!has_singular_pairs(kind)) return true;
  std::uint64_t pairs = 0, kept = 0;
  const Status status = find_decoder(kind.method)->count(body, kind, 0, pairs, kept);
  return !failed(status) && pays_for_pairs(kept, matrix_view(kind.shape).longer(), frame_bytes);
}

Status unpack_frame(const Kind& kind, ConstBytes frame, Bytes out, std::size_t& bytes) noexcept {
  if (const Status status = blosc_unpack(frame, out, bytes); failed(status)) return status;
  return pays_for_body(kind, out.first(bytes), frame.size()) ? Status::ok : Status::corrupt;
}

}  // namespace atomo::codec
