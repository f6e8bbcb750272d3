// SPDX-License-Identifier: Apache-2.0
/// identity: the entries as they are, or stochastically rounded to half (purpose `identity`, word i
/// mod 4 of index i/4).
///
/// Body: n entries of the wire's dtype, little-endian. Params: the wire's dtype.

#include <cstring>
#include <limits>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "core/half.hpp"
#include "core/halves.hpp"
#include "core/run_tasks.hpp"

namespace atomo::codec {
namespace {

DType wire_dtype(const Kind& kind) noexcept { return static_cast<DType>(kind.params); }

class Identity final : public BodyEncoder {
 public:
  explicit Identity(DType wire) : wire_(wire) {}

  std::string to_string() const override { return "identity:dtype=" + std::string(name_of(wire_)); }
  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.unbiased = true;
    t.bias_bound = wire_ == DType::f16 ? 0x1p-57 : 0;
    t.linear = wire_ == DType::f32;
    t.averages_over_workers = true;
    t.fixed_size = true;
    // bf16 keeps 8 significant bits: |error| <= 2^-7 |x|, and the variance of a rounding is at most
    // a quarter of its square. f16 is coarser below 2^-14, where no relative bound holds.
    if (wire_ == DType::f32) t.omega = 0;
    if (wire_ == DType::bf16) t.omega = 0x1p-16;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::identity, dtype, static_cast<std::uint32_t>(wire_), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return shape.elements() * size_of(wire_);
  }

  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    result.bytes = in.layer.n * size_of(wire_);
    if (wire_ != DType::f32)
      return round_to_half(in.layer.x, in.layer.n, in.layer.key, Purpose::identity, wire_,
                           body.data(), in.layer.executor);
    std::memcpy(body.data(), in.layer.x, result.bytes);
    return Status::ok;
  }

 private:
  DType wire_;
};

std::string describe(const Kind& kind) {
  return "identity:dtype=" + std::string(name_of(wire_dtype(kind)));
}
std::size_t max_bytes(const Kind& kind) noexcept {
  return kind.shape.elements() * size_of(wire_dtype(kind));
}
std::size_t workspace(const Kind&) noexcept { return 0; }

float entry(const std::byte* body, DType wire, std::size_t i) noexcept {
  if (wire == DType::f32) {
    float v;
    std::memcpy(&v, body + 4 * i, 4);
    return v;
  }
  std::uint16_t h;
  std::memcpy(&h, body + 2 * i, 2);
  return wire == DType::f16 ? from_f16(h) : from_bf16(h);
}

Status decode(const LayerOutput& out) noexcept {
  const DType wire = wire_dtype(*out.kind);
  if (out.body.size() != max_bytes(*out.kind)) return Status::corrupt;
  run_ranges(out.executor, out.n, 65536, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float v = entry(out.body.data(), wire, i);
      out.y[i] = out.add ? out.y[i] + (out.alpha * v) : v;
    }
  });
  return Status::ok;
}

}  // namespace

const BodyDecoder decoders::identity{describe, max_bytes, workspace, decode, count_no_atoms};

std::shared_ptr<const BodyEncoder> make_identity(SpecArgs& args) {
  return std::make_shared<Identity>(
      static_cast<DType>(args.choice("dtype", {"f32", "f16", "bf16"}, 0)));
}

}  // namespace atomo::codec
