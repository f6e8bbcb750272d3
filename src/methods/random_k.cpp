// SPDX-License-Identifier: Apache-2.0
/// randomk: k entries drawn without replacement with a shared seed, scaled by n/k.
///
/// Params: k modulo 2^32; k is 1 to n and the body holds 4 k bytes.
/// Body: k values, f32 little-endian, finite, unscaled, in ascending order of position. A kept
/// entry decodes to value * s, one rounded f32 product, s = n/k in f64 rounded to f32; every other
/// entry to +0. Positions: m = min(k, n - k) (k when equal). For d = 0 ... m - 1: R is Philox block
/// d of purpose random_k, word 0 lowest, under the key with worker 0; j = n - m + d; t = floor(R *
/// (j + 1) / 2^128); t is marked, or j when t was marked before. The kept entries are the marked
/// ones when k <= floor(n / 2), else the others.

#include "atomo/random_k.hpp"

#include <algorithm>

#include "spec.hpp"

namespace atomo::detail {
namespace {

constexpr std::size_t kManyEntries = std::size_t{1} << 32;  ///< from here on params do not hold k

class RandomK final : public Method {
 public:
  explicit RandomK(Keep keep) : keep_(keep) {}

  std::string to_string() const override { return "randomk:keep=" + keep_.to_string(); }
  Traits traits() const override {
    Traits t;
    t.unbiased = true;
    // n/k and the product with it round by 2^-24 each; the 128-bit draws add at most 2^-48.
    t.bias_bound = 0x1p-22;
    // omega = n/k - 1 with k at least 2/3 of F n (rounded to nearest, at least 1).
    if (keep_.fraction) t.omega = 1.5 / keep_.value - 1;
    t.linear = true;
    t.fixed_size = true;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::random_k, dtype, static_cast<std::uint32_t>(config(shape).keep), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return cpu::max_encoded_bytes(config(shape), shape.elements());
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    return cpu::workspace_bytes(config(shape), shape.elements());
  }
  Status encode(const LayerInput& in, float, Bytes, Bytes, Bytes scratch, Bytes body,
                BodyResult& result) const noexcept override {
    return cpu::encode(config(*in.shape), in.x, in.n, in.key, scratch, in.executor, body,
                       result.bytes);
  }

 private:
  [[nodiscard]] RandomKConfig config(const Shape& shape) const noexcept {
    return {shape.elements() == 0 ? 0 : keep_.of(shape.elements())};
  }
  Keep keep_;
};

bool valid(const Kind& kind) noexcept {
  const std::size_t n = kind.shape.elements();
  if (n == 0) return kind.params == 0;
  return n >= kManyEntries || (kind.params >= 1 && kind.params <= n);
}
std::string describe(const Kind& kind) {
  if (!valid(kind)) return "";
  return kind.shape.elements() >= kManyEntries ? "randomk"
                                               : "randomk:keep=" + std::to_string(kind.params);
}
std::size_t max_bytes(const Kind& kind) noexcept {
  const std::size_t n = kind.shape.elements();
  return 4 * (n >= kManyEntries ? n : kind.params);
}
std::size_t workspace(const Kind& kind) noexcept {
  return cpu::workspace_bytes({}, kind.shape.elements());
}

/// The k of a body, from the params, or from its length where they do not hold it. False when they
/// disagree.
bool keep_of(ConstBytes body, const Kind& kind, RandomKConfig& config) noexcept {
  config.keep = kind.params;
  const std::size_t n = kind.shape.elements();
  if (n < kManyEntries) return true;
  config.keep = body.size() / 4;
  return config.keep >= 1 && config.keep <= n &&
         static_cast<std::uint32_t>(config.keep) == kind.params;
}

Status decode_body(const LayerOutput& out) noexcept {
  RandomKConfig config;
  if (!keep_of(out.body, *out.kind, config)) return Status::corrupt;
  if (out.add) {
    return cpu::decode_add(config, out.body, out.alpha, out.y, out.n, out.key, out.workspace,
                           out.executor);
  }
  return cpu::decode(config, out.body, out.y, out.n, out.key, out.workspace, out.executor);
}

Status count(ConstBytes body, const Kind& kind, std::uint64_t& atoms,
             std::uint64_t& kept) noexcept {
  RandomKConfig config;
  if (!keep_of(body, kind, config)) return Status::corrupt;
  atoms = kind.shape.elements();
  kept = config.keep;
  return Status::ok;
}

}  // namespace

const BodyDecoder kRandomKDecoder = {describe, valid, max_bytes, workspace, decode_body, count};

std::shared_ptr<const Method> make_random_k(SpecArgs& args) {
  return std::make_shared<RandomK>(read_keep(args));
}

}  // namespace atomo::detail
