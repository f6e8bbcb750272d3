// SPDX-License-Identifier: Apache-2.0
/// Takes containers apart, damaged ones too, changes a part and puts them together so that lengths
/// and checksums hold: mutations reach what stands behind them.
#include <algorithm>
#include <cstring>

#include "atomo/atomo.hpp"
#include "codec/body_decoder.hpp"
#include "codec/lossless_stage.hpp"
#include "format/container_head.hpp"
#include "fuzz/mutations.hpp"

namespace atomo::fuzz {
namespace {

using format::kHeaderBytes;
using format::kRecordBytes;
using format::LayerRecord;

constexpr std::size_t kNamesFlagAt = 6, kKindsAt = 34, kLayersAt = 36, kPriceAt = 40,
                      kMostParts = 64;

template <typename T>
T load(ConstBytes bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
template <typename T>
void append(Buffer& to, const T& value) {
  const ConstBytes bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}
void append_bytes(Buffer& to, ConstBytes bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

/// A message in parts; what is missing in a damaged one is empty.
struct Parts {
  Buffer header;
  std::vector<LayerRecord> rows;
  std::vector<Buffer> kinds, names, bodies;

  [[nodiscard]] static bool split(ConstBytes m, Parts& parts);
  [[nodiscard]] Buffer join(std::size_t& head_bytes) const;
  /// The kind of a layer, as far as a decoder could read it.
  [[nodiscard]] Buffer* kind_of(std::size_t layer) {
    return rows[layer].kind < kinds.size() ? &kinds[rows[layer].kind] : nullptr;
  }
};

/// How many bytes the kind takes that begins here.
std::size_t kind_bytes(ConstBytes m) {
  if (m.size() < 7) return m.size();
  std::size_t at = 7;
  for (auto rank = std::to_integer<unsigned>(m[6]); rank > 0 && at < m.size(); --rank) {
    while (at < m.size() && (m[at] & std::byte{128}) != std::byte{0}) ++at;
    ++at;
  }
  return std::min(at, m.size());
}

bool Parts::split(ConstBytes m, Parts& parts) {
  if (m.size() < kHeaderBytes) return false;
  parts.header.assign(m.begin(), m.begin() + kHeaderBytes);
  const std::size_t fit = (m.size() - kHeaderBytes) / kRecordBytes;
  const std::size_t layers =
      std::min<std::size_t>({load<std::uint32_t>(m, kLayersAt), fit, 4 * kMostParts});
  for (std::size_t i = 0; i < layers; ++i)
    parts.rows.push_back(LayerRecord::of(load<std::uint64_t>(m, kHeaderBytes + kRecordBytes * i)));
  std::size_t at = kHeaderBytes + kRecordBytes * layers;
  for (std::size_t i = load<std::uint16_t>(m, kKindsAt); i > 0 && at < m.size(); --i) {
    const std::size_t bytes = kind_bytes(m.subspan(at));
    parts.kinds.emplace_back(m.begin() + static_cast<std::ptrdiff_t>(at),
                             m.begin() + static_cast<std::ptrdiff_t>(at + bytes));
    at += bytes;
  }
  if ((m[kNamesFlagAt] & std::byte{1}) != std::byte{0}) {
    for (std::size_t i = 0; i < layers && at + 2 <= m.size(); ++i) {
      const std::size_t bytes =
          std::min<std::size_t>(load<std::uint16_t>(m, at), m.size() - at - 2);
      const auto name = m.subspan(at + 2, bytes);
      parts.names.emplace_back(name.begin(), name.end());
      at += 2 + bytes;
    }
  }
  at = format::padded(at);
  for (const LayerRecord& row : parts.rows) {
    const ConstBytes left = m.subspan(std::min(at, m.size()));
    const bool is_last = parts.bodies.size() + 1 == layers;
    const std::size_t room = std::min<std::size_t>(row.bytes, left.size());
    // The last body takes what is there, but for less than a word of padding.
    const std::size_t bytes =
        is_last && format::padded(row.bytes) != left.size() ? left.size() : room;
    parts.bodies.emplace_back(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(bytes));
    at += format::padded(bytes);
  }
  return true;
}

Buffer Parts::join(std::size_t& head_bytes) const {
  Buffer m = header;
  const auto layers = static_cast<std::uint32_t>(rows.size());
  const auto count = static_cast<std::uint16_t>(kinds.size());
  std::memcpy(m.data() + kLayersAt, &layers, sizeof layers);
  std::memcpy(m.data() + kKindsAt, &count, sizeof count);
  for (std::size_t i = 0; i < rows.size(); ++i)
    append(m, LayerRecord{rows[i].kind, rows[i].flags, bodies[i].size()}.word());
  for (const Buffer& kind : kinds) append_bytes(m, kind);
  for (const Buffer& name : names) {
    append(m, static_cast<std::uint16_t>(name.size()));
    append_bytes(m, name);
  }
  m.resize(format::padded(m.size()));
  head_bytes = m.size();
  for (const Buffer& body : bodies) {
    append_bytes(m, body);
    m.resize(format::padded(m.size()));
  }
  format::write_total(m.data(), m.size());
  format::write_checksums(m, head_bytes);
  return m;
}

std::size_t skipped(const LayerRecord& row, const Buffer& body) {
  return (row.flags & LayerRecord::kOwnPrice) != 0 ? std::min(body.size(), format::kPriceBytes) : 0;
}

/// Puts the body behind the stage.
void pack(LayerRecord& row, Buffer& body) {
  const std::size_t skip = skipped(row, body);
  const codec::BloscOptions options{.codec = "zstd", .level = 9, .shuffle = "byte"};
  Buffer frame(body.size());
  frame.resize(codec::pack_body(options, {}, ConstBytes(body).subspan(skip), frame));
  if (frame.empty()) return;
  body.resize(skip);
  append_bytes(body, frame);
  row.flags |= LayerRecord::kLossless;
}

/// Takes it out, where what it unpacks to is not large.
void unpack(LayerRecord& row, Buffer& body) {
  constexpr std::size_t kLargest = 1 << 16;
  const std::size_t skip = skipped(row, body);
  const ConstBytes frame = ConstBytes(body).subspan(skip);
  const std::uint64_t raw = codec::frame_raw_bytes(frame);
  if (raw == 0 || raw > kLargest) return;
  Buffer proper(raw);
  std::size_t bytes = 0;
  if (failed(codec::unpack_frame({}, frame, proper, bytes))) return;
  body.resize(skip);
  append_bytes(body, ConstBytes(proper).first(bytes));
  row.flags &= static_cast<std::uint8_t>(~LayerRecord::kLossless);
}

void mutate_body(Parts& parts, std::size_t most, const AnyMutation& any, Draw& draw) {
  const std::size_t i = draw() % parts.bodies.size();
  LayerRecord& row = parts.rows[i];
  Buffer& body = parts.bodies[i];
  const bool packed = (row.flags & LayerRecord::kLossless) != 0;
  if (packed && draw() % 4 != 0) unpack(row, body);
  if (draw() % 4 == 0) {  // the front alone, where the lengths are
    const std::size_t front = std::min<std::size_t>(body.size(), 8 + draw() % 56);
    Buffer head(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(front));
    any(head, front + 8);
    body.erase(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(front));
    body.insert(body.begin(), head.begin(), head.end());
  } else {
    any(body, most);
  }
  if (packed || draw() % 16 == 0) pack(row, body);
}

/// Another method, dtype, parameters, rank or dimensions.
void mutate_kind(Buffer& kind, const AnyMutation& any, Draw& draw) {
  constexpr std::size_t kMostBytes = 7 + 8 * 9;
  if (kind.size() < 8 || draw() % 4 == 0) return any(kind, kMostBytes);
  const std::size_t at = draw() % 2 == 0 ? draw() % 6 : 7 + draw() % (kind.size() - 7);
  const bool small = at < 2 || draw() % 2 == 0;
  kind[at] = static_cast<std::byte>(small ? draw() % 16 : draw());
}

/// A price of the header, or a layer's own.
void mutate_price(Parts& parts, std::size_t layer, Draw& draw) {
  constexpr std::uint32_t kPrices[] = {0,          0x80000000, 0x00010000, 0x00800000,
                                       0x3F800000, 0xBF800000, 0x7F7F0000, 0x7F800000,
                                       0x7FC00000, 0x3F80FFFF, 0x2F800000, 0x5F800000};
  const std::uint32_t price =
      draw() % 4 == 0 ? static_cast<std::uint32_t>(draw()) : kPrices[draw() % std::size(kPrices)];
  Buffer& body = parts.bodies[layer];
  if (skipped(parts.rows[layer], body) == sizeof price) {
    std::memcpy(body.data(), &price, sizeof price);
  } else {
    std::memcpy(parts.header.data() + kPriceAt + sizeof price * (draw() % 2), &price, sizeof price);
  }
}

void mutate_parts(Parts& parts, std::size_t most, const AnyMutation& any, Draw& draw) {
  const std::size_t layers = parts.rows.size(), i = layers == 0 ? 0 : draw() % layers;
  const std::uint64_t what = draw() % 16;
  if (layers == 0 || what == 0) {
    any(parts.header, kHeaderBytes);
  } else if (what == 1) {
    parts.rows[i].flags ^= static_cast<std::uint8_t>(1u << draw() % 7);
  } else if (what == 2) {
    if (Buffer* kind = parts.kind_of(i); kind != nullptr) mutate_kind(*kind, any, draw);
  } else if (what == 3 && layers < kMostParts) {  // a layer twice, or no longer
    if (layers > 1 && draw() % 2 == 0) {
      parts.rows.erase(parts.rows.begin() + static_cast<std::ptrdiff_t>(i));
      parts.bodies.erase(parts.bodies.begin() + static_cast<std::ptrdiff_t>(i));
      if (i < parts.names.size())
        parts.names.erase(parts.names.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      parts.rows.push_back(parts.rows[i]);
      parts.bodies.push_back(parts.bodies[i]);
      if (!parts.names.empty()) parts.names.push_back(parts.names.back());
    }
  } else if (what == 4) {
    if (!parts.names.empty()) any(parts.names[draw() % parts.names.size()], 64);
  } else if (what == 5) {
    mutate_price(parts, i, draw);
  } else if (what == 6) {
    if ((parts.rows[i].flags & LayerRecord::kLossless) != 0) {
      unpack(parts.rows[i], parts.bodies[i]);
    } else {
      pack(parts.rows[i], parts.bodies[i]);
    }
  } else {
    mutate_body(parts, most, any, draw);
  }
  parts.header.resize(kHeaderBytes);
}

}  // namespace

bool mend_container(Buffer& message) {
  Parts parts;
  if (!Parts::split(message, parts)) return false;
  std::size_t head_bytes = 0;
  message = parts.join(head_bytes);
  return true;
}

void mutate_container(Buffer& message, std::size_t most, const AnyMutation& any, Draw& draw) {
  if (draw() % 16 == 0) {
    any(message, most);
    if (draw() % 4 != 0) mend_container(message);
    return;
  }
  Parts parts;
  if (!Parts::split(message, parts)) return any(message, most);
  mutate_parts(parts, most, any, draw);
  std::size_t head_bytes = 0;
  Buffer joined = parts.join(head_bytes);
  if (draw() % 16 == 0) {  // what `join` has just mended
    joined[draw() % head_bytes] = static_cast<std::byte>(draw());
    format::write_checksums(joined, head_bytes);
  }
  if (joined.size() <= most) message = std::move(joined);
}

}  // namespace atomo::fuzz
