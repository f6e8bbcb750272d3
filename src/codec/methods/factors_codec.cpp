// SPDX-License-Identifier: Apache-2.0
/// atomo:atoms=svd,values=f32,keep=K|F: ATOMO's Algorithm 1 on each layer by itself (arXiv
/// 1806.04090). Singular pairs of an exact decomposition are kept with probabilities in proportion
/// to their singular values and sent as f32 vectors (FORMAT.md, "factors").

#include <cmath>
#include <cstring>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "cpu/factors.hpp"
#include "format/factors_body.hpp"
#include "format/matrix.hpp"

namespace atomo::codec {
namespace {

/// The f32 vectors sum to the matrix within 2^-23 of the norm of an entry's line: `step` in the
/// bound is that norm.
constexpr double kFactorisationBias = 0x1p-23 * (1 + 0x1p-6);

std::size_t raw_bytes(const Shape& shape) noexcept { return shape.elements() * sizeof(float); }

class Factors final : public BodyEncoder {
 public:
  explicit Factors(Keep keep) : keep_(keep) {}

  std::string to_string() const override {
    return "atomo:atoms=svd,keep=" + keep_.to_string() + ",values=f32";
  }
  Traits traits() const override {
    Traits t;
    t.cuda = t.unbiased = t.averages_over_workers = true;
    t.allocates = t.synchronises = true;  // inside the solver
    t.capturable = false;
    t.bias_bound = kFactorisationBias;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::factors, dtype, 0, shape};
  }
  PriceRule price_rule(const Shape& shape) const noexcept override {
    PriceRule rule;
    rule.from = PriceRule::From::keep;
    rule.keep = is_matrix(shape) ? keep_of(matrix_view(shape)) : 1;
    return rule;
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    if (!is_matrix(shape)) return raw_bytes(shape);
    const MatrixShape view = matrix_view(shape);
    return factors_bytes(view, max_kept_pairs(view, keep_of(view)));
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    return is_matrix(shape) ? cpu::encode_factors_workspace_bytes(matrix_view(shape)) : 0;
  }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    const Shape& shape = *in.layer.shape;
    result = {};
    if (is_matrix(shape)) {
      const MatrixShape view = matrix_view(shape);
      return cpu::encode_factors(in.layer.x, view, keep_of(view), in.layer.key, in.scratch, body,
                                 result.bytes);
    }
    result.bytes = raw_bytes(shape);
    std::memcpy(body.data(), in.layer.x, result.bytes);
    return Status::ok;
  }

 private:
  std::uint64_t keep_of(const MatrixShape& view) const noexcept { return keep_.of(view.shorter()); }

  Keep keep_;
};

std::string describe(const Kind&) { return "atomo:atoms=svd,values=f32"; }

std::size_t max_bytes(const Kind& kind) noexcept {
  if (!is_matrix(kind.shape)) return raw_bytes(kind.shape);
  const MatrixShape view = matrix_view(kind.shape);
  return factors_bytes(view, view.shorter());
}
std::size_t workspace(const Kind& kind) noexcept {
  return is_matrix(kind.shape) ? cpu::decode_factors_workspace_bytes(matrix_view(kind.shape)) : 0;
}

Status decode(const LayerOutput& out, const LayerBody& body) noexcept {
  if (is_matrix(out.kind->shape)) {
    return cpu::decode_factors(body.bytes, matrix_view(out.kind->shape), {out.add, out.alpha},
                               out.y, out.workspace, out.executor);
  }
  if (body.bytes.size() != raw_bytes(out.kind->shape)) return Status::corrupt;
  for (std::size_t i = 0; i < out.n; ++i) {
    float v;
    std::memcpy(&v, body.bytes.data() + 4 * i, 4);
    if (!std::isfinite(v)) return Status::corrupt;
    out.y[i] = out.add ? out.y[i] + (out.alpha * v) : v;
  }
  return Status::ok;
}

Status count(ConstBytes body, const Kind& kind, std::uint8_t, std::uint64_t& atoms,
             std::uint64_t& kept) noexcept {
  atoms = kept = 1;
  if (!is_matrix(kind.shape)) return Status::ok;
  const MatrixShape view = matrix_view(kind.shape);
  atoms = view.shorter();
  return cpu::count_factors(body, view, kept);
}

}  // namespace

const BodyDecoder decoders::factors{describe, max_bytes, workspace, decode_each<decode>, count};

std::shared_ptr<const BodyEncoder> make_factors(SpecArgs& args) {
  if (args.choice("values", {"dither", "f32"}, 0) == 1) {
    if (!args.has("keep")) {
      args.fail("values",
                "values=f32 goes with keep=, the expected count of singular pairs of a layer");
    }
    return std::make_shared<Factors>(read_keep(args));
  }
  if (args.has("keep")) {
    args.fail("keep", "keep= counts pairs with f32 factors: add values=f32, or give bits= instead");
  }
  return nullptr;
}

}  // namespace atomo::codec
