// SPDX-License-Identifier: Apache-2.0
/// Putting a message's bodies behind lossless stages, and taking them out, body by body; the head
/// but for its rows, total and checksums stays (FORMAT.md, "Lossless stage").
#include <cstring>

#include "atomo/container.hpp"
#include "codec/body_decoder.hpp"
#include "codec/layer.hpp"
#include "codec/lossless_stage.hpp"
#include "core/bits.hpp"
#include "format/container_head.hpp"

namespace atomo {

using namespace codec;
namespace {

using format::Head;
using format::LayerCursor;
using format::LayerRecord;

std::size_t price_bytes(const LayerRecord& row) noexcept {
  return (row.flags & LayerRecord::kOwnPrice) != 0 ? format::kPriceBytes : 0;
}
bool is_lossless(const LayerRecord& row) noexcept {
  return (row.flags & LayerRecord::kLossless) != 0;
}

Status copy_body(ConstBytes body, Bytes room, std::size_t& bytes) noexcept {
  if (room.size() < body.size()) return Status::buffer_too_small;
  if (!body.empty()) std::memcpy(room.data(), body.data(), body.size());
  bytes = body.size();
  return Status::ok;
}

/// Writes the message anew with what `rewrite(layer, body, room, row, bytes)` makes of each body,
/// its own price left out: `bytes` bytes into `room`, flags into `row`. `layers`: how many there
/// have to be, 0 for any number.
template <typename Rewrite>
Status rewrite_bodies(ConstBytes message, std::size_t layers, const Payload& payload,
                      Rewrite rewrite) noexcept {
  if (payload.data == nullptr || payload.bytes == nullptr) return Status::invalid_argument;
  Head head;
  if (const Status s = Head::parse(message, false, head); failed(s)) return s;
  if (layers != 0 && head.layers() != layers) return Status::shape_mismatch;
  const Bytes out(payload.data, payload.capacity);
  std::size_t at = 0;
  Status status = copy_body(message.first(head.head_bytes()), out, at);
  if (failed(status)) return status;
  for (LayerCursor layer(head); layer.next(status);) {
    LayerRecord row = layer.row;
    const std::size_t skip = price_bytes(row);
    if (layer.body.size() < skip) return Status::corrupt;
    std::size_t price = 0, bytes = 0;
    if (const Status s = copy_body(layer.body.first(skip), out.subspan(at), price); failed(s))
      return s;
    const Bytes room = out.subspan(at + skip);
    if (const Status s = rewrite(layer, layer.body.subspan(skip), room, row, bytes); failed(s))
      return s;
    row.bytes = skip + bytes;
    const std::size_t end = at + static_cast<std::size_t>(format::padded(row.bytes));
    if (end > out.size()) return Status::buffer_too_small;
    std::memset(out.data() + at + row.bytes, 0, end - at - row.bytes);
    format::write_record(out.data(), layer.index, row);
    at = end;
  }
  if (failed(status)) return status;
  format::write_total(out.data(), at);
  format::write_checksums(out.first(at), head.head_bytes());
  *payload.bytes = at;
  return Status::ok;
}

}  // namespace

Status pack_lossless(ConstBytes message, std::span<const Codec> codecs,
                     const Payload& payload) noexcept {
  if (codecs.empty()) return Status::shape_mismatch;
  const bool one_for_all = codecs.size() == 1;
  const auto pack = [&](const LayerCursor& layer, ConstBytes body, Bytes room, LayerRecord& row,
                        std::size_t& bytes) {
    const codec::Stages& stages = codec::Access::stages(codecs[one_for_all ? 0 : layer.index]);
    if (is_lossless(row) || stages.body->kind(layer.kind.shape, layer.kind.dtype) != layer.kind)
      return Status::codec_mismatch;
    bytes = stages.lossless ? codec::pack_body(*stages.lossless, layer.kind, body, room) : 0;
    if (bytes == 0) return copy_body(body, room, bytes);
    row.flags |= LayerRecord::kLossless;
    return Status::ok;
  };
  return rewrite_bodies(message, one_for_all ? 0 : codecs.size(), payload, pack);
}

Status unpack_lossless(ConstBytes message, const Payload& payload) noexcept {
  const auto unpack = [](const LayerCursor& layer, ConstBytes body, Bytes room, LayerRecord& row,
                         std::size_t& bytes) {
    if (!is_lossless(row)) return copy_body(body, room, bytes);
    row.flags &= static_cast<std::uint8_t>(~LayerRecord::kLossless);
    const std::size_t most = codec::find_decoder(layer.kind.method)->max_body_bytes(layer.kind);
    const std::uint64_t raw = codec::frame_raw_bytes(body);
    if (raw > most) return Status::corrupt;
    if (raw > room.size()) return Status::buffer_too_small;
    return codec::unpack_frame(layer.kind, body, room, bytes);
  };
  return rewrite_bodies(message, 0, payload, unpack);
}

std::uint64_t unpacked_bytes(ConstBytes message) noexcept {
  Head head;
  if (failed(Head::parse(message, false, head))) return 0;
  std::uint64_t bytes = head.head_bytes();
  Status status = Status::ok;
  for (LayerCursor layer(head); layer.next(status);) {
    const std::size_t skip = price_bytes(layer.row);
    if (!is_lossless(layer.row) || layer.body.size() < skip) {
      bytes += format::padded(layer.body.size());
      continue;
    }
    const std::size_t most = codec::find_decoder(layer.kind.method)->max_body_bytes(layer.kind);
    const std::uint64_t raw = codec::frame_raw_bytes(layer.body.subspan(skip));
    bytes += format::padded(skip + (raw < most ? raw : most));
  }
  return failed(status) ? 0 : bytes;
}

}  // namespace atomo
