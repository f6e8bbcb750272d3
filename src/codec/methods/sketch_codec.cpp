// SPDX-License-Identifier: Apache-2.0
/// atomo:atoms=sketch: pairs of a low-rank sketch and the rows of what they leave (method `atoms`,
/// family 3).
///
/// Params: 3 + 256 rank. The pairs are those of cpu::sketch; the residual is the matrix minus the
/// sum of the very factors that are dithered, so the estimate is exactly unbiased for any sketch.
/// Both families are priced alike, at one price; each has draws of its own. Body; no bytes when
/// neither family keeps an atom:
///   u32 bytes of the pairs' sections, a multiple of 4
///   the sections of dithered pairs (methods/svd.cpp) with `rank` pairs; no bytes when none is kept
///   the sections of rows (atom_body.hpp) of the residual; no bytes when none is kept
/// Decoded: x = s / S + v, s the sum over kept pairs, in order, of first * second, one fused
/// multiply-add of f32 each from 0, S the price's range scale, v what the row decodes to.
/// A tensor that is no matrix, or whose rows are no atoms, is what atoms=rows makes of it.

#include "cpu/pairs.hpp"
#include "cpu/sketch.hpp"
#include "price/pair_costs.hpp"
#include "price/price_math.hpp"

#include <algorithm>

#include "codec/methods/pair_analysis.hpp"
#include "codec/spec.hpp"
#include "core/bits.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/thinning.hpp"

namespace atomo::codec {
namespace {

/// Of the f32 products of a sketch, in units of the norm of an entry's line.
constexpr double kResidualBias = static_cast<double>(kMaxSketchRank + 2) * 0x1p-24 * 2;

/// The two halves of what a step of encoding leaves for the next.
struct SketchBytes {
  Bytes pairs, rows;
  SketchBytes(std::size_t of_pairs, std::size_t of_rows, Carver& carver) noexcept
      : pairs(carver.take_bytes(of_pairs)), rows(carver.take_bytes(of_rows)) {}
};

class Sketch final : public Method {
 public:
  /// `rows` takes the residual and what is no matrix, at the same price. `rank` 0: the shape's
  /// default.
  Sketch(std::shared_ptr<const Method> rows, const PriceOptions& options, std::size_t rank,
         unsigned iterations)
      : rows_(std::move(rows)), options_(options), rank_(rank), iterations_(iterations) {}

  std::string to_string() const override {
    std::string text = "atomo:" + options_.to_string() + ",atoms=sketch";
    if (rank_ > 0) text += ",rank=" + std::to_string(rank_);
    if (iterations_ != 1) text += ",iterations=" + std::to_string(iterations_);
    return text;
  }
  Traits traits() const override {
    Traits t = rows_->traits();
    t.bias_bound += kResidualBias;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    if (!sketches(shape)) return rows_->kind(shape, dtype);
    return {MethodId::atoms, dtype, sketch_params(layer_of(shape).count), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    const std::size_t rows = rows_->max_body_bytes(shape);
    return sketches(shape) ? kPairBytesField + max_pairs_body_bytes(layer_of(shape)) + rows : rows;
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    if (!sketches(shape)) return rows_->scratch_bytes(shape);
    const PairLayer layer = layer_of(shape);
    return std::max({rows_->scratch_bytes(shape), encode_pairs_workspace_bytes(layer),
                     cpu::sketch_workspace_bytes(layer.view, layer.count),
                     fill_pair_demand_workspace_bytes(layer)});
  }
  double cap_bits() const noexcept override { return options_.cap; }
  std::size_t least_limit_bytes(const Shape& shape) const override {
    return least_thinned_bytes(thinned_layer(shape, 0));
  }
  ThinnedLayer thinned_layer(const Shape& shape, std::uint8_t) const override {
    if (!sketches(shape)) return rows_->thinned_layer(shape, 0);
    const PairLayer layer = layer_of(shape);
    return {layer, AtomLayout::rows(layer.view.rows, layer.view.columns)};
  }

  unsigned sketch_iterations() const noexcept override { return iterations_; }
  Pool pool() const noexcept override { return Pool::atoms; }
  double budget_bits() const noexcept override { return rows_->budget_bits(); }
  PriceRule price_rule(const Shape& shape) const noexcept override {
    return rows_->price_rule(shape);
  }
  std::size_t demand_bytes(const Shape& shape) const override {
    if (!sketches(shape)) return rows_->demand_bytes(shape);
    Carver carver;
    open_demand(shape, carver);
    return carver.bytes();
  }
  std::size_t state_bytes(const Shape& shape) const override {
    if (!sketches(shape)) return rows_->state_bytes(shape);
    Carver carver;
    State(*rows_, shape, layer_of(shape), carver);
    return carver.bytes();
  }

  Status analyse(const LayerInput& in, Bytes demand, Bytes state,
                 Bytes scratch) const noexcept override {
    if (!sketches(*in.shape)) return rows_->analyse(in, demand, state, scratch);
    const PairLayer layer = layer_of(*in.shape);
    Carver places(state), needs(demand);
    State found(*rows_, *in.shape, layer, places);
    const SketchBytes out = open_demand(*in.shape, needs);
    const Status status = cpu::sketch(in.x, layer.view, {layer.count, iterations_}, in.key,
                                      found.factors.pairs, found.residual, scratch);
    if (failed(status)) return status;
    found.factors.close(layer);
    PairDemand::open(layer, out.pairs).fill(layer, found.factors.amplitudes, scratch);
    return rows_->analyse(rest_of(in, found), out.rows, found.rows, scratch);
  }
  Expected expected(const Shape& shape, ConstBytes demand, float price) const noexcept override {
    if (!sketches(shape)) return rows_->expected(shape, demand, price);
    const SketchBytes in = read_demand(shape, demand);
    const Expected pairs = expected_of_pairs(layer_of(shape), in.pairs, price);
    const Expected rows = rows_->expected(shape, in.rows, price);
    const std::uint64_t bits = pairs.bits_256 + rows.bits_256;
    return {bits == 0 ? 0 : bits + 256 * 8 * kPairBytesField, pairs.worth + rows.worth};
  }
  std::uint64_t expected_loss256(const Shape& shape, ConstBytes demand,
                                 float price) const noexcept override {
    if (!sketches(shape)) return rows_->expected_loss256(shape, demand, price);
    const SketchBytes in = read_demand(shape, demand);
    return expected_pair_loss256(layer_of(shape), in.pairs, price) +
           rows_->expected_loss256(shape, in.rows, price) + 256 * 8 * kPairBytesField;
  }
  std::uint16_t lowest_price(const Shape& shape, ConstBytes demand) const noexcept override {
    if (!sketches(shape)) return rows_->lowest_price(shape, demand);
    const SketchBytes in = read_demand(shape, demand);
    return std::max(lowest_pair_price(layer_of(shape), in.pairs),
                    rows_->lowest_price(shape, in.rows));
  }
  float own_price(const Shape& shape, ConstBytes demand) const noexcept override {
    if (!sketches(shape)) return rows_->own_price(shape, demand);
    return std::max(price_rule(shape).price, price_of_code(lowest_price(shape, demand)));
  }

  Status encode(const LayerInput& in, float price, Bytes demand, Bytes state, Bytes scratch,
                Bytes body, BodyResult& result) const noexcept override {
    if (!sketches(*in.shape)) return rows_->encode(in, price, demand, state, scratch, body, result);
    result = {};
    if (price == 0) return Status::ok;
    return encode_whole(in, price, demand, state, scratch, body, result.bytes);
  }

 private:
  struct State {
    PairState factors;
    std::span<float> residual;
    Bytes rows;
    State(const Method& rows_method, const Shape& shape, const PairLayer& layer,
          Carver& carver) noexcept
        : factors(layer, carver),
          residual(carver.take<float>(shape.elements())),
          rows(carver.take_bytes(rows_method.state_bytes(shape))) {}
  };

  [[nodiscard]] PairLayer layer_of(const Shape& shape) const noexcept {
    const MatrixShape view = matrix_view(shape);
    const std::size_t rank = rank_ > 0 ? rank_ : default_sketch_rank(view);
    return {view, std::min(rank, view.shorter())};
  }
  [[nodiscard]] bool sketches(const Shape& shape) const noexcept {
    Kind kind;
    kind.shape = shape;
    return has_sketch(fields_of(kind), 1);
  }
  SketchBytes open_demand(const Shape& shape, Carver& carver) const noexcept {
    Carver of_pairs;
    PairDemand(layer_of(shape), of_pairs);
    return {of_pairs.bytes(), rows_->demand_bytes(shape), carver};
  }
  SketchBytes read_demand(const Shape& shape, ConstBytes demand) const noexcept {
    Carver carver(Bytes(const_cast<std::byte*>(demand.data()), demand.size()));
    return open_demand(shape, carver);
  }
  /// The residual in place of the layer.
  static LayerInput rest_of(const LayerInput& in, const State& found) noexcept {
    LayerInput rest = in;
    rest.x = found.residual.data();
    return rest;
  }

  Status encode_whole(const LayerInput& in, float price, Bytes demand, Bytes state, Bytes scratch,
                      Bytes body, std::size_t& bytes) const noexcept {
    const PairLayer layer = layer_of(*in.shape);
    Carver places(state);
    State found(*rows_, *in.shape, layer, places);
    found.factors.pairs.exponent = found.factors.exponent[0];
    std::size_t pairs = 0;
    bytes = 0;
    Status status = encode_pairs(found.factors.pairs, layer, found.factors.amplitudes, price,
                                 in.key, body.subspan(kPairBytesField), scratch, pairs);
    if (failed(status)) return status;
    BodyResult rows;
    status = rows_->encode(rest_of(in, found), price, read_demand(*in.shape, demand).rows,
                           found.rows, scratch, body.subspan(kPairBytesField + pairs), rows);
    if (failed(status) || pairs + rows.bytes == 0) return status;
    store_le(body.data(), static_cast<std::uint32_t>(pairs));
    bytes = kPairBytesField + pairs + rows.bytes;
    return status;
  }

  std::shared_ptr<const Method> rows_;
  PriceOptions options_;
  std::size_t rank_;
  unsigned iterations_;
};

}  // namespace

std::shared_ptr<const Method> make_sketch(const PriceOptions& options, SpecArgs& args) {
  const auto rank = static_cast<std::size_t>(args.integer("rank", 1, kMaxSketchRank, 0));
  const auto iterations = static_cast<unsigned>(args.integer("iterations", 1, 8, 1));
  return std::make_shared<Sketch>(make_atoms(options, true), options, rank, iterations);
}

}  // namespace atomo::codec
