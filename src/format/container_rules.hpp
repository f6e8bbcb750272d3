// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The rules of a container's head (FORMAT.md, "Container"), for host and device: every function
/// takes any bytes at any address, reads nothing outside them and needs no memory.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "atomo/version.hpp"
#include "core/bits.hpp"
#include "core/host_device.hpp"
#include "core/utf8.hpp"
#include "format/kind.hpp"
#include "format/layer_record.hpp"

namespace atomo::format {

inline constexpr std::size_t kHeaderBytes = 64, kRecordBytes = 8;
inline constexpr std::uint16_t kFlagNames =
    1;  ///< must-understand: a table of names follows the kinds
inline constexpr std::uint64_t kMaxBodyBytes = (std::uint64_t{1} << 40) - 1;
inline constexpr std::size_t kMaxLayers = 65536;
/// Offsets of the header's last fields, in bytes.
inline constexpr std::size_t kTotalAt = 8, kBodyChecksumAt = 48, kHeadChecksumAt = 56;

struct Header {
  int major = 0, minor = 0;
  std::uint16_t flags = 0;
  std::uint64_t total_bytes = 0;
  Key key;
  std::uint32_t kinds = 0, layers = 0;
  float price = 0, grid_step = 0;
  std::uint64_t body_checksum = 0;
};

ATOMO_HD inline Header read_header(const std::byte* m) noexcept {
  Header h;
  h.major = static_cast<int>(m[4]);
  h.minor = static_cast<int>(m[5]);
  h.flags = load_le<std::uint16_t>(m + 6);
  h.total_bytes = load_le<std::uint64_t>(m + kTotalAt);
  h.key.seed = load_le<std::uint64_t>(m + 16);
  h.key.step = load_le<std::uint32_t>(m + 24);
  h.key.tensor = load_le<std::uint16_t>(m + 28);
  h.key.worker = load_le<std::uint16_t>(m + 30);
  h.key.channel = load_le<std::uint16_t>(m + 32);
  h.kinds = load_le<std::uint16_t>(m + 34);
  h.layers = load_le<std::uint32_t>(m + 36);
  h.price = load_le<float>(m + 40);
  h.grid_step = load_le<float>(m + 44);
  h.body_checksum = load_le<std::uint64_t>(m + kBodyChecksumAt);
  return h;
}

/// All but the head's checksum.
ATOMO_HD inline void store_header(std::byte* m, const Header& h) noexcept {
  constexpr std::uint32_t kMagicWord = 0x4F4D5441;  // ATMO
  store_le(m, kMagicWord);
  store_le(m + 4, static_cast<std::uint8_t>(h.major));
  store_le(m + 5, static_cast<std::uint8_t>(h.minor));
  store_le(m + 6, h.flags);
  store_le(m + kTotalAt, h.total_bytes);
  store_le(m + 16, h.key.seed);
  store_le(m + 24, h.key.step);
  store_le(m + 28, h.key.tensor);
  store_le(m + 30, h.key.worker);
  store_le(m + 32, h.key.channel);
  store_le(m + 34, static_cast<std::uint16_t>(h.kinds));
  store_le(m + 36, h.layers);
  store_le(m + 40, h.price);
  store_le(m + 44, h.grid_step);
  store_le(m + kBodyChecksumAt, h.body_checksum);
}

/// Reads the header and checks what its 64 bytes say by themselves.
ATOMO_HD inline Status check_header(ConstBytes message, Header& header) noexcept {
  constexpr char kMagic[4] = {'A', 'T', 'M', 'O'};
  for (std::size_t i = 0; i < 4 && i < message.size(); ++i) {
    if (message[i] != static_cast<std::byte>(kMagic[i])) return Status::bad_magic;
  }
  if (message.size() < kHeaderBytes) return Status::truncated;
  header = read_header(message.data());
  if (header.major != kFormatMajor || (header.flags & ~kFlagNames) != 0) return Status::bad_version;
  if (header.total_bytes > message.size()) return Status::truncated;
  if (header.total_bytes < kHeaderBytes ||
      header.layers + std::uint64_t{header.key.tensor} > kMaxLayers) {
    return Status::corrupt;
  }
  return Status::ok;
}

/// A price of the header.
[[nodiscard]] constexpr bool is_price(float p) noexcept {
  return p >= 0 && p <= 3.4028234663852886e38f;
}

/// Base-128, least significant group first, in the shortest form.
ATOMO_HD inline bool read_varint(ConstBytes in, std::size_t& at, std::uint64_t& value) noexcept {
  value = 0;
  for (int shift = 0; shift < 63; shift += 7) {
    if (at >= in.size()) return false;
    const auto byte = static_cast<std::uint64_t>(in[at++]);
    value |= (byte & 127) << shift;
    if (byte < 128) return byte != 0 || shift == 0;
  }
  return false;
}

/// Moves `at` past one kind; calls `on_dim(i, d)` for its dimensions.
template <typename OnDim>
ATOMO_HD bool read_kind(ConstBytes in, std::size_t& at, KindFields& kind, OnDim on_dim) noexcept {
  if (in.size() - at < 7) return false;
  kind = {};
  kind.method = static_cast<MethodId>(in[at]);
  kind.dtype = static_cast<DType>(in[at + 1]);
  kind.params = load_le<std::uint32_t>(in.data() + at + 2);
  kind.rank = static_cast<int>(in[at + 6]);
  at += 7;
  if (static_cast<int>(kind.dtype) > 2 || kind.rank > Shape::kMaxRank) return false;
  bool empty = false;
  for (int i = 0; i < kind.rank; ++i) {
    std::uint64_t d = 0;
    if (!read_varint(in, at, d)) return false;
    if (d > static_cast<std::uint64_t>(Shape::kMaxDimension)) return false;
    if (i == 0) kind.dim0 = static_cast<std::int64_t>(d);
    on_dim(i, static_cast<std::int64_t>(d));
    empty = empty || d == 0;
    if (!empty && d > Shape::kMaxElements / kind.elements)
      kind.elements = Shape::kMaxElements + 1;
    else if (!empty)
      kind.elements *= d;
  }
  if (empty) kind.elements = 0;
  return kind.elements <= Shape::kMaxElements;
}

/// The places of the head's tables, in bytes from the message's start.
struct TablePlaces {
  std::size_t kinds = 0, names = 0, end = 0;  ///< the end of the names; padding follows
  std::size_t head_bytes = 0;
};

/// Walks what follows the rows; `message` has the header's length. `on_kind(number, at)` is called
/// where each kind starts.
template <typename OnKind>
ATOMO_HD Status walk_tables(ConstBytes message, const Header& header, TablePlaces& places,
                            OnKind on_kind) noexcept {
  std::size_t at = kHeaderBytes + kRecordBytes * std::size_t{header.layers};
  if (at > message.size()) return Status::corrupt;
  places.kinds = at;
  KindFields kind;
  for (std::uint32_t i = 0; i < header.kinds; ++i) {
    on_kind(i, at);
    if (!read_kind(message, at, kind, [](int, std::int64_t) {})) return Status::corrupt;
  }
  places.names = at;
  for (std::uint32_t i = 0; (header.flags & kFlagNames) != 0 && i < header.layers; ++i) {
    if (message.size() - at < 2) return Status::corrupt;
    const std::size_t length = load_le<std::uint16_t>(message.data() + at);
    if (message.size() - at - 2 < length) return Status::corrupt;
    if (utf8_prefix(message.subspan(at + 2, length)) != length) return Status::corrupt;
    at += 2 + length;
  }
  places.end = at;
  places.head_bytes = static_cast<std::size_t>(padded(at));
  if (places.head_bytes > message.size()) return Status::corrupt;
  for (; at < places.head_bytes; ++at) {
    if (message[at] != std::byte{0}) return Status::corrupt;
  }
  return Status::ok;
}

/// `message` reaches to the end of the rows.
ATOMO_HD inline LayerRecord read_record(const std::byte* message, std::size_t layer) noexcept {
  return LayerRecord::of(load_le<std::uint64_t>(message + kHeaderBytes + kRecordBytes * layer));
}

/// Kinds come in the order in which rows first use them: whether the next row may say `kind`, after
/// rows that used the first `used` kinds.
[[nodiscard]] constexpr bool follows(std::uint16_t kind, std::uint32_t& used) noexcept {
  if (kind > used) return false;
  used = std::max(used, kind + 1u);
  return true;
}

/// What a row says that its kind and shape (of n elements) must allow.
[[nodiscard]] constexpr Status check_record(const LayerRecord& row, MethodId method,
                                            std::uint64_t n) noexcept {
  if ((n == 0 || (row.flags & LayerRecord::kNonFinite) != 0) && row.bytes != 0)
    return Status::corrupt;
  // The other flags and the form are about a body.
  if (row.bytes == 0)
    return (row.flags & ~LayerRecord::kNonFinite) != 0 ? Status::corrupt : Status::ok;
  const RecordSays says = rules_of(method).row;
  constexpr std::uint8_t kOfAtoms = LayerRecord::kThinned | LayerRecord::kCentred;
  if (says == RecordSays::plain && (row.flags & kOfAtoms) != 0) return Status::corrupt;
  return row.form() != 0 && says != RecordSays::forms ? Status::corrupt : Status::ok;
}

/// The number of the header that a method's bodies follow from.
[[nodiscard]] constexpr float header_price(const Header& header, MethodId method) noexcept {
  return rules_of(method).price == HeaderPrice::grid_step ? header.grid_step : header.price;
}

/// A price in front of a body.
[[nodiscard]] constexpr bool is_own_price(float p) noexcept { return p > 0 && is_price(p); }

}  // namespace atomo::format
