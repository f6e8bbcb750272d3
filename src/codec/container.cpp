// SPDX-License-Identifier: Apache-2.0
/// Reads containers: what a message says of its layers, and its values, layer by layer or all at
/// once.
#include "atomo/container.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "codec/body_decoder.hpp"
#include "codec/layer.hpp"
#include "codec/read_layers.hpp"
#include "core/fp_guard.hpp"
#include "core/status.hpp"
#include "format/own_body.hpp"
#include "format/thinning.hpp"

namespace atomo {

using namespace codec;

using core::report;
using format::Head;
using format::HeadLayout;
using format::Kind;
using format::LayerCursor;
using format::LayerRecord;

namespace {

Status describe_layer(const LayerCursor& layer, const format::Header& header, LayerInfo& info) {
  const Status row =
      format::check_record(layer.row, layer.kind.method, layer.kind.shape.elements());
  if (failed(row)) return row;
  const auto& decoder = *codec::find_decoder(layer.kind.method);
  info.name = std::string(layer.name);
  info.codec = decoder.describe(layer.kind);
  info.dtype = layer.kind.dtype;
  info.shape = layer.kind.shape;
  info.bytes = layer.row.bytes;
  info.non_finite = (layer.row.flags & LayerRecord::kNonFinite) != 0;
  info.lossless = (layer.row.flags & LayerRecord::kLossless) != 0;
  ConstBytes body = layer.body;
  if (format::rules_of(layer.kind.method).price != format::HeaderPrice::none)
    info.price = format::header_price(header, layer.kind.method);
  if ((layer.row.flags & LayerRecord::kOwnPrice) != 0) {
    if (body.size() <= sizeof(float)) return Status::corrupt;
    std::memcpy(&info.price, body.data(), sizeof(float));
    body = body.subspan(sizeof(float));
  }
  info.thinned = (layer.row.flags & LayerRecord::kThinned) != 0;
  std::vector<std::byte> unpacked;
  if (info.lossless) {
    // The memory to look inside is bounded by the message's own length. A body that unpacks to more
    // (zeros under zstd do) is checked when it is decoded, into the caller's memory.
    const std::size_t bound = body.size() * 256 + 4096;
    const std::uint64_t raw = codec::frame_raw_bytes(body);
    if (raw > decoder.max_body_bytes(layer.kind)) return Status::corrupt;
    if (raw > bound) return Status::ok;
    unpacked.resize(static_cast<std::size_t>(raw));
    std::size_t bytes = 0;
    if (const Status s = codec::unpack_frame(layer.kind, body, unpacked, bytes); failed(s))
      return s;
    body = ConstBytes(unpacked).first(bytes);
  }
  if (info.thinned) {
    if (body.size() < format::kThinningBytes) return Status::corrupt;
    body = body.subspan(format::kThinningBytes);
  }
  if (info.non_finite || info.shape.elements() == 0)
    return body.empty() ? Status::ok : Status::corrupt;
  if (layer.kind.method == format::MethodId::own) {
    format::OwnBody opened;
    const Status s = format::open_own_body(body, layer.kind.params, info.shape.elements(), opened);
    if (failed(s)) return s;
    info.codec = std::string(opened.spec);
  }
  return decoder.count(body, layer.kind, layer.row.form(), info.atoms, info.kept);
}

Status decode_all(std::span<const ConstBytes> messages, bool add, float alpha,
                  std::span<const TensorView> views, const Context& context) noexcept {
  const core::FpGuard guard;
  const auto check = [&](const Head& head) {
    return head.layers() == views.size() ? Status::ok : Status::shape_mismatch;
  };
  return codec::read_messages(messages, add, alpha, context, check,
                              [&](std::size_t i) { return views[i]; });
}

bool on_host(std::span<const TensorView> views) noexcept {
  return std::all_of(views.begin(), views.end(),
                     [](const TensorView& v) { return v.device == Device::cpu; });
}

}  // namespace

std::uint64_t ContainerInfo::elements() const noexcept {
  std::uint64_t n = 0;
  for (const auto& layer : layers) n += layer.shape.elements();
  return n;
}

Status inspect(ConstBytes message, ContainerInfo& info, bool exact) {
  Head head;
  if (const Status s = Head::parse(message, exact, head); failed(s)) return s;
  const auto& h = head.header();
  info = {h.major, h.minor, h.key, {h.price, h.grid_step}, h.total_bytes, head.head_bytes(), {}};
  Status status = Status::ok;
  for (LayerCursor layer(head); layer.next(status);) {
    LayerInfo& row = info.layers.emplace_back();
    if (const Status s = describe_layer(layer, h, row); failed(s)) return s;
  }
  return status;
}

Status decode(ConstBytes message, std::span<const TensorView> views,
              const Context& context) noexcept {
  if (!on_host(views)) return Status::unsupported;
  return report(context, decode_all({&message, 1}, false, 1, views, context));
}

Status decode_add(ConstBytes message, float alpha, std::span<const TensorView> views,
                  const Context& context) noexcept {
  return decode_add_all({&message, 1}, alpha, views, context);
}

Status decode_add_all(std::span<const ConstBytes> messages, float alpha,
                      std::span<const TensorView> views, const Context& context) noexcept {
  if (!on_host(views)) return Status::unsupported;
  return report(context, decode_all(messages, true, alpha, views, context));
}

std::size_t decode_workspace_bytes(const Shape& shape, DType dtype) {
  // Full-rank factors need most: an unpacked body of at most 8 bytes an entry, as many again to
  // decode it in, and the f32 copy behind a half view.
  const std::size_t bytes = dtype == DType::f32 ? 16 : 20;
  return bytes * shape.elements() + 65536;
}

namespace {

/// A container joined from parts: its layers, its key and its prices.
struct Joined {
  std::vector<Kind> kinds;  // one a layer
  std::vector<std::string> names;
  std::vector<LayerRecord> rows;
  Key key;
  float price = 0, grid_step = 0;
  bool named = true;
};

bool merge_price(float& into, float part) noexcept {
  if (part == 0) return true;
  if (into != 0 && into != part) return false;
  into = part;
  return true;
}

Status gather(std::span<const ConstBytes> parts, Joined& all) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    Head head;
    if (const Status s = Head::parse(parts[p], false, head); failed(s)) return s;
    const auto& h = head.header();
    Key expected = all.key;
    expected.tensor = static_cast<std::uint16_t>(expected.tensor + all.rows.size());
    if (p == 0) all.key = h.key;
    if (p > 0 && expected != h.key) return Status::shape_mismatch;
    if (!merge_price(all.price, h.price) || !merge_price(all.grid_step, h.grid_step))
      return Status::price_mismatch;
    all.named = all.named && (h.flags & format::kFlagNames) != 0;
    Status status = Status::ok;
    for (LayerCursor layer(head); layer.next(status);) {
      all.kinds.push_back(layer.kind);
      all.names.emplace_back(layer.name);
      all.rows.push_back(layer.row);
    }
    if (failed(status)) return status;
  }
  return all.rows.size() + all.key.tensor <= format::kMaxLayers ? Status::ok : Status::corrupt;
}

Status join_parts(std::span<const ConstBytes> parts, const Payload& payload) {
  Joined all;
  if (const Status s = gather(parts, all); failed(s)) return s;
  if (!all.named) all.names.clear();
  const HeadLayout layout(all.kinds, all.names);
  std::uint64_t total = layout.bytes();
  for (const auto& row : all.rows) total += format::padded(row.bytes);
  if (total > payload.capacity) return Status::buffer_too_small;
  layout.write_tables(payload.data);
  std::byte* to = payload.data + layout.bytes();
  for (std::size_t i = 0; i < all.rows.size(); ++i) {
    all.rows[i].kind = layout.kind_of(i);
    format::write_record(payload.data, i, all.rows[i]);
  }
  for (const auto& part : parts) {
    Head head;
    if (const Status s = Head::parse(part, false, head); failed(s)) return s;
    const ConstBytes bodies = head.message().subspan(head.head_bytes());
    if (!bodies.empty()) std::memcpy(to, bodies.data(), bodies.size());
    to += bodies.size();
  }
  layout.seal(payload.data, all.key, all.price, all.grid_step, total);
  *payload.bytes = total;
  return Status::ok;
}

}  // namespace

Status join(std::span<const ConstBytes> parts, const Payload& payload) noexcept {
  if (payload.data == nullptr || payload.bytes == nullptr || parts.empty())
    return Status::invalid_argument;
  try {
    return join_parts(parts, payload);
  } catch (...) {  // out of memory
    return Status::external;
  }
}

std::size_t joined_bytes_bound(std::span<const ConstBytes> parts) noexcept {
  std::size_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  return bytes + format::kHeaderBytes;
}

}  // namespace atomo
