// SPDX-License-Identifier: Apache-2.0
/// atomo:atoms=coordinate: every entry rounded stochastically to one grid step D, the layer's price.
/// With `bits=` D comes from the budget, with `keep=` from the expected count of entries kept, or it
/// is `delta=`; in these two cases the data may raise it to the least step that it can be sent at.
/// FORMAT.md ("coordinate") has the body, math/grid_rounding.hpp what an entry becomes.

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "cpu/coordinate.hpp"
#include "cpu/magnitudes.hpp"
#include "format/coordinate_body.hpp"
#include "price/magnitude_histogram.hpp"

namespace atomo::codec {
namespace {

enum class StepFrom : std::uint8_t { budget, keep, fixed };

struct CoordinateOptions {
  StepFrom from = StepFrom::budget;
  double bits = 0;
  Keep keep;
  float delta = 0;
};

class Coordinate final : public PricedEncoder {
 public:
  explicit Coordinate(CoordinateOptions options) : options_(options) {}

  std::string to_string() const override {
    const std::string name = "atomo:atoms=coordinate,";
    switch (options_.from) {
      case StepFrom::keep:
        return name + "keep=" + options_.keep.to_string();
      case StepFrom::fixed:
        return name + "delta=" + format_number(options_.delta);
      case StepFrom::budget:
        break;
    }
    return name + "bits=" + format_number(options_.bits);
  }

  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.unbiased = true;
    // P is off by 2^-33 (1 + 2^-20) of a step and 2^-51 of x; what is decoded is rounded once.
    t.bias_bound = 0x1p-24 * (1 + 0x1p-7);
    t.averages_over_workers = true;
    t.step = static_cast<double>(options_.delta);
    t.linear = options_.from == StepFrom::fixed;  // arithmetic.hpp; else steps differ
    return t;
  }

  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::coordinate, dtype, 0, shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return cpu::max_encoded_bytes(CoordinateConfig{}, shape.elements());
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    const std::size_t n = shape.elements();
    return std::max(cpu::workspace_bytes(CoordinateConfig{}, n), magnitude_scratch_bytes(n));
  }

  PriceRule price_rule(const Shape& shape) const noexcept override {
    PriceRule rule;
    rule.pool = Pool::grid;
    switch (options_.from) {
      case StepFrom::keep:
        rule.from = PriceRule::From::keep;
        rule.keep = options_.keep.of(shape.elements());
        break;
      case StepFrom::fixed:
        rule.from = PriceRule::From::price;
        rule.price = options_.delta;
        break;
      case StepFrom::budget:
        rule.from = PriceRule::From::budget;
        rule.budget_bits = options_.bits;
    }
    return rule;
  }
  void carve_price_input(const Shape& shape, Prepared& prepared, Carver& carver) const override {
    prepared.histogram = carver.take_bytes(magnitude_histogram_bytes(shape.elements()));
  }
  bool finds_non_finite() const noexcept override { return true; }
  Status prepare(const LayerInput& in, Prepared& prepared, Bytes scratch) const noexcept override {
    prepared.price = {};
    prepared.price.grid = prepared.histogram;
    const EntryScan found = count_magnitudes(in.x, in.n, prepared.histogram, scratch, in.executor);
    return found.finite ? Status::ok : Status::non_finite;
  }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    result = {};
    if (in.price == 0) return Status::ok;
    return cpu::encode(CoordinateConfig{in.price}, in.layer.x, in.layer.n, in.layer.key, in.scratch,
                       in.layer.executor, body, result.bytes);
  }

 private:
  CoordinateOptions options_;
};

std::string describe(const Kind&) { return "atomo/coordinate"; }
std::size_t max_bytes(const Kind& kind) noexcept {
  return max_wide_body_bytes(kind.shape.elements());  // of a sum of messages
}
std::size_t workspace(const Kind& kind) noexcept {
  return cpu::decode_workspace_bytes(CoordinateConfig{}, kind.shape.elements());
}

void decode(const LayerOutput& out) noexcept {
  if (out.add)
    return cpu::decode_add(out.bodies, out.alpha, out.y, out.n, out.workspace, out.executor);
  LayerBody& body = out.bodies.front();
  body.status = cpu::decode(CoordinateConfig{body.price}, body.bytes, out.y, out.n, out.workspace,
                            out.executor);
}

Status count(ConstBytes body, const Kind& kind, std::uint8_t, std::uint64_t& atoms,
             std::uint64_t& kept) noexcept {
  atoms = kind.shape.elements();
  return cpu::coordinate_count(body, kind.shape.elements(), kept);
}

}  // namespace

const BodyDecoder decoders::coordinate{describe, max_bytes, workspace, decode, count};

std::shared_ptr<const BodyEncoder> make_coordinate(SpecArgs& args) {
  const int given = (args.has("bits") ? 1 : 0) + (args.has("ratio") ? 1 : 0) +
                    (args.has("keep") ? 1 : 0) + (args.has("delta") ? 1 : 0);
  if (given != 1) {
    args.fail("atoms", "atoms=coordinate takes exactly one of bits=, ratio=, keep= and delta=");
  }
  CoordinateOptions options;
  if (args.has("keep")) {
    options.from = StepFrom::keep;
    options.keep = read_keep(args);
  } else if (args.has("delta")) {
    options.from = StepFrom::fixed;
    options.delta = static_cast<float>(args.number("delta", 0x1p-149, 0x1.fffffep127));
  } else {
    options.bits = read_budget(args);
  }
  return std::make_shared<Coordinate>(options);
}

}  // namespace atomo::codec
