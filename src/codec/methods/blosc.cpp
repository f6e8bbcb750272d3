// SPDX-License-Identifier: Apache-2.0
/// +blosc: a lossless last stage over a finished body, through c-blosc. A body that would not
/// shrink is stored as it is and its layer is not flagged lossless; so is one whose frame would not
/// pay for it (lossless_stage.hpp).
///
/// Body of a flagged layer:
///   the size of the body before compression, u64 little-endian, at least 1
///   for each piece of 2^30 bytes of it (the last may be shorter): a u32 little-endian size, then
///   so many bytes, a c-blosc 1 buffer that unpacks to the whole piece
/// and nothing after. The codec, level and shuffle stand in the c-blosc headers.
///
/// c-blosc takes heap memory in both directions, at most a few blocks, and a block is no longer
/// than its piece.

#include <blosc.h>

#include <algorithm>
#include <cstring>

#include "codec/lossless_stage.hpp"
#include "codec/method.hpp"
#include "core/bits.hpp"
#include "core/workspace.hpp"

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

/// Any method with c-blosc behind it; everything but the body is the inner method's.
class Blosc final : public Method {
 public:
  Blosc(std::shared_ptr<const Method> inner, BloscOptions options)
      : inner_(std::move(inner)), options_(std::move(options)) {}

  std::string to_string() const override {
    return inner_->to_string() + "+blosc:codec=" + options_.codec +
           ",level=" + std::to_string(options_.level) + ",shuffle=" + options_.shuffle;
  }
  Traits traits() const override {
    Traits t = inner_->traits();
    t.linear = t.fixed_size = t.capturable = t.cuda = false;
    t.allocates = true;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override { return inner_->kind(shape, dtype); }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return inner_->max_body_bytes(shape);
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    Carver carver;
    carver.take_bytes(inner_->scratch_bytes(shape));
    carver.take_bytes(inner_->max_body_bytes(shape));
    return carver.bytes();
  }

  bool lossless() const noexcept override { return true; }
  std::shared_ptr<const Method> without_lossless() const noexcept override { return inner_; }
  std::size_t pack(const Kind& kind, ConstBytes body, Bytes out) const noexcept override {
    const std::size_t bytes = compress(body, options_, out);
    return bytes != 0 && pays_for_body(kind, body, bytes) ? bytes : 0;
  }
  Pool pool() const noexcept override { return inner_->pool(); }
  double budget_bits() const noexcept override { return inner_->budget_bits(); }
  double cap_bits() const noexcept override { return inner_->cap_bits(); }
  std::size_t least_limit_bytes(const Shape& shape) const override {
    return inner_->least_limit_bytes(shape);
  }
  ThinnedLayer thinned_layer(const Shape& shape, std::uint8_t form) const override {
    return inner_->thinned_layer(shape, form);
  }
  std::size_t demand_bytes(const Shape& shape) const override {
    return inner_->demand_bytes(shape);
  }
  std::size_t state_bytes(const Shape& shape) const override { return inner_->state_bytes(shape); }
  Status analyse(const LayerInput& in, Bytes demand, Bytes state,
                 Bytes scratch) const noexcept override {
    Carver carver(scratch);
    const Bytes inner_scratch = carver.take_bytes(inner_->scratch_bytes(*in.shape));
    return carver.fits() ? inner_->analyse(in, demand, state, inner_scratch)
                         : Status::workspace_too_small;
  }
  Expected expected(const Shape& shape, ConstBytes demand, float price) const noexcept override {
    return inner_->expected(shape, demand, price);
  }
  std::uint16_t lowest_price(const Shape& shape, ConstBytes demand) const noexcept override {
    return inner_->lowest_price(shape, demand);
  }
  float own_price(const Shape& shape, ConstBytes demand) const noexcept override {
    return inner_->own_price(shape, demand);
  }

  Status encode(const LayerInput& in, float price, Bytes demand, Bytes state, Bytes scratch,
                Bytes body, BodyResult& result) const noexcept override {
    Carver carver(scratch);
    const Bytes inner_scratch = carver.take_bytes(inner_->scratch_bytes(*in.shape));
    const Bytes raw = carver.take_bytes(inner_->max_body_bytes(*in.shape));
    if (!carver.fits()) return Status::workspace_too_small;
    const Status status = inner_->encode(in, price, demand, state, inner_scratch, raw, result);
    if (failed(status)) return status;
    const ConstBytes finished = raw.first(result.bytes);
    const std::size_t packed = pack(inner_->kind(*in.shape, DType::f32), finished, body);
    result.lossless = packed != 0;
    if (result.lossless) {
      result.bytes = packed;
    } else {
      if (body.size() < finished.size()) return Status::buffer_too_small;
      std::copy(finished.begin(), finished.end(), body.begin());
    }
    return status;
  }

 private:
  std::shared_ptr<const Method> inner_;
  BloscOptions options_;
};

}  // namespace

std::shared_ptr<const Method> make_blosc(std::shared_ptr<const Method> inner,
                                         BloscOptions options) {
  if (blosc_compname_to_compcode(options.codec.c_str()) < 0) {
    throw Error("blosc codec '" + options.codec + "' is not in this c-blosc, which has " +
                blosc_list_compressors());
  }
  return std::make_shared<Blosc>(std::move(inner), std::move(options));
}

std::uint64_t lossless_raw_bytes(ConstBytes body) noexcept {
  return body.size() < 8 ? 0 : load_le<std::uint64_t>(body.data());
}

Status blosc_unpack(ConstBytes body, Bytes out, std::size_t& bytes) noexcept {
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

}  // namespace atomo::codec
