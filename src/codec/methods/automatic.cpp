// SPDX-License-Identifier: Apache-2.0
/// atomo:atoms=auto: blocks, rows, a sketch and its residual, or coordinates, whichever costs
/// least.
///
/// Params: the rank of the sketch, 0 where the tensor has none. The form in the layer's row says
/// what the body is, the price being a:
///   0  blocks of 256 (atoms, params 0)
///   1  rows (atoms, params 1)
///   2  a sketch and the rows of its residual (atoms, params 3 + 256 rank)
///   3  coordinates, with the grid step f32(3 a)
/// The choice follows from the expected bits and the expected variance of each at the price, so it
/// does not depend on the draws and costs no bias. Coordinates, whose price needs a histogram of
/// all entries, are tried for tensors of up to 1,024 entries and for those of which three quarters
/// are zero, and never under a cap: leaving some of them out would leave the grid.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "codec/spec.hpp"
#include "core/workspace.hpp"
#include "cpu/coordinate.hpp"
#include "cpu/sketch.hpp"
#include "format/kind.hpp"
#include "price/coordinate_price.hpp"
#include "price/grid_form.hpp"
#include "price/price.hpp"

namespace atomo::codec {
namespace {

constexpr std::size_t kForms = 4;
bool is_tried(const float* x, std::size_t n) noexcept {
  if (n <= kFewEntries) return true;
  std::size_t zeros = 0;
  for (std::size_t i = 0; i < n; ++i) zeros += x[i] == 0 ? 1 : 0;
  return tries_grid(n, zeros);
}

/// The lowest price at which the grid can hold the layer.
std::uint16_t lowest_grid_price(ConstBytes demand) noexcept {
  return static_cast<std::uint16_t>(
      price::lowest_grid_price(cpu::coordinate_lowest_step(largest_magnitude(demand))));
}

std::uint64_t expected_grid_loss256(ConstBytes demand, float price) noexcept {
  const float step = grid_step(price);
  return expected_on_grid(demand, step).bits_256 +
         grid_error_cost256(expected_grid_error16(demand, step));
}

/// The methods that it chooses among, by form; null for coordinates.
using Candidates = std::array<std::shared_ptr<const Method>, kForms - 1>;

/// Memory of every candidate for one step of encoding.
struct Parts {
  std::array<Bytes, kForms> of;
};

class Automatic final : public Method {
 public:
  /// Without a cap coordinates too.
  Automatic(Candidates candidates, bool with_grid)
      : candidates_(std::move(candidates)), with_grid_(with_grid) {}

  std::string to_string() const override {
    std::string text = sketch().to_string();
    const std::string word = "atoms=sketch";
    return text.replace(text.find(word), word.size(), "atoms=auto");
  }
  Traits traits() const override { return sketch().traits(); }
  Kind kind(const Shape& shape, DType dtype) const override {
    const Kind inner = sketch().kind(shape, dtype);
    const bool sketches = family_of(inner.params) == kSketch;
    return {MethodId::automatic, dtype, sketches ? rank_of(inner.params) : 0, shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    std::size_t bytes = cpu::max_encoded_bytes(CoordinateConfig{}, shape.elements());
    for (const auto& method : candidates_) bytes = std::max(bytes, method->max_body_bytes(shape));
    return bytes;
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements();
    std::size_t bytes =
        std::max(cpu::workspace_bytes(CoordinateConfig{}, n), magnitude_scratch_bytes(n));
    for (const auto& method : candidates_) bytes = std::max(bytes, method->scratch_bytes(shape));
    return bytes;
  }

  unsigned sketch_iterations() const noexcept override { return sketch().sketch_iterations(); }
  Pool pool() const noexcept override { return Pool::atoms; }
  double budget_bits() const noexcept override { return sketch().budget_bits(); }
  PriceRule price_rule(const Shape& shape) const noexcept override {
    return sketch().price_rule(shape);
  }
  double cap_bits() const noexcept override { return sketch().cap_bits(); }
  std::size_t least_limit_bytes(const Shape& shape) const override {
    std::size_t bytes = 0;
    for (std::size_t form = 0; form < candidates_.size(); ++form) {
      if (has(shape, form)) bytes = std::max(bytes, candidates_[form]->least_limit_bytes(shape));
    }
    return bytes;
  }
  ThinnedLayer thinned_layer(const Shape& shape, std::uint8_t form) const override {
    return candidates_[form]->thinned_layer(shape, form);
  }
  std::size_t demand_bytes(const Shape& shape) const override {
    Carver carver;
    open_demand(shape, carver);
    return carver.bytes();
  }
  std::size_t state_bytes(const Shape& shape) const override {
    Carver carver;
    open_state(shape, carver);
    return carver.bytes();
  }

  Status analyse(const LayerInput& in, Bytes demand, Bytes state,
                 Bytes scratch) const noexcept override {
    Carver needs(demand), places(state);
    const Demand out = open_demand(*in.shape, needs);
    const Parts found = open_state(*in.shape, places);
    for (std::size_t form = 0; form < candidates_.size(); ++form) {
      if (!has(*in.shape, form)) continue;
      const Status status =
          candidates_[form]->analyse(in, out.parts.of[form], found.of[form], scratch);
      if (failed(status)) return status;
    }
    out.grid_tried[0] = with_grid_ && is_tried(in.x, in.n);
    if (out.grid_tried[0]) count_magnitudes(in.x, in.n, out.parts.of[kGridForm], scratch);
    return Status::ok;
  }
  Expected expected(const Shape& shape, ConstBytes demand, float price) const noexcept override {
    const Demand in = read_demand(shape, demand);
    const std::uint8_t form = choose(shape, in, price);
    return form == kGridForm ? expected_on_grid(in.parts.of[form], grid_step(price))
                             : candidates_[form]->expected(shape, in.parts.of[form], price);
  }
  /// One at which any of its forms can be sent.
  std::uint16_t lowest_price(const Shape& shape, ConstBytes demand) const noexcept override {
    const Demand in = read_demand(shape, demand);
    std::uint16_t lowest = in.grid_tried[0] ? lowest_grid_price(in.parts.of[kGridForm]) : 1;
    for (std::size_t form = 0; form < candidates_.size(); ++form) {
      if (!has(shape, form)) continue;
      lowest = std::max(lowest, candidates_[form]->lowest_price(shape, in.parts.of[form]));
    }
    return lowest;
  }
  float own_price(const Shape& shape, ConstBytes demand) const noexcept override {
    return std::max(price_rule(shape).price, price_of_code(lowest_price(shape, demand)));
  }

  Status encode(const LayerInput& in, float price, Bytes demand, Bytes state, Bytes scratch,
                Bytes body, BodyResult& result) const noexcept override {
    result = {};
    if (price == 0) return Status::ok;
    const Demand needs = read_demand(*in.shape, demand);
    const std::uint8_t form = choose(*in.shape, needs, price);
    Status status = Status::ok;
    if (form == kGridForm) {
      status = cpu::encode(CoordinateConfig{grid_step(price)}, in.x, in.n, in.key, scratch,
                           in.executor, body, result.bytes);
    } else {
      Carver places(state);
      status =
          candidates_[form]->encode(in, price, needs.parts.of[form],
                                    open_state(*in.shape, places).of[form], scratch, body, result);
    }
    result.form = result.bytes == 0 ? std::uint8_t{0} : form;
    return status;
  }

 private:
  struct Demand {
    std::span<bool> grid_tried;  ///< one
    Parts parts;
  };

  const Method& sketch() const noexcept { return *candidates_[kSketchForm]; }
  [[nodiscard]] bool has(const Shape& shape, std::size_t form) const noexcept {
    return has_form(fields_of(kind(shape, DType::f32)), static_cast<std::uint8_t>(form));
  }
  Demand open_demand(const Shape& shape, Carver& carver) const noexcept {
    Demand demand{carver.take<bool>(1), {}};
    for (std::size_t form = 0; form < candidates_.size(); ++form) {
      if (has(shape, form))
        demand.parts.of[form] = carver.take_bytes(candidates_[form]->demand_bytes(shape));
    }
    demand.parts.of[kGridForm] = carver.take_bytes(magnitude_demand_bytes(shape.elements()));
    return demand;
  }
  Demand read_demand(const Shape& shape, ConstBytes demand) const noexcept {
    Carver carver(Bytes(const_cast<std::byte*>(demand.data()), demand.size()));
    return open_demand(shape, carver);
  }
  Parts open_state(const Shape& shape, Carver& carver) const noexcept {
    Parts parts;
    for (std::size_t form = 0; form < candidates_.size(); ++form) {
      if (has(shape, form))
        parts.of[form] = carver.take_bytes(candidates_[form]->state_bytes(shape));
    }
    return parts;
  }

  /// The form of least loss at a price, the first of equal ones.
  [[nodiscard]] std::uint8_t choose(const Shape& shape, const Demand& demand,
                                    float price) const noexcept {
    std::uint8_t best = kBlocksForm;
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    const auto offer = [&](std::size_t form, std::uint64_t loss) {
      if (loss >= least) return;
      least = loss;
      best = static_cast<std::uint8_t>(form);
    };
    for (std::size_t form = 0; form < candidates_.size(); ++form) {
      if (has(shape, form))
        offer(form, candidates_[form]->expected_loss256(shape, demand.parts.of[form], price));
    }
    if (demand.grid_tried[0] && std::isfinite(grid_step(price)))
      offer(kGridForm, expected_grid_loss256(demand.parts.of[kGridForm], price));
    return best;
  }

  Candidates candidates_;
  bool with_grid_;
};

// ---- decoding

/// What the body is, with its own kind.
Kind kind_of_form(const Kind& kind, std::uint8_t form) noexcept {
  Kind inner = kind;
  inner.method = form == kGridForm ? MethodId::coordinate : MethodId::atoms;
  inner.params = form == kSketchForm ? sketch_params(kind.params)
                 : form == kRowsForm ? kRows
                                     : kBlocks;
  if (form == kGridForm) inner.params = 0;
  return inner;
}

std::string describe(const Kind& kind) {
  return "atomo:atoms=auto" + (kind.params == 0 ? "" : ",rank=" + std::to_string(kind.params));
}

/// The most that `of(decoder, kind)` is among the forms.
template <typename Of>
std::size_t most(const Kind& kind, Of of) noexcept {
  std::size_t largest = 0;
  for (std::uint8_t form = 0; form < kForms; ++form) {
    if (!has_form(fields_of(kind), form)) continue;
    const Kind inner = kind_of_form(kind, form);
    largest = std::max(largest, of(*find_decoder(inner.method), inner));
  }
  return largest;
}

std::size_t max_bytes(const Kind& kind) noexcept {
  return most(kind,
              [](const BodyDecoder& d, const Kind& inner) { return d.max_body_bytes(inner); });
}
std::size_t workspace(const Kind& kind) noexcept {
  return most(kind,
              [](const BodyDecoder& d, const Kind& inner) { return d.workspace_bytes(inner); });
}

Status decode(const LayerOutput& out) noexcept {
  if (!has_form(fields_of(*out.kind), out.form)) return Status::corrupt;
  const Kind inner = kind_of_form(*out.kind, out.form);
  LayerOutput chosen = out;
  chosen.kind = &inner;
  if (out.form == kGridForm) {
    if (out.thinned) return Status::corrupt;
    chosen.price = grid_step(out.price);
  }
  return find_decoder(inner.method)->decode(chosen);
}

Status count(ConstBytes body, const Kind& kind, std::uint8_t form, std::uint64_t& atoms,
             std::uint64_t& kept) noexcept {
  if (!has_form(fields_of(kind), form)) return Status::corrupt;
  const Kind inner = kind_of_form(kind, form);
  return find_decoder(inner.method)->count(body, inner, 0, atoms, kept);
}

}  // namespace

const BodyDecoder kAutomaticDecoder{describe, max_bytes, workspace, decode, count};

std::shared_ptr<const Method> make_automatic(SpecArgs& args) {
  const PriceOptions options = read_price_options(args);
  Candidates candidates{make_atoms(options, false), make_atoms(options, true),
                        make_sketch(options, args)};
  return std::make_shared<Automatic>(std::move(candidates), options.cap == 0);
}

}  // namespace atomo::codec
