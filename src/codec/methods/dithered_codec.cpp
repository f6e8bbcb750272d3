// SPDX-License-Identifier: Apache-2.0
/// atomo:atoms=auto|sketch|svd|rows|blocks: dithered atoms that each choose their own bits at the
/// price of the model (FORMAT.md, "atoms" and "automatic").
///
/// rows and blocks are cut from the tensor; svd takes the pairs of an exact decomposition; sketch
/// takes a few pairs and the rows of what they leave; auto takes blocks, rows, a sketch or
/// coordinates, whichever has the least expected bits and error at the price. That choice does not
/// depend on the draws, so it costs no bias. A tensor that a family does not fit is sent as rows,
/// or blocks.
///
/// Coordinates, whose price needs a histogram of all entries, are tried for tensors of up to 1,024
/// entries and for those of which three quarters are zero, and never under a cap: leaving some of
/// them out would leave the grid.

#include <algorithm>
#include <bit>
#include <limits>

#include "codec/methods/dithered_form.hpp"
#include "codec/spec.hpp"
#include "cpu/coordinate.hpp"
#include "cpu/magnitudes.hpp"
#include "format/dithered_layer.hpp"
#include "price/budget.hpp"
#include "price/coordinate_price.hpp"
#include "price/grid_form.hpp"
#include "price/magnitude_histogram.hpp"
#include "price/price_math.hpp"

namespace atomo::codec {
namespace {

/// The values of the key `atoms` that this encoder has.
enum class Atoms : std::uint8_t { automatic, sketch, svd, rows, blocks };
constexpr const char* kAtomsNames[] = {"auto", "sketch", "svd", "rows", "blocks"};

/// 16 bits of pre-rounding and the roundings of x times the inverse step.
constexpr double kDitherBias = 0x1p-20;
/// The f32 products of a sketch, in units of the norm of an entry's row.
constexpr double kResidualBias = static_cast<double>(kMaxSketchRank + 2) * 0x1p-24 * 2;
/// The f32 vectors of a decomposition sum to the matrix within 2^-23 of the norm of an entry's
/// line.
constexpr double kFactorisationBias = 0x1p-23 * (1 + 0x1p-6);

class Dithered final : public PricedEncoder {
 public:
  /// `rank` 0: the shape's default.
  Dithered(Atoms atoms, const PriceOptions& options, std::size_t rank, unsigned iterations,
           Selection selection)
      : atoms_(atoms),
        options_(options),
        rank_(rank),
        iterations_(iterations),
        selection_(selection) {}

  std::string to_string() const override {
    std::string text =
        "atomo:" + options_.to_string() + ",atoms=" + kAtomsNames[static_cast<std::size_t>(atoms_)];
    if (rank_ > 0) text += ",rank=" + std::to_string(rank_);
    if (iterations_ != 1) text += ",iterations=" + std::to_string(iterations_);
    if (nearest()) text += ",content=nearest";
    return text;
  }

  Traits traits() const override {
    Traits t;
    t.averages_over_workers = true;
    t.cuda = true;
    t.unbiased = !nearest();
    t.bias_bound = nearest() ? std::numeric_limits<double>::infinity() : kDitherBias;
    t.bounded = options_.cap > 0;
    t.step = static_cast<double>(options_.price);
    if (atoms_ == Atoms::automatic || atoms_ == Atoms::sketch) t.bias_bound += kResidualBias;
    if (atoms_ == Atoms::svd) {
      t.bias_bound += kFactorisationBias;
      t.allocates = t.synchronises = true;  // inside the solver
      t.capturable = false;
    }
    return t;
  }

  Kind kind(const Shape& shape, DType dtype) const override {
    const std::uint32_t rank = rank_of(shape);
    if (atoms_ == Atoms::automatic) return {MethodId::automatic, dtype, rank, shape};
    std::uint32_t params = params_of(Family::blocks);
    if (atoms_ == Atoms::svd && is_matrix(shape)) params = params_of(Family::pairs);
    if (atoms_ == Atoms::rows || atoms_ == Atoms::sketch)
      params = rank > 0 ? sketch_params(rank) : rows_or_blocks(shape);
    return {MethodId::atoms, dtype, params, shape};
  }

  std::size_t max_body_bytes(const Shape& shape) const override {
    std::size_t bytes =
        with_grid() ? cpu::max_encoded_bytes(CoordinateConfig{}, shape.elements()) : 0;
    for_each(shape, [&](std::uint8_t, const DitheredForm& form) {
      bytes = std::max(bytes, form.max_body_bytes());
    });
    return bytes;
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements();
    std::size_t bytes = with_grid() ? std::max(cpu::workspace_bytes(CoordinateConfig{}, n),
                                               magnitude_scratch_bytes(n))
                                    : 0;
    for_each(shape, [&](std::uint8_t, const DitheredForm& form) {
      bytes = std::max(bytes, form.scratch_bytes());
    });
    return bytes;
  }
  PriceRule price_rule(const Shape&) const noexcept override { return options_.rule(Pool::atoms); }
  unsigned sketch_iterations() const noexcept override { return iterations_; }

  Selection selection() const noexcept override { return selection_; }

  /// The sums of squares of rows and blocks tell; a sketch multiplies before it adds, and a grid asks
  /// for the zeros.
  bool finds_non_finite() const noexcept override {
    return atoms_ == Atoms::rows || atoms_ == Atoms::blocks;
  }
  bool learns_rank(const Shape& shape) const noexcept override {
    return rank_ == 0 && rank_of(shape) > 0;
  }
  price::RankState learn_rank(price::RankState state, const Prepared& prepared, std::uint8_t form,
                              float price) const noexcept override {
    if (atoms_ == Atoms::automatic && form != kSketchForm) return price::without_sketch(state);
    const PreparedForm& sketch = prepared.forms[atoms_ == Atoms::automatic ? kSketchForm : 0];
    return price::after_sketch(sketch.amplitudes, static_cast<double>(price), sketch.rank);
  }

  void carve_price_input(const Shape& shape, Prepared& prepared, Carver& carver) const override {
    for_each(shape, [&](std::uint8_t number, const DitheredForm& form) {
      form.carve_price_input(prepared.forms[number], carver);
    });
    if (with_grid())
      prepared.histogram = carver.take_bytes(magnitude_histogram_bytes(shape.elements()));
  }
  void carve_state(const Shape& shape, Prepared& prepared, Carver& carver) const override {
    for_each(shape, [&](std::uint8_t number, const DitheredForm& form) {
      form.carve_state(prepared.forms[number], carver);
    });
  }

  Status prepare(const LayerInput& in, Prepared& prepared, Bytes scratch) const noexcept override {
    prepared.price = {};
    prepared.price.grid_step = kGridStepOfPrice;
    Status status = Status::ok;
    for_each(*in.shape, [&](std::uint8_t number, const DitheredForm& form) {
      if (failed(status)) return;
      if (in.rank == 0 && number == kSketchForm) return;
      const std::span<const double> row_rms =
          number == kSketchForm ? prepared.forms[kRowsForm].rms : std::span<double>{};
      status =
          form.prepare(in, row_rms, prepared.forms[number], prepared.price.forms[number], scratch);
    });
    if (failed(status) || !with_grid() || !tries_grid(in.n, in.zeros)) return status;
    count_magnitudes(in.x, in.n, prepared.histogram, scratch, in.executor);
    prepared.price.grid = prepared.histogram;
    return status;
  }

  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    result = {};
    if (in.price == 0) return Status::ok;
    const PriceInput& input = in.prepared->price;
    const std::uint8_t best = input.best_form(in.price);
    Status status = Status::ok;
    if (best == kGridForm) {
      status = cpu::encode(CoordinateConfig{grid_step(in.price)}, in.layer.x, in.layer.n,
                           in.layer.key, in.scratch, in.layer.executor, body, result.bytes);
    } else {
      const DitheredLayer layer = dithered_layer(kind(*in.layer.shape, DType::f32), best);
      status = DitheredForm{layer, iterations_, selection_}.write(
          in.layer, in.price, in.prepared->forms[best], input.forms[best], in.scratch, body,
          result.bytes);
    }
    result.form = result.bytes == 0 ? std::uint8_t{0} : best;
    return status;
  }

 private:
  [[nodiscard]] bool with_grid() const noexcept {
    return atoms_ == Atoms::automatic && options_.cap == 0 && !nearest();
  }
  [[nodiscard]] static std::uint32_t rows_or_blocks(const Shape& shape) noexcept {
    const std::uint32_t rows = params_of(Family::rows);
    const bool fits = has_rows(fields_of({MethodId::atoms, DType::f32, rows, shape}));
    return fits ? rows : params_of(Family::blocks);
  }
  /// Pairs of a sketch of the shape, 0 where it has none.
  [[nodiscard]] std::uint32_t rank_of(const Shape& shape) const noexcept {
    const bool sketches = atoms_ == Atoms::automatic || atoms_ == Atoms::sketch;
    if (!sketches || !has_sketch(fields_of({MethodId::atoms, DType::f32, 0, shape}), 1)) return 0;
    const MatrixShape view = matrix_view(shape);
    const std::size_t rank = rank_ > 0 ? rank_ : default_sketch_rank(view);
    return static_cast<std::uint32_t>(std::min(rank, view.shorter()));
  }
  /// Calls `visit(number, form)` for the forms of a layer of this shape.
  template <typename Visit>
  void for_each(const Shape& shape, Visit visit) const {
    for_each_form(kind(shape, DType::f32), [&](std::uint8_t number, const DitheredLayer& layer) {
      visit(number, DitheredForm{layer, iterations_, selection_});
    });
  }

  [[nodiscard]] bool nearest() const noexcept { return selection_ == Selection::nearest; }

  Atoms atoms_;
  PriceOptions options_;
  std::size_t rank_;
  unsigned iterations_;
  Selection selection_;
};

}  // namespace

PriceRule PriceOptions::rule(Pool pool) const noexcept {
  const auto from = bits > 0 ? PriceRule::From::budget : PriceRule::From::price;
  return {pool, from, bits, cap, price, 0};
}

std::string PriceOptions::to_string() const {
  if (bits == 0) return "price=" + format_number(static_cast<double>(price));
  return "bits=" + format_number(bits) + (cap > 0 ? ",cap=" + format_number(cap) : "");
}

double read_budget(SpecArgs& args) {
  if (args.has("bits") && args.has("ratio"))
    args.fail("ratio", "bits= and ratio= say the same: give one of them");
  if (args.has("ratio")) return 32.0 / args.number("ratio", 1, 32000);
  return args.number("bits", kMinBudgetBits, kMaxBudgetBits);
}

PriceOptions read_price_options(SpecArgs& args) {
  PriceOptions options;
  if (!args.has("price")) {
    options.bits = read_budget(args);
    if (args.has("cap")) options.cap = args.number("cap", options.bits, 64);
    return options;
  }
  if (args.has("bits") || args.has("ratio"))
    args.fail("price", "price= fixes what bits= or ratio= would find: give one");
  // A price has 16 bits: the nearest one is taken, and shown by the canonical spec.
  const auto wanted = static_cast<float>(args.number("price", 1e-38, 1e38));
  options.price = price_of_code((std::bit_cast<std::uint32_t>(wanted) + 0x8000u) >> 16);
  return options;
}

std::shared_ptr<const BodyEncoder> make_atomo(SpecArgs& args) {
  enum : std::size_t { automatic, sketch, svd, rows, blocks, coordinate };
  const std::size_t atoms =
      args.choice("atoms", {"auto", "sketch", "svd", "rows", "blocks", "coordinate"}, automatic);
  if ((atoms == coordinate || atoms == svd) && args.has("cap"))
    args.fail("cap", "cap= goes with atoms=auto, sketch, rows and blocks");
  const auto selection = static_cast<Selection>(args.choice("content", {"drawn", "nearest"}, 0));
  if (selection == Selection::nearest) {
    if (atoms == coordinate)
      args.fail("content", "content=nearest goes with atoms=auto, sketch, svd, rows and blocks");
    if (args.has("cap")) args.fail("cap", "cap= goes with content=drawn");
  }
  if (atoms == coordinate) return make_coordinate(args);
  if (atoms == svd) {
    if (auto factors = make_factors(args)) {
      if (selection == Selection::nearest)
        args.fail("content", "content=nearest goes with values=dither");
      return factors;
    }
  }
  const PriceOptions options = read_price_options(args);
  std::size_t rank = 0;
  unsigned iterations = 1;
  if (atoms == automatic || atoms == sketch) {
    rank = static_cast<std::size_t>(args.integer("rank", 1, kMaxSketchRank, 0));
    iterations = static_cast<unsigned>(args.integer("iterations", 1, 8, 1));
  }
  return std::make_shared<Dithered>(static_cast<Atoms>(atoms), options, rank, iterations,
                                    selection);
}

}  // namespace atomo::codec
