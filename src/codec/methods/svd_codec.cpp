// SPDX-License-Identifier: Apache-2.0
/// atomo:atoms=svd: singular pairs by an exact decomposition of the view dim0 x rest.
///
/// m is the shorter side of the view, n the longer; pair k (0 <= k < m, in descending order of
/// sigma) is a vector of m entries and one of n. A tensor of fewer than two dimensions, with fewer
/// than 2 rows, with rows under 16 entries, or with sides beyond 2^22 or both beyond 2^14, is no
/// matrix here.
///
/// `values=f32,keep=K|F` (method `factors`, params 0, no price): ATOMO's Algorithm 1 on the layer
/// by itself. p_k = min(1, t sigma_k) with sum p_k = keep; as integers P_k of 2^-32 that sum to
/// keep 2^32. Drawn as every selection is (selection.hpp) under select_pair: chunks of 256 pairs,
/// order 157 i. Body; no bytes when nothing is kept:
///   u32 kept, 1..m
///   i32 exponent e, -160..160
///   f32[kept][m]  first vectors: unit vectors u_k of the kept pairs, in order of k
///   f32[kept][n]  second vectors: sigma_k v_k 2^-e 2^32 / P_k
/// All finite. Decoded: y = 2^e sum_k first_k second_k, products and sums in f64 in order, rounded
/// once. A tensor that is no matrix is one atom that is always kept: f32[elements], as it is.
///
/// `bits=B`, `price=A` (method `atoms`, params 2): pairs at the price with dithered factors; see
/// pairs.hpp for amplitude, ratio and the meaning of a class. A tensor that is no matrix goes to
/// blocks of 256 (params 0). Body; no bytes when nothing is kept:
///   the sections of dithered atoms (atom_body.hpp) with m atoms: marks; certain flags and classes;
///   group lengths; content. Groups: when m + n <= 512, floor(1024 / (m + n)) consecutive kept
///   pairs share one; up to 1,024 each pair has one; beyond, each of the pieces of 1,024 entries
///   (the last shorter) of its first factor has one, then each of its second. Content of a pair:
///   the first factor, then the second, each as the content of an atom of m, or n, entries whose
///   number is k, drawn under dither_u and pre_round_u, or dither_v and pre_round_v. With class c
///   (0 uncertain), aspect row q and the steps t_u, t_v = kPairSteps[q][c]:
///     first factor:  coding step t_u, step = f32(d[t_u]);
///     second factor: coding step t_v, step = f32(a S) * f32(K * (d[t_v] * middle[c])), where
///                    K = kappa[q] * sqrt((m + n) / (m n)) in f64 and S is the price's range scale.
///   Escapes have `escape_bits` of the factor's length and reach (1 + 2^-10) / d[t_u] for the
///   first, (1 + 2^-10) top[c] / (d[t_v] middle[c]) for the second, top the upper end of r (2 when
///   c = 0). Decoded: y = (sum_k first_k second_k) / S, products and sums in f64 in order of k,
///   rounded once.
/// Values beyond the range of f32 decode to +-Inf, with Status::overflow.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codec/methods/pair_analysis.hpp"
#include "codec/spec.hpp"
#include "core/workspace.hpp"
#include "cpu/factors.hpp"
#include "cpu/pairs.hpp"
#include "format/factors_body.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"
#include "price/pair_costs.hpp"
#include "price/price_math.hpp"

namespace atomo::codec {
namespace {

Traits svd_traits() {
  Traits t;
  t.unbiased = true;
  t.averages_over_workers = true;
  t.allocates = true;
  t.synchronises = true;  // inside the solver, on a device
  t.capturable = false;
  t.cuda = true;
  return t;
}

/// The f32 vectors sum to the matrix within 2^-23 of the norm of an entry's line: `step` in the
/// bound is that norm.
constexpr double kFactorisationBias = 0x1p-23 * (1 + 0x1p-6);

// ---- f32 factors

std::size_t raw_bytes(const Shape& shape) noexcept { return shape.elements() * sizeof(float); }

class Factors final : public Method {
 public:
  explicit Factors(Keep keep) : keep_(keep) {}

  std::string to_string() const override {
    return "atomo:atoms=svd,keep=" + keep_.to_string() + ",values=f32";
  }
  Traits traits() const override {
    Traits t = svd_traits();
    t.bias_bound = kFactorisationBias;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::factors, dtype, 0, shape};
  }
  PriceRule price_rule(const Shape& shape) const noexcept override {
    return {PriceRule::From::keep, 0, is_matrix(shape) ? keep_of(matrix_view(shape)) : 1};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    if (!is_matrix(shape)) return raw_bytes(shape);
    const MatrixShape view = matrix_view(shape);
    return factors_bytes(view, max_kept_pairs(view, keep_of(view)));
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    return is_matrix(shape) ? encode_factors_workspace_bytes(matrix_view(shape)) : 0;
  }
  Status encode(const LayerInput& in, float, Bytes, Bytes, Bytes scratch, Bytes body,
                BodyResult& result) const noexcept override {
    result = {};
    if (is_matrix(*in.shape)) {
      const MatrixShape view = matrix_view(*in.shape);
      return encode_factors(in.x, view, keep_of(view), in.key, scratch, body, result.bytes);
    }
    result.bytes = raw_bytes(*in.shape);
    std::memcpy(body.data(), in.x, result.bytes);
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
  return is_matrix(kind.shape) ? decode_factors_workspace_bytes(matrix_view(kind.shape)) : 0;
}

Status decode(const LayerOutput& out) noexcept {
  if (is_matrix(out.kind->shape)) {
    return decode_factors(out.body, matrix_view(out.kind->shape), {out.add, out.alpha}, out.y,
                          out.workspace, out.executor);
  }
  if (out.body.size() != raw_bytes(out.kind->shape)) return Status::corrupt;
  for (std::size_t i = 0; i < out.n; ++i) {
    float v;
    std::memcpy(&v, out.body.data() + 4 * i, 4);
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
  return count_factors(body, view, kept);
}

// ---- dithered factors at a price

class Pairs final : public Method {
 public:
  /// `blocks` has the same budget or price and takes what is no matrix.
  Pairs(std::shared_ptr<const Method> blocks, const PriceOptions& options)
      : blocks_(std::move(blocks)), options_(options) {}

  std::string to_string() const override { return "atomo:" + options_.to_string() + ",atoms=svd"; }
  Traits traits() const override {
    Traits t = svd_traits();
    t.bias_bound = blocks_->traits().bias_bound + kFactorisationBias;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    if (!is_matrix(shape)) return blocks_->kind(shape, dtype);
    return {MethodId::atoms, dtype, kPairs, shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return is_matrix(shape) ? max_pairs_body_bytes(PairLayer::all_of(matrix_view(shape)))
                            : blocks_->max_body_bytes(shape);
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    if (!is_matrix(shape)) return blocks_->scratch_bytes(shape);
    const MatrixShape view = matrix_view(shape);
    return std::max(cpu::svd_workspace_bytes(view),
                    encode_pairs_workspace_bytes(PairLayer::all_of(view)));
  }

  Pool pool() const noexcept override { return Pool::atoms; }
  double budget_bits() const noexcept override { return blocks_->budget_bits(); }
  PriceRule price_rule(const Shape& shape) const noexcept override {
    return blocks_->price_rule(shape);
  }
  std::size_t demand_bytes(const Shape& shape) const override {
    if (!is_matrix(shape)) return blocks_->demand_bytes(shape);
    Carver carver;
    PairDemand(PairLayer::all_of(matrix_view(shape)), carver);
    return carver.bytes();
  }
  std::size_t state_bytes(const Shape& shape) const override {
    if (!is_matrix(shape)) return blocks_->state_bytes(shape);
    Carver carver;
    PairState(PairLayer::all_of(matrix_view(shape)), carver);
    return carver.bytes();
  }

  Status analyse(const LayerInput& in, Bytes demand, Bytes state,
                 Bytes scratch) const noexcept override {
    if (!is_matrix(*in.shape)) return blocks_->analyse(in, demand, state, scratch);
    const PairLayer layer = PairLayer::all_of(matrix_view(*in.shape));
    PairState found = PairState::open(layer, state);
    const Status status = cpu::svd(in.x, layer.view, found.pairs, scratch);
    if (failed(status)) return status;
    found.close(layer);
    PairDemand::open(layer, demand).fill(layer, found.amplitudes, scratch);
    return Status::ok;
  }
  Expected expected(const Shape& shape, ConstBytes demand, float price) const noexcept override {
    if (!is_matrix(shape)) return blocks_->expected(shape, demand, price);
    return expected_of_pairs(PairLayer::all_of(matrix_view(shape)), demand, price);
  }
  std::uint16_t lowest_price(const Shape& shape, ConstBytes demand) const noexcept override {
    if (!is_matrix(shape)) return blocks_->lowest_price(shape, demand);
    return lowest_pair_price(PairLayer::all_of(matrix_view(shape)), demand);
  }
  float own_price(const Shape& shape, ConstBytes demand) const noexcept override {
    return std::max(options_.price, price_of_code(lowest_price(shape, demand)));
  }

  Status encode(const LayerInput& in, float price, Bytes demand, Bytes state, Bytes scratch,
                Bytes body, BodyResult& result) const noexcept override {
    if (!is_matrix(*in.shape)) {
      return blocks_->encode(in, price, demand, state, scratch, body, result);
    }
    result = {};
    if (price == 0) return Status::ok;
    const PairLayer layer = PairLayer::all_of(matrix_view(*in.shape));
    const PairState found = PairState::open(layer, state);
    return encode_pairs(found.pairs, layer, found.amplitudes, price, in.key, body, scratch,
                        result.bytes);
  }

 private:
  std::shared_ptr<const Method> blocks_;
  PriceOptions options_;
};

}  // namespace

const BodyDecoder kFactorsDecoder{describe, max_bytes, workspace, decode, count};

std::shared_ptr<const Method> make_svd(SpecArgs& args) {
  const bool f32 = args.choice("values", {"dither", "f32"}, 0) == 1;
  if (f32) {
    if (!args.has("keep")) {
      args.fail("values",
                "values=f32 goes with keep=, the expected count of singular pairs of a layer");
    }
    return std::make_shared<Factors>(read_keep(args));
  }
  if (args.has("keep")) {
    args.fail("keep", "keep= counts pairs with f32 factors: add values=f32, or give bits= instead");
  }
  const PriceOptions options = read_price_options(args);
  return std::make_shared<Pairs>(make_atoms(options, false), options);
}

}  // namespace atomo::codec
