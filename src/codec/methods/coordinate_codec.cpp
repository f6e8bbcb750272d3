// SPDX-License-Identifier: Apache-2.0
/// atomo:atoms=coordinate: every entry rounded stochastically to one grid step D, the layer's
/// price. With `bits=` D comes from the budget, with `keep=` from the expected count of entries
/// kept, or it is `delta=`; in these two cases the data may raise it to the lowest step that it can
/// be sent at.
///
/// Values. coordinate_math.hpp: level and P of an entry, the draw by chunks of 4,096 entries
/// (purpose select_coordinate, u = word 0 of index = chunk; places in the order 1597 i mod 4096,
/// those beyond a short chunk skipped), and what a level decodes to. Params: 0.
///
/// Body; no bytes when every level is zero. Otherwise, little-endian, S = ceil(n / 32768):
///   u32[S]  a word a segment of 32,768 entries (the last one shorter):
///           bits 0..16   bytes of the segment's content
///           bits 17..18  mode: 0 every level is zero (then the whole word is 0), 1 one list, 2 two
///                        lists, 3 dense
///           bits 19..22  Rice parameter of the gaps of the list of ones (mode 2, else 0)
///           bits 23..26  Rice parameter of the gaps of the other list (modes 1 and 2, else 0)
///           bits 27..31  Rice parameter of levels, at most 29; 31: a wide segment, see below
///   then the contents, one after another, each a stream of bits (lowest first) padded with zeros
///   to whole bytes. rice(v, k, raw): v >> k ones, a zero, the k low bits of v; but when v >> k is
///   20 or more, 20 ones, then v in `raw` bits. mode 3: for every entry rice(level, k, 29),
///   followed by a sign bit (1 is minus) unless the level
///           is 0.
///   mode 1: for every entry whose level is not 0: rice(gap, k', 16), sign, rice(level - 1, k, 29);
///           then rice(gap, k', 16) up to the segment's end. A gap is the number of entries since
///           the one before in the list, or since the segment's start.
///   mode 2: for every entry of level 1: rice(gap), sign; the gap to the end; then for every entry
///   of
///           a larger level: rice(gap), sign, rice(level - 2, k, 29); the gap to the end.
/// Levels are below 2^29 but in sums of messages, up to 2^53, whose segments with larger levels are
/// wide: bits 0..26 of the word are the bytes of the content, which begins with a second word
///           bits 0..1    mode, 1 to 3
///           bits 2..5, 6..9  Rice parameters of gaps, as bits 19..22 and 23..26 above
///           bits 10..15  Rice parameter of levels, at most w
///           bits 16..31  w, 30 to 53: the width of the largest level
/// and goes on as above, with w in place of the 29 of rice. The contents fill the body exactly; a
/// decoder refuses a raw value that has a shorter word, a level out of range, a place in both
/// lists, and padding that is not zero.

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/spec.hpp"
#include "cpu/coordinate.hpp"
#include "format/coordinate_body.hpp"
#include "price/coordinate_price.hpp"

namespace atomo::codec {
namespace {

enum class StepFrom : std::uint8_t { budget, keep, fixed };

struct CoordinateOptions {
  StepFrom from = StepFrom::budget;
  double bits = 0;
  Keep keep;
  float delta = 0;
};

class Coordinate final : public Method {
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

  Pool pool() const noexcept override { return Pool::grid; }
  double budget_bits() const noexcept override {
    return options_.from == StepFrom::budget ? options_.bits : 0;
  }
  PriceRule price_rule(const Shape& shape) const noexcept override {
    switch (options_.from) {
      case StepFrom::keep:
        return {PriceRule::From::keep, 0, options_.keep.of(shape.elements())};
      case StepFrom::fixed:
        return {PriceRule::From::price, options_.delta, 0};
      case StepFrom::budget:
        break;
    }
    return {PriceRule::From::budget, 0, 0};
  }
  std::size_t demand_bytes(const Shape& shape) const override {
    return magnitude_demand_bytes(shape.elements());
  }
  Status analyse(const LayerInput& in, Bytes demand, Bytes, Bytes scratch) const noexcept override {
    count_magnitudes(in.x, in.n, demand, scratch);
    return Status::ok;
  }
  Expected expected(const Shape&, ConstBytes demand, float step) const noexcept override {
    return expected_on_grid(demand, step);
  }
  std::uint16_t lowest_price(const Shape&, ConstBytes demand) const noexcept override {
    const float step = cpu::coordinate_lowest_step(largest_magnitude(demand));
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(step) >> 16);
  }
  float own_price(const Shape& shape, ConstBytes demand) const noexcept override {
    const float largest = largest_magnitude(demand);
    if (!(largest > 0)) return 0;
    const float step = options_.from == StepFrom::fixed
                           ? options_.delta
                           : step_that_keeps(demand, options_.keep.of(shape.elements()));
    return std::max(step, cpu::coordinate_lowest_step(largest));
  }

  Status encode(const LayerInput& in, float price, Bytes, Bytes, Bytes scratch, Bytes body,
                BodyResult& result) const noexcept override {
    result = {};
    if (price == 0) return Status::ok;
    return cpu::encode(CoordinateConfig{price}, in.x, in.n, in.key, scratch, in.executor, body,
                       result.bytes);
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

Status decode(const LayerOutput& out) noexcept {
  const CoordinateConfig config{out.price};
  if (out.add) {
    return cpu::decode_add(config, out.body, out.alpha, out.y, out.n, out.workspace, out.executor);
  }
  return cpu::decode(config, out.body, out.y, out.n, out.workspace, out.executor);
}

Status count(ConstBytes body, const Kind& kind, std::uint8_t, std::uint64_t& atoms,
             std::uint64_t& kept) noexcept {
  atoms = kind.shape.elements();
  return cpu::coordinate_count(body, kind.shape.elements(), kept);
}

}  // namespace

const BodyDecoder kCoordinateDecoder{describe, max_bytes, workspace, decode, count};

std::shared_ptr<const Method> make_coordinate(SpecArgs& args) {
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
