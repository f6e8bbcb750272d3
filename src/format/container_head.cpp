// SPDX-License-Identifier: Apache-2.0
/// Lays out, writes and parses heads: header, rows, kinds, names and both checksums. The parser
/// takes any bytes at all.
#include "format/container_head.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <string>

namespace atomo::format {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

/// A kind as it stands in the table: method, dtype, u32 params, rank, dimensions.
class KindBytes {
 public:
  explicit KindBytes(const Kind& kind) noexcept {
    put(static_cast<std::uint8_t>(kind.method));
    put(static_cast<std::uint8_t>(kind.dtype));
    for (int i = 0; i < 4; ++i) put(static_cast<std::uint8_t>(kind.params >> (8 * i)));
    put(static_cast<std::uint8_t>(kind.shape.rank()));
    for (const auto d : kind.shape.dims()) put_varint(static_cast<std::uint64_t>(d));
  }
  [[nodiscard]] ConstBytes bytes() const noexcept { return {bytes_.data(), used_}; }

 private:
  void put(std::uint8_t byte) noexcept { bytes_[used_++] = static_cast<std::byte>(byte); }
  void put_varint(std::uint64_t value) noexcept {
    for (; value >= 128; value >>= 7) put(static_cast<std::uint8_t>((value & 127) | 128));
    put(static_cast<std::uint8_t>(value));
  }
  std::array<std::byte, 7 + Shape::kMaxRank * 9> bytes_{};
  std::size_t used_ = 0;
};

std::uint64_t head_checksum(ConstBytes message, std::size_t head_bytes) noexcept {
  const std::uint64_t seed = XXH3_64bits(message.data(), kHeadChecksumAt);
  return XXH3_64bits_withSeed(message.data() + kHeaderBytes, head_bytes - kHeaderBytes, seed);
}

bool all_zero(ConstBytes bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

HeadLayout::HeadLayout(std::span<const Kind> layers, std::span<const std::string> names) {
  std::map<std::string, std::size_t> numbers;  // by the bytes of the kind
  for (const auto& kind : layers) {
    const KindBytes kind_bytes(kind);
    const ConstBytes bytes = kind_bytes.bytes();
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const auto [it, is_first] = numbers.try_emplace(text, numbers.size());
    if (is_first) tables_.insert(tables_.end(), bytes.begin(), bytes.end());
    kind_of_.push_back(static_cast<std::uint16_t>(it->second));
  }
  if (numbers.size() > 65535) {
    throw Error("a model of " + std::to_string(numbers.size()) +
                " kinds of layers (codec, dtype, shape): at most 65535 are supported");
  }
  kinds_ = static_cast<std::uint32_t>(numbers.size());
  if (!names.empty()) {
    flags_ |= kFlagNames;
    for (const auto& name : names) {
      if (name.size() > 65535)
        throw Error("a layer's name of " + std::to_string(name.size()) + " bytes: at most 65535");
      tables_.push_back(static_cast<std::byte>(name.size()));
      tables_.push_back(static_cast<std::byte>(name.size() >> 8));
      for (const char c : name) tables_.push_back(static_cast<std::byte>(c));
    }
  }
  const std::size_t used = kHeaderBytes + kRecordBytes * layers.size() + tables_.size();
  bytes_ = padded(used);
  tables_.resize(tables_.size() + bytes_ - used);
}

void check_layer_name(std::size_t layer, const std::string& name) {
  const std::size_t good = utf8_prefix(std::as_bytes(std::span(name)));
  if (good == name.size()) return;
  throw Error("the name of layer " + std::to_string(layer) + ", '" + shown(name) +
              "', is not UTF-8 from byte " + std::to_string(good) + " on: names must be");
}

void HeadLayout::write_tables(std::byte* message) const noexcept {
  if (tables_.empty()) return;
  std::memcpy(message + kHeaderBytes + kRecordBytes * layers(), tables_.data(), tables_.size());
}

void HeadLayout::seal(std::byte* message, const Key& key, float price, float grid_step,
                      std::uint64_t total, Executor* executor) const noexcept {
  const auto count = static_cast<std::uint32_t>(layers());
  store_header(message, {kFormatMajor, kFormatMinor, flags_, total, key, kinds_, count, price,
                         grid_step, 0});
  write_checksums({message, static_cast<std::size_t>(total)}, bytes_, {}, executor);
}

std::size_t one_layer_head_bytes(const Kind& kind) noexcept {
  return static_cast<std::size_t>(
      padded(kHeaderBytes + kRecordBytes + KindBytes(kind).bytes().size()));
}

std::size_t one_layer_tables(const Kind& kind, OneLayerTables& tables) noexcept {
  tables = {};
  const KindBytes bytes(kind);
  std::copy(bytes.bytes().begin(), bytes.bytes().end(), tables.begin());
  return one_layer_head_bytes(kind) - kHeaderBytes - kRecordBytes;
}

void write_one_layer_head(std::byte* message, const Kind& kind, const LayerRecord& row,
                          const Key& key, float price, float grid_step, const HashedBlocks& hashed,
                          Executor* executor) noexcept {
  const KindBytes bytes(kind);
  const std::size_t head = one_layer_head_bytes(kind), at = kHeaderBytes + kRecordBytes;
  std::memset(message, 0, head);
  write_record(message, 0, row);
  std::memcpy(message + at, bytes.bytes().data(), bytes.bytes().size());
  const auto total = static_cast<std::size_t>(head + padded(row.bytes));
  store_header(message, {kFormatMajor, kFormatMinor, 0, total, key, 1, 1, price, grid_step, 0});
  write_checksums({message, total}, head, hashed, executor);
}

void write_record(std::byte* message, std::size_t layer, const LayerRecord& row) noexcept {
  store_le(message + kHeaderBytes + kRecordBytes * layer, row.word());
}

void write_total(std::byte* message, std::uint64_t total) noexcept {
  store_le(message + kTotalAt, total);
}

void write_checksums(Bytes message, std::size_t head_bytes, const HashedBlocks& hashed,
                     Executor* executor) noexcept {
  store_le(message.data() + kBodyChecksumAt,
           body_checksum(message.subspan(head_bytes), hashed, executor));
  store_le(message.data() + kHeadChecksumAt, head_checksum(message, head_bytes));
}

LayerRecord Head::row(std::size_t layer) const noexcept {
  return read_record(message_.data(), layer);
}

bool Head::has_layers_of(const Head& other) const noexcept {
  if (layers() != other.layers() || !std::ranges::equal(kinds_, other.kinds_)) return false;
  for (std::size_t i = 0; i < layers(); ++i) {
    if (row(i).kind != other.row(i).kind) return false;
  }
  return true;
}

Status Head::parse(ConstBytes message, bool exact, Head& head, Executor* executor) noexcept {
  Header h;
  if (const Status s = check_header(message, h); failed(s)) return s;
  if (exact && h.total_bytes != message.size()) return Status::corrupt;
  message = message.first(static_cast<std::size_t>(h.total_bytes));
  TablePlaces places;
  const auto no_one = [](std::uint32_t, std::size_t) {};
  if (const Status s = walk_tables(message, h, places, no_one); failed(s)) return s;
  if (load_le<std::uint64_t>(&message[kHeadChecksumAt]) !=
      head_checksum(message, places.head_bytes))
    return Status::bad_checksum;
  if (!is_price(h.price) || !is_price(h.grid_step)) return Status::corrupt;

  head.message_ = message;
  head.header_ = h;
  head.head_bytes_ = places.head_bytes;
  head.kinds_ = message.subspan(places.kinds, places.names - places.kinds);
  head.names_ = message.subspan(places.names, places.end - places.names);
  std::size_t body_at = places.head_bytes;
  std::uint32_t used_kinds = 0;
  bool padding_is_zero = true;
  for (std::uint32_t i = 0; i < h.layers; ++i) {
    const LayerRecord row = head.row(i);
    if (!follows(row.kind, used_kinds) || (row.flags & ~LayerRecord::kAllFlags) != 0)
      return Status::corrupt;
    if (message.size() - body_at < padded(row.bytes)) return Status::corrupt;
    const auto used = static_cast<std::size_t>(row.bytes);
    const auto whole = static_cast<std::size_t>(padded(row.bytes));
    padding_is_zero = padding_is_zero && all_zero(message.subspan(body_at + used, whole - used));
    body_at += whole;
  }
  if (body_at != message.size() || used_kinds != h.kinds) return Status::corrupt;
  if (body_checksum(message.subspan(places.head_bytes), {}, executor) != h.body_checksum)
    return Status::bad_checksum;
  return padding_is_zero ? Status::ok : Status::corrupt;
}

Status LayerCursor::seek_kind(std::uint32_t wanted) noexcept {
  if (wanted + 1 == kind_next_) return Status::ok;
  // From the nearest milestone before it: a walk is short, whatever the order of the rows. Kinds
  // come in the order of their first use, so the cursor has passed that milestone.
  const std::uint32_t milestone = wanted / kMilestone;
  if (wanted < kind_next_ || milestone * kMilestone > kind_next_) {
    kind_next_ = milestone * kMilestone;
    kind_at_ = milestones_[milestone];
  }
  KindFields fields;
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  const auto keep = [&](int i, std::int64_t d) { dims[static_cast<std::size_t>(i)] = d; };
  while (kind_next_ <= wanted) {
    if (!read_kind(head_->kinds(), kind_at_, fields, keep)) return Status::corrupt;
    if (++kind_next_ % kMilestone == 0)
      milestones_[kind_next_ / kMilestone] = static_cast<std::uint32_t>(kind_at_);
  }
  // The dimensions were checked by read_kind, so this cannot throw.
  kind = {fields.method, fields.dtype, fields.params,
          Shape(std::span(dims.data(), static_cast<std::size_t>(fields.rank)))};
  return valid_kind(fields) ? Status::ok : Status::corrupt;
}

bool LayerCursor::next(Status& status) noexcept {
  if (next_layer_ == head_->layers()) return false;
  index = next_layer_++;
  row = head_->row(index);
  if (status = seek_kind(row.kind); failed(status)) return false;
  body = head_->message().subspan(body_at_, static_cast<std::size_t>(row.bytes));
  body_at_ += static_cast<std::size_t>(padded(row.bytes));
  key = head_->header().key;
  key.tensor = static_cast<std::uint16_t>(key.tensor + index);
  if (!names_.empty()) {
    const std::size_t length = load_le<std::uint16_t>(names_.data());
    name = {reinterpret_cast<const char*>(names_.data()) + 2, length};
    names_ = names_.subspan(2 + length);
  }
  return true;
}

}  // namespace atomo::format
