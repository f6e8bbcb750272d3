// SPDX-License-Identifier: Apache-2.0
/// atomo:atoms=rows|blocks: atoms that each choose their own bits at the price of the model.
///
/// Params: the family, 0 blocks of 256, 1 rows (dim0), 2 singular pairs (methods/svd.cpp encodes
/// them), 3 a sketch's pairs and rows (methods/sketch.cpp). A tensor of fewer than two dimensions,
/// or with rows under 16 or over 2^22 entries, uses blocks. The body is laid out in FORMAT.md
/// ("atoms"); no bytes at all mean zeros. With `cap=` a body above its limit is thinned
/// afterwards (thinning.hpp).

#include "cpu/atoms.hpp"
#include "cpu/pairs.hpp"
#include "price/atom_costs.hpp"
#include "price/price_math.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <utility>

#include "codec/spec.hpp"
#include "core/bits.hpp"
#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "cpu/low_rank.hpp"
#include "cpu/outer_products.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"
#include "format/thinning.hpp"

namespace atomo::codec {
namespace {

static_assert(kShortestRow == AtomLayout::kMinRow && kLongestRow == AtomLayout::kMaxRow);

AtomLayout layout_of(const Shape& shape, std::uint32_t family) noexcept {
  if (family == kBlocks) return AtomLayout::blocks(shape.elements());
  const auto rows = static_cast<std::uint64_t>(shape[0]);
  return AtomLayout::rows(rows, shape.elements() / rows);
}

/// What `analyse` leaves for the price search.
struct AtomDemand {
  std::span<double> max_rms;      // one
  std::span<std::uint64_t> used;  // one: bins in use
  std::span<PriceBin> bins;

  AtomDemand(const AtomLayout& layout, Carver& carver) noexcept
      : max_rms(carver.take<double>(1)),
        used(carver.take<std::uint64_t>(1)),
        bins(carver.take<PriceBin>(max_price_bins(layout))) {}
};

AtomDemand open_demand(const AtomLayout& layout, ConstBytes demand) noexcept {
  Carver carver(Bytes(const_cast<std::byte*>(demand.data()), demand.size()));
  return {layout, carver};
}

class Atoms final : public Method {
 public:
  Atoms(bool rows, const PriceOptions& options) : rows_(rows), options_(options) {}

  std::string to_string() const override {
    return "atomo:" + options_.to_string() + ",atoms=" + (rows_ ? "rows" : "blocks");
  }
  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.unbiased = true;
    t.bias_bound =
        0x1p-20;  // 16 bits of pre-rounding and the roundings of x times the inverse step
    t.averages_over_workers = true;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::atoms, dtype, family(shape), shape};
  }

  std::size_t max_body_bytes(const Shape& shape) const override {
    return format::max_body_bytes(layout(shape));
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    const AtomLayout atoms = layout(shape);
    return std::max(cpu::analyse_workspace_bytes(atoms), cpu::encode_workspace_bytes(atoms));
  }
  Pool pool() const noexcept override { return Pool::atoms; }
  double budget_bits() const noexcept override { return options_.bits; }
  PriceRule price_rule(const Shape&) const noexcept override {
    return {options_.bits > 0 ? PriceRule::From::budget : PriceRule::From::price, options_.price,
            0};
  }
  double cap_bits() const noexcept override { return options_.cap; }
  std::size_t least_limit_bytes(const Shape& shape) const override {
    return least_thinned_bytes({{}, layout(shape)});
  }
  ThinnedLayer thinned_layer(const Shape& shape, std::uint8_t) const override {
    return {{}, layout(shape)};
  }
  std::size_t demand_bytes(const Shape& shape) const override {
    Carver carver;
    AtomDemand(layout(shape), carver);
    return carver.bytes();
  }
  std::size_t state_bytes(const Shape& shape) const override {
    return layout(shape).count * sizeof(double);
  }

  Status analyse(const LayerInput& in, Bytes demand, Bytes state,
                 Bytes scratch) const noexcept override {
    const AtomLayout atoms = layout(*in.shape);
    const AtomDemand out = open_demand(atoms, demand);
    cpu::AtomAnalysis found;
    const Status status = cpu::analyse(in.x, atoms, reinterpret_cast<double*>(state.data()),
                                       out.bins, scratch, found);
    out.max_rms[0] = found.max_rms;
    out.used[0] = found.bins.size();
    return status;
  }
  Expected expected(const Shape& shape, ConstBytes demand, float price) const noexcept override {
    const PriceCosts costs = price_costs(layout(shape));
    const PriceLayer layer = price_layer(shape, demand, costs);
    return price::expected({&layer, 1}, price);
  }
  std::uint64_t expected_loss256(const Shape& shape, ConstBytes demand,
                                 float price) const noexcept override {
    const PriceCosts costs = price_costs(layout(shape));
    const PriceLayer layer = price_layer(shape, demand, costs);
    return expected_loss_256({&layer, 1}, price);
  }
  std::uint16_t lowest_price(const Shape& shape, ConstBytes demand) const noexcept override {
    const PriceCosts costs = price_costs(layout(shape));
    const PriceLayer layer = price_layer(shape, demand, costs);
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(price_floor({&layer, 1})) >> 16);
  }
  float own_price(const Shape& shape, ConstBytes demand) const noexcept override {
    return std::max(options_.price,
                    price_of_code(std::max<std::uint32_t>(lowest_price(shape, demand), 1)));
  }

  Status encode(const LayerInput& in, float price, Bytes demand, Bytes state, Bytes scratch,
                Bytes body, BodyResult& result) const noexcept override {
    const AtomLayout atoms = layout(*in.shape);
    if (open_demand(atoms, demand).max_rms[0] == 0 || price == 0) return Status::ok;
    const float lowest = price_of_code(std::max<std::uint32_t>(lowest_price(*in.shape, demand), 1));
    if (price < lowest) return Status::unsupported;
    const auto* rms = reinterpret_cast<const double*>(state.data());
    cpu::AtomBody written;
    const Status status =
        cpu::encode_atoms(in.x, atoms, rms, price, in.key, body, scratch, written);
    result.bytes = written.bytes;
    return status;
  }

 private:
  std::uint32_t family(const Shape& shape) const noexcept {
    return rows_ && has_rows(fields_of({MethodId::atoms, DType::f32, kRows, shape})) ? kRows
                                                                                     : kBlocks;
  }
  AtomLayout layout(const Shape& shape) const noexcept { return layout_of(shape, family(shape)); }
  PriceLayer price_layer(const Shape& shape, ConstBytes demand,
                         const PriceCosts& costs) const noexcept {
    const AtomLayout atoms = layout(shape);
    const AtomDemand in = open_demand(atoms, demand);
    return {in.bins.first(in.used[0]), &costs, atoms.count, in.max_rms[0]};
  }

  bool rows_;
  PriceOptions options_;
};

std::string describe(const Kind& kind) {
  switch (family_of(kind.params)) {
    case kBlocks:
      return "atomo:atoms=blocks";
    case kRows:
      return "atomo:atoms=rows";
    case kPairs:
      return "atomo:atoms=svd";
    default:
      return "atomo:atoms=sketch,rank=" + std::to_string(rank_of(kind.params));
  }
}

bool has_pairs(const Kind& kind) noexcept { return family_of(kind.params) >= kPairs; }
bool has_atoms(const Kind& kind) noexcept { return family_of(kind.params) != kPairs; }

/// Of a kind with pairs.
PairLayer pair_layer_of(const Kind& kind) noexcept {
  const MatrixShape view = matrix_view(kind.shape);
  return {view, family_of(kind.params) == kSketch ? rank_of(kind.params) : view.shorter()};
}

/// Of a kind with rows or blocks.
AtomLayout atoms_of(const Kind& kind) noexcept {
  return layout_of(kind.shape, family_of(kind.params) == kBlocks ? kBlocks : kRows);
}

std::size_t max_bytes(const Kind& kind) noexcept {
  std::size_t bytes = has_pairs(kind) && has_atoms(kind) ? kPairBytesField : 0;
  if (has_pairs(kind)) bytes += max_pairs_body_bytes(pair_layer_of(kind));
  if (has_atoms(kind)) bytes += max_body_bytes(atoms_of(kind));
  return bytes;
}

/// What decoding pairs needs; a sketch's rows too, when they are added to a tensor.
struct DecodeMemory {
  PairFactors factors;
  std::span<float> rest;
  DecodeMemory(const Kind& kind, Carver& carver) noexcept
      : factors(pair_layer_of(kind), carver),
        rest(carver.take<float>(has_atoms(kind) ? kind.shape.elements() : 0)) {}
};

std::size_t workspace(const Kind& kind) noexcept {
  if (!has_pairs(kind)) return 0;
  Carver carver;
  DecodeMemory(kind, carver);
  return carver.bytes();
}

/// Takes the word of a thinned body off its front.
bool open_thinned(const Kind& kind, ConstBytes& body, float& gain) noexcept {
  Thinning thinning;
  if (!has_atoms(kind) || body.size() <= kThinningBytes) return false;
  if (!Thinning::read(load_le<std::uint32_t>(body.data()), thinning)) return false;
  gain = thinning.gain();
  body = body.subspan(kThinningBytes);
  return true;
}

/// Left vectors run along the rows of the tensor, right ones along its columns.
struct Sides {
  const float* left;
  const float* right;
  Sides(const MatrixShape& view, const PairFactors& factors) noexcept
      : left(factors.shorter.data()), right(factors.longer.data()) {
    if (view.rows > view.columns) std::swap(left, right);
  }
};

Status decode_singular_pairs(const LayerOutput& out, ConstBytes body,
                             cpu::DecodeMode mode) noexcept {
  Carver carver(out.workspace);
  DecodeMemory memory(*out.kind, carver);
  if (!carver.fits()) return Status::workspace_too_small;
  const PairLayer layer = pair_layer_of(*out.kind);
  const Status status =
      decode_pair_factors(body, layer, out.price, mode.gain, out.key, memory.factors);
  if (failed(status)) return status;
  const Sides sides(layer.view, memory.factors);
  return sum_outer_products({sides.left, sides.right, memory.factors.kept, layer.view.rows,
                             layer.view.columns, memory.factors.scale},
                            mode, out.y, nullptr);
}

/// The two parts of a sketch's body; false when they do not fit it.
bool split_sketch(ConstBytes body, ConstBytes& pairs, ConstBytes& rows) noexcept {
  if (body.size() <= kPairBytesField) return false;
  const std::size_t bytes = load_le<std::uint32_t>(body.data());
  if (bytes % 4 != 0 || bytes > body.size() - kPairBytesField) return false;
  pairs = body.subspan(kPairBytesField, bytes);
  rows = body.subspan(kPairBytesField + bytes);
  return true;
}

Status decode_sketch(const LayerOutput& out, ConstBytes body, cpu::DecodeMode mode) noexcept {
  ConstBytes pairs, rows;
  if (!split_sketch(body, pairs, rows)) return Status::corrupt;
  Carver carver(out.workspace);
  DecodeMemory memory(*out.kind, carver);
  if (!carver.fits()) return Status::workspace_too_small;
  const PairLayer layer = pair_layer_of(*out.kind);
  if (!pairs.empty()) {
    const Status status =
        decode_pair_factors(pairs, layer, out.price, mode.gain, out.key, memory.factors);
    if (failed(status)) return status;
  }
  float* const rest = mode.add ? memory.rest.data() : out.y;
  const Status status = cpu::decode_atoms(rows, atoms_of(*out.kind), out.price, out.key, rest,
                                          {false, 1.0f, mode.gain});
  if (failed(status)) return status;
  const Sides sides(layer.view, memory.factors);
  const LowRank sum{sides.left,         sides.right,     memory.factors.kept,
                    layer.view.columns, layer.view.rows, static_cast<float>(memory.factors.scale)};
  std::atomic<bool> overflow{false};
  run_ranges(out.executor, layer.view.rows, 64, [&](std::size_t begin, std::size_t end) {
    const std::size_t at = begin * layer.view.columns;
    if (add_low_rank(sum, begin, end, rest + at, mode, out.y + at))
      overflow.store(true, std::memory_order_relaxed);
  });
  return overflow.load(std::memory_order_relaxed) ? Status::overflow : Status::ok;
}

Status decode(const LayerOutput& out) noexcept {
  if (out.body.empty()) {
    if (!out.add) std::fill_n(out.y, out.n, 0.0f);
    return Status::ok;
  }
  if (!(out.price > 0)) return Status::corrupt;
  cpu::DecodeMode mode{out.add, out.alpha};
  ConstBytes body = out.body;
  if (out.thinned && !open_thinned(*out.kind, body, mode.gain)) return Status::corrupt;
  switch (family_of(out.kind->params)) {
    case kPairs:
      return decode_singular_pairs(out, body, mode);
    case kSketch:
      return decode_sketch(out, body, mode);
    default:
      return cpu::decode_atoms(body, atoms_of(*out.kind), out.price, out.key, out.y, mode);
  }
}

Status count(ConstBytes body, const Kind& kind, std::uint8_t, std::uint64_t& atoms,
             std::uint64_t& kept) noexcept {
  atoms = (has_pairs(kind) ? pair_layer_of(kind).count : 0) +
          (has_atoms(kind) ? atoms_of(kind).count : 0);
  kept = 0;
  if (body.empty()) return Status::ok;
  if (!has_pairs(kind)) return cpu::inspect_atoms(body, atoms_of(kind), kept);
  if (!has_atoms(kind)) return inspect_pairs(body, pair_layer_of(kind), kept);
  ConstBytes pairs, rows;
  if (!split_sketch(body, pairs, rows)) return Status::corrupt;
  std::uint64_t kept_rows = 0;
  Status status = pairs.empty() ? Status::ok : inspect_pairs(pairs, pair_layer_of(kind), kept);
  if (!failed(status)) status = cpu::inspect_atoms(rows, atoms_of(kind), kept_rows);
  kept += kept_rows;
  return status;
}

}  // namespace

const BodyDecoder kAtomsDecoder{describe, max_bytes, workspace, decode, count};

std::string PriceOptions::to_string() const {
  if (bits == 0) return "price=" + format_number(static_cast<double>(price));
  return "bits=" + format_number(bits) + (cap > 0 ? ",cap=" + format_number(cap) : "");
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

std::shared_ptr<const Method> make_atoms(const PriceOptions& options, bool rows) {
  return std::make_shared<Atoms>(rows, options);
}

}  // namespace atomo::codec
