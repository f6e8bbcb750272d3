// SPDX-License-Identifier: Apache-2.0
#include "head.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <string>

#include "atomo/version.hpp"

namespace atomo::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

constexpr char kMagic[4] = {'A', 'T', 'M', 'O'};
constexpr std::size_t kChecksumBlock = 4096;

template <typename T>
T load(const std::byte* p) noexcept {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* p, T value) noexcept {
  std::memcpy(p, &value, sizeof value);
}

/// Base-128, least significant group first, in the shortest form.
bool read_varint(ConstBytes in, std::size_t& at, std::uint64_t& value) noexcept {
  value = 0;
  for (int shift = 0; shift < 63; shift += 7) {
    if (at >= in.size()) return false;
    const auto byte = static_cast<std::uint64_t>(in[at++]);
    value |= (byte & 127) << shift;
    if (byte < 128) return byte != 0 || shift == 0;
  }
  return false;
}

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

/// Moves `at` past one kind; fills `dims` and `rank`.
bool read_kind(ConstBytes in, std::size_t& at, Kind& kind,
               std::array<std::int64_t, Shape::kMaxRank>& dims, int& rank) noexcept {
  if (in.size() - at < 7) return false;
  kind.method = static_cast<MethodId>(in[at]);
  kind.dtype = static_cast<DType>(in[at + 1]);
  kind.params = load<std::uint32_t>(in.data() + at + 2);
  rank = static_cast<int>(in[at + 6]);
  at += 7;
  if (static_cast<int>(kind.dtype) > 2 || rank > Shape::kMaxRank) return false;
  std::uint64_t elements = 1;
  bool empty = false;
  for (int i = 0; i < rank; ++i) {
    std::uint64_t d = 0;
    if (!read_varint(in, at, d) || d > (std::uint64_t{1} << 62)) return false;
    dims[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(d);
    empty = empty || d == 0;
    if (!empty && d > Shape::kMaxElements / elements)
      elements = Shape::kMaxElements + 1;
    else if (!empty)
      elements *= d;
  }
  return empty || elements <= Shape::kMaxElements;
}

std::uint64_t head_checksum(ConstBytes message, std::size_t head_bytes) noexcept {
  const std::uint64_t seed = XXH3_64bits(message.data(), kHeaderBytes - 8);
  return XXH3_64bits_withSeed(message.data() + kHeaderBytes, head_bytes - kHeaderBytes, seed);
}

/// Order-free: a sum over blocks, so that blocks can be hashed side by side.
std::uint64_t body_checksum(ConstBytes body) noexcept {
  std::uint64_t sum = 0;
  const std::size_t whole = body.size() / kChecksumBlock;
  for (std::size_t i = 0; i < whole; ++i) {
    sum += XXH3_64bits_withSeed(body.data() + i * kChecksumBlock, kChecksumBlock, i);
  }
  if (const std::size_t rest = body.size() % kChecksumBlock; rest > 0) {
    std::byte last[kChecksumBlock] = {};
    std::memcpy(last, body.data() + whole * kChecksumBlock, rest);
    sum += XXH3_64bits_withSeed(last, kChecksumBlock, whole);
  }
  return sum;
}

Header read_header(ConstBytes m) noexcept {
  Header h;
  h.major = static_cast<int>(m[4]);
  h.minor = static_cast<int>(m[5]);
  h.flags = load<std::uint16_t>(&m[6]);
  h.total_bytes = load<std::uint64_t>(&m[8]);
  h.key.seed = load<std::uint64_t>(&m[16]);
  h.key.step = load<std::uint32_t>(&m[24]);
  h.key.tensor = load<std::uint16_t>(&m[28]);
  h.key.worker = load<std::uint16_t>(&m[30]);
  h.key.channel = load<std::uint16_t>(&m[32]);
  h.kinds = load<std::uint16_t>(&m[34]);
  h.layers = load<std::uint32_t>(&m[36]);
  h.price = load<float>(&m[40]);
  h.grid_step = load<float>(&m[44]);
  h.body_checksum = load<std::uint64_t>(&m[48]);
  return h;
}

bool is_price(float p) noexcept { return p >= 0 && p <= 3.4028234663852886e38f; }

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
  const std::size_t used = kHeaderBytes + kRowBytes * layers.size() + tables_.size();
  bytes_ = padded(used);
  tables_.resize(tables_.size() + bytes_ - used);
}

void HeadLayout::write_tables(std::byte* message) const noexcept {
  if (tables_.empty()) return;
  std::memcpy(message + kHeaderBytes + kRowBytes * layers(), tables_.data(), tables_.size());
}

void HeadLayout::seal(std::byte* message, const Key& key, float price, float grid_step,
                      std::uint64_t total) const noexcept {
  const auto count = static_cast<std::uint32_t>(layers());
  write_header(message, {kFormatMajor, kFormatMinor, flags_, total, key, kinds_, count, price,
                         grid_step, 0});
  write_checksums({message, static_cast<std::size_t>(total)}, bytes_);
}

std::size_t one_layer_head_bytes(const Kind& kind) noexcept {
  return static_cast<std::size_t>(
      padded(kHeaderBytes + kRowBytes + KindBytes(kind).bytes().size()));
}

std::size_t one_layer_tables(const Kind& kind, OneLayerTables& tables) noexcept {
  tables = {};
  const KindBytes bytes(kind);
  std::copy(bytes.bytes().begin(), bytes.bytes().end(), tables.begin());
  return one_layer_head_bytes(kind) - kHeaderBytes - kRowBytes;
}

void write_one_layer_head(std::byte* message, const Kind& kind, const Row& row, const Key& key,
                          float price, float grid_step) noexcept {
  const KindBytes bytes(kind);
  const std::size_t head = one_layer_head_bytes(kind), at = kHeaderBytes + kRowBytes;
  std::memset(message, 0, head);
  write_row(message, 0, row);
  std::memcpy(message + at, bytes.bytes().data(), bytes.bytes().size());
  const auto total = static_cast<std::size_t>(head + padded(row.bytes));
  write_header(message, {kFormatMajor, kFormatMinor, 0, total, key, 1, 1, price, grid_step, 0});
  write_checksums({message, total}, head);
}

void write_row(std::byte* message, std::size_t layer, const Row& row) noexcept {
  store(message + kHeaderBytes + kRowBytes * layer,
        std::uint64_t{row.kind} | (std::uint64_t{row.flags} << 16) | (row.bytes << 24));
}

void write_header(std::byte* m, const Header& h) noexcept {
  std::memcpy(m, kMagic, 4);
  store(m + 4, static_cast<std::uint8_t>(h.major));
  store(m + 5, static_cast<std::uint8_t>(h.minor));
  store(m + 6, h.flags);
  store(m + 8, h.total_bytes);
  store(m + 16, h.key.seed);
  store(m + 24, h.key.step);
  store(m + 28, h.key.tensor);
  store(m + 30, h.key.worker);
  store(m + 32, h.key.channel);
  store(m + 34, static_cast<std::uint16_t>(h.kinds));
  store(m + 36, h.layers);
  store(m + 40, h.price);
  store(m + 44, h.grid_step);
}

void write_checksums(Bytes message, std::size_t head_bytes) noexcept {
  store(message.data() + 48, body_checksum(message.subspan(head_bytes)));
  store(message.data() + 56, head_checksum(message, head_bytes));
}

Row Head::row(std::size_t layer) const noexcept {
  const auto word = load<std::uint64_t>(message_.data() + kHeaderBytes + kRowBytes * layer);
  return {static_cast<std::uint16_t>(word), static_cast<std::uint8_t>(word >> 16), word >> 24};
}

Status Head::parse(ConstBytes message, bool exact, Head& head) noexcept {
  const std::size_t prefix = std::min<std::size_t>(message.size(), 4);
  if (prefix > 0 && std::memcmp(message.data(), kMagic, prefix) != 0) return Status::bad_magic;
  if (message.size() < kHeaderBytes) return Status::truncated;
  const Header h = read_header(message);
  if (h.major != kFormatMajor || (h.flags & ~kFlagNames) != 0) return Status::bad_version;
  if (h.total_bytes > message.size()) return Status::truncated;
  if (h.total_bytes < kHeaderBytes || (exact && h.total_bytes != message.size()))
    return Status::corrupt;
  message = message.first(static_cast<std::size_t>(h.total_bytes));
  if (h.layers + std::size_t{h.key.tensor} > kMaxLayers) return Status::corrupt;

  std::size_t at = kHeaderBytes + kRowBytes * std::size_t{h.layers};
  if (at > message.size()) return Status::corrupt;
  const std::size_t kinds_at = at;
  Kind kind;
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  int rank = 0;
  for (std::uint32_t i = 0; i < h.kinds; ++i) {
    if (!read_kind(message, at, kind, dims, rank)) return Status::corrupt;
  }
  const std::size_t names_at = at;
  for (std::uint32_t i = 0; (h.flags & kFlagNames) != 0 && i < h.layers; ++i) {
    if (message.size() - at < 2) return Status::corrupt;
    const std::size_t length = load<std::uint16_t>(message.data() + at);
    if (message.size() - at - 2 < length) return Status::corrupt;
    at += 2 + length;
  }
  const std::size_t head_bytes = padded(at);
  if (head_bytes > message.size() || !all_zero(message.subspan(at, head_bytes - at)))
    return Status::corrupt;
  if (load<std::uint64_t>(&message[56]) != head_checksum(message, head_bytes))
    return Status::bad_checksum;
  if (!is_price(h.price) || !is_price(h.grid_step)) return Status::corrupt;

  head.message_ = message;
  head.header_ = h;
  head.head_bytes_ = head_bytes;
  head.kinds_ = message.subspan(kinds_at, names_at - kinds_at);
  head.names_ = message.subspan(names_at, at - names_at);
  std::size_t body_at = head_bytes;
  std::uint32_t used_kinds = 0;
  bool padding_is_zero = true;
  for (std::uint32_t i = 0; i < h.layers; ++i) {
    const Row row = head.row(i);
    if (row.kind > used_kinds || (row.flags & ~Row::kAllFlags) != 0) return Status::corrupt;
    used_kinds = std::max(used_kinds, row.kind + 1u);
    if (message.size() - body_at < padded(row.bytes)) return Status::corrupt;
    const auto used = static_cast<std::size_t>(row.bytes);
    const auto whole = static_cast<std::size_t>(padded(row.bytes));
    padding_is_zero = padding_is_zero && all_zero(message.subspan(body_at + used, whole - used));
    body_at += whole;
  }
  if (body_at != message.size() || used_kinds != h.kinds) return Status::corrupt;
  if (body_checksum(message.subspan(head_bytes)) != h.body_checksum) return Status::bad_checksum;
  return padding_is_zero ? Status::ok : Status::corrupt;
}

Status LayerCursor::seek_kind(std::uint32_t wanted) noexcept {
  if (wanted + 1 == kind_next_) return Status::ok;
  if (wanted < kind_next_) {
    // From the nearest milestone before it: a walk is short, whatever the order of the rows.
    const std::uint32_t milestone = wanted / kMilestone;
    kind_next_ = milestone * kMilestone;
    kind_at_ = milestones_[milestone];
  }
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  int rank = 0;
  while (kind_next_ <= wanted) {
    if (kind_next_ % kMilestone == 0) {
      milestones_[kind_next_ / kMilestone] = static_cast<std::uint32_t>(kind_at_);
    }
    if (!read_kind(head_->kinds(), kind_at_, kind, dims, rank)) return Status::corrupt;
    ++kind_next_;
  }
  // The dimensions were checked by read_kind, so this cannot throw.
  kind.shape = Shape(std::span(dims.data(), static_cast<std::size_t>(rank)));
  const BodyDecoder* decoder = find_decoder(kind.method);
  return decoder != nullptr && decoder->valid(kind) ? Status::ok : Status::corrupt;
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
    const std::size_t length = load<std::uint16_t>(names_.data());
    name = {reinterpret_cast<const char*>(names_.data()) + 2, length};
    names_ = names_.subspan(2 + length);
  }
  return true;
}

}  // namespace atomo::detail
