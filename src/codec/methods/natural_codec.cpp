// SPDX-License-Identifier: Apache-2.0
/// natural: every entry becomes a power of two beside it, drawn so that the result is unbiased
/// (natural compression, arXiv 1905.10988). 9 bits an entry; FORMAT.md ("natural") has the body.

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "core/bits.hpp"
#include "core/philox.hpp"
#include "core/run_tasks.hpp"
#include "cpu/natural.hpp"

namespace atomo::codec {
namespace {

constexpr std::size_t kGrain = 65536;  ///< entries of a task, whole words of signs

constexpr std::size_t sign_bytes(std::size_t n) noexcept { return (n + 31) / 32 * 4; }
constexpr std::size_t body_bytes(std::size_t n) noexcept { return sign_bytes(n) + n; }

class Natural final : public BodyEncoder {
 public:
  std::string to_string() const override { return "natural"; }
  Traits traits() const override {
    Traits t;
    t.cuda = t.unbiased = t.averages_over_workers = t.fixed_size = true;
    t.bias_bound = 0x1p-24;  // entries of 2^127 and more: the largest f32 is not 2^128
    t.omega = 0.125;         // (x - a)(2a - x) <= x^2 / 8 for a <= x <= 2a
    t.smallest = 0x1p-126;   // below the smallest normal number a is 0
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::natural, dtype, 0, shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return body_bytes(shape.elements());
  }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    const LayerInput& layer = in.layer;
    if (body.size() < body_bytes(layer.n)) return Status::buffer_too_small;
    const Philox draws(layer.key, Purpose::natural);
    std::byte* const codes = body.data() + sign_bytes(layer.n);
    run_ranges(layer.executor, layer.n, kGrain, [&](std::size_t begin, std::size_t end) {
      cpu::natural_codes(layer.x, draws, begin, end, body.data(), codes);
    });
    result.bytes = body_bytes(layer.n);
    return Status::ok;
  }
};

std::string describe(const Kind&) { return "natural"; }
std::size_t max_bytes(const Kind& kind) noexcept { return body_bytes(kind.shape.elements()); }
std::size_t workspace(const Kind&) noexcept { return 0; }

/// Checks everything a body can break.
Status check(ConstBytes body, std::size_t n) noexcept {
  if (body.size() != body_bytes(n))
    return body.size() < body_bytes(n) ? Status::truncated : Status::corrupt;
  const std::byte* const codes = body.data() + sign_bytes(n);
  const bool clean = n % 32 == 0 || load_le<std::uint32_t>(codes - 4) >> (n % 32) == 0;
  return clean ? Status::ok : Status::corrupt;
}

void decode(const LayerOutput& out) noexcept {
  add_bodies<const std::byte*>(
      out.bodies, out.n, out.executor,
      [&](const LayerBody& body, const std::byte*& signs) {
        signs = body.bytes.data();
        return check(body.bytes, out.n);
      },
      [&](const std::byte* signs, std::size_t begin, std::size_t end) {
        cpu::natural_values(signs, signs + sign_bytes(out.n), begin, end,
                            {.add = out.add, .alpha = out.alpha}, out.y);
      });
}

}  // namespace

const BodyDecoder decoders::natural{describe, max_bytes, workspace, decode, count_no_atoms};

std::shared_ptr<const BodyEncoder> make_natural(SpecArgs&) { return std::make_shared<Natural>(); }

}  // namespace atomo::codec
