// SPDX-License-Identifier: Apache-2.0
/// topk: the k entries of largest magnitude, ties by the lowest index.
///
/// Params: k modulo 2^32; k is 1 to n (read from the body where n >= 2^32).
/// Body of n entries:
///   marks of the kept entries (marks.hpp): a mode byte; mode 0 a bit map, mode 1 + r gaps in Rice
///   code of parameter r, in segments of 4,096 entries; padded with zero bits to an even number of
///   bytes; k marks in all k values, f32 little-endian, finite, in ascending order of position
/// Every other entry decodes to +0.

#include "atomo/topk.hpp"

#include <algorithm>
#include <limits>

#include "marks.hpp"
#include "spec.hpp"

namespace atomo::detail {
namespace {

constexpr std::size_t kManyEntries = std::size_t{1} << 32;  ///< from here on params do not hold k

class Topk final : public Method {
 public:
  explicit Topk(Keep keep) : keep_(keep) {}

  std::string to_string() const override { return "topk:keep=" + keep_.to_string(); }
  Traits traits() const override {
    Traits t;
    t.bias_bound = std::numeric_limits<double>::infinity();
    t.omega = 1;
    // The kept share of the energy is at least k/n. k is F n rounded to nearest and at least 1, so
    // at least 2/3 of F n.
    if (keep_.fraction) t.contraction = keep_.value * 2 / 3;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::topk, dtype, static_cast<std::uint32_t>(config(shape).keep), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return cpu::max_encoded_bytes(config(shape), shape.elements());
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    return cpu::workspace_bytes(config(shape), shape.elements());
  }
  Status encode(const LayerInput& in, float, Bytes, Bytes, Bytes scratch, Bytes body,
                BodyResult& result) const noexcept override {
    return cpu::encode(config(*in.shape), in.x, in.n, scratch, in.executor, body, result.bytes);
  }

 private:
  [[nodiscard]] TopkConfig config(const Shape& shape) const noexcept {
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
  return kind.shape.elements() >= kManyEntries ? "topk"
                                               : "topk:keep=" + std::to_string(kind.params);
}
std::size_t max_bytes(const Kind& kind) noexcept {
  const std::size_t n = kind.shape.elements();
  return cpu::max_encoded_bytes({n >= kManyEntries ? n : kind.params}, n);
}
std::size_t workspace(const Kind& kind) noexcept {
  return cpu::workspace_bytes({}, kind.shape.elements());
}

/// The k of a body, from the params or from its marks. False when they disagree.
bool keep_of(ConstBytes body, const Kind& kind, TopkConfig& config) noexcept {
  config.keep = kind.params;
  if (kind.shape.elements() < kManyEntries) return true;
  MarksReader reader;
  if (!reader.open(body, kind.shape.elements())) return false;
  config.keep = reader.kept();
  return static_cast<std::uint32_t>(config.keep) == kind.params;
}

Status decode_body(const LayerOutput& out) noexcept {
  TopkConfig config;
  if (!keep_of(out.body, *out.kind, config)) return Status::corrupt;
  if (out.add)
    return cpu::decode_add(config, out.body, out.alpha, out.y, out.n, out.workspace, out.executor);
  return cpu::decode(config, out.body, out.y, out.n, out.workspace, out.executor);
}

Status count(ConstBytes body, const Kind& kind, std::uint64_t& atoms,
             std::uint64_t& kept) noexcept {
  TopkConfig config;
  if (!keep_of(body, kind, config)) return Status::corrupt;
  atoms = kind.shape.elements();
  kept = config.keep;
  return Status::ok;
}

}  // namespace

const BodyDecoder kTopkDecoder = {describe, valid, max_bytes, workspace, decode_body, count};

std::shared_ptr<const Method> make_topk(SpecArgs& args) {
  return std::make_shared<Topk>(read_keep(args));
}

}  // namespace atomo::detail
