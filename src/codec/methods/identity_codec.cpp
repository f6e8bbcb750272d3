// SPDX-License-Identifier: Apache-2.0
/// identity: the entries as they are, or stochastically rounded to half.
///
/// Body: n entries of the wire's dtype, little-endian. Params: the wire's dtype.

#include <cstring>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "core/run_tasks.hpp"
#include "cpu/checked_copy.hpp"
#include "cpu/halves.hpp"

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
    if (wire_ == DType::bf16) {
      t.omega = 0x1p-16;
      t.smallest = 0x1p-126;
      t.highest = 0x1.FEp127;
    }
    if (wire_ == DType::f16) {
      t.step = 0x1p-24;
      t.highest = 65504;
    }
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::identity, dtype, static_cast<std::uint32_t>(wire_), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return shape.elements() * size_of(wire_);
  }

  bool finds_non_finite() const noexcept override { return true; }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    result.bytes = in.layer.n * size_of(wire_);
    if (wire_ != DType::f32) {
      const RoundedHalves found =
          round_to_half(in.layer.x, in.layer.n, in.layer.key, kIdentityDraws, wire_, body.data(),
                        in.layer.executor);
      return found.non_finite ? Status::non_finite : found.status();
    }
    const bool finite = copy_checked(in.layer.x, in.layer.n, body.data(),
                                     in.first ? &result.hashed : nullptr, in.layer.executor);
    return finite ? Status::ok : Status::non_finite;
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

/// Entries of a task that copies.
constexpr std::size_t kGrain = std::size_t{1} << 20;

Status copy(const LayerOutput& out, const LayerBody& body) noexcept {
  const DType wire = wire_dtype(*out.kind);
  const std::byte* const from = body.bytes.data();
  if (body.bytes.size() != max_bytes(*out.kind)) return Status::corrupt;
  if (wire != DType::f32) {
    widen_halves(from, wire, out.n, out.y, out.executor);
    return Status::ok;
  }
  // One copy where there is one thread: a long one goes past the caches.
  run_ranges(out.executor, out.n, out.executor == nullptr ? out.n : kGrain,
             [&](std::size_t begin, std::size_t end) {
               std::memcpy(out.y + begin, from + 4 * begin, 4 * (end - begin));
             });
  return Status::ok;
}

void add(const LayerOutput& out) noexcept {
  const DType wire = wire_dtype(*out.kind);
  add_bodies<const std::byte*>(
      out.bodies, out.n, out.executor,
      [&](const LayerBody& body, const std::byte*& from) {
        from = body.bytes.data();
        return body.bytes.size() == max_bytes(*out.kind) ? Status::ok : Status::corrupt;
      },
      [&](const std::byte* from, std::size_t begin, std::size_t end) {
        if (wire != DType::f32) {
          add_halves(from + 2 * begin, wire, end - begin, out.alpha, out.y + begin, nullptr);
          return;
        }
        for (std::size_t i = begin; i < end; ++i) {
          float v;
          std::memcpy(&v, from + 4 * i, 4);
          out.y[i] = out.y[i] + (out.alpha * v);
        }
      });
}

void decode(const LayerOutput& out) noexcept { out.add ? add(out) : decode_each<copy>(out); }

}  // namespace

const BodyDecoder decoders::identity{describe, max_bytes, workspace, decode, count_no_atoms};

std::shared_ptr<const BodyEncoder> make_identity(SpecArgs& args) {
  const std::size_t dtype = args.choice("dtype", {"f32", "f16", "bf16", "e4m3", "e5m2"}, 0);
  if (dtype > 2) return make_fp8(static_cast<std::uint32_t>(dtype - 3));
  return std::make_shared<Identity>(static_cast<DType>(dtype));
}

}  // namespace atomo::codec
