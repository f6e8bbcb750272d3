// SPDX-License-Identifier: Apache-2.0
/// Decoding bodies of the methods atoms and automatic (FORMAT.md, "atoms" and "automatic"): what a
/// row's form says that the body holds, pairs, rows, blocks or coordinates.

#include <algorithm>
#include <atomic>
#include <utility>

#include "codec/body_decoder.hpp"
#include "core/bits.hpp"
#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "cpu/atoms.hpp"
#include "cpu/low_rank.hpp"
#include "cpu/outer_products.hpp"
#include "cpu/pairs.hpp"
#include "format/atom_body.hpp"
#include "format/dithered_layer.hpp"
#include "format/thinning.hpp"
#include "price/grid_form.hpp"

namespace atomo::codec {
namespace {

std::string describe_atoms(const Kind& kind) {
  switch (family_of(kind.params)) {
    case Family::blocks:
      return "atomo:atoms=blocks";
    case Family::rows:
      return "atomo:atoms=rows";
    case Family::pairs:
      return "atomo:atoms=svd";
    default:
      return "atomo:atoms=sketch,rank=" + std::to_string(format::rank_of(kind.params));
  }
}

std::string describe_automatic(const Kind& kind) {
  return "atomo:atoms=auto" + (kind.params == 0 ? "" : ",rank=" + std::to_string(kind.params));
}

/// What decoding pairs needs; a sketch's rows too, when they are added to a tensor.
struct DecodeMemory {
  PairFactors factors;
  std::span<float> rest;
  DecodeMemory(const DitheredLayer& layer, Carver& carver) noexcept
      : factors(layer.pairs, carver), rest(carver.take<float>(layer.atoms.elements())) {}
};

std::size_t workspace_of(const DitheredLayer& layer) noexcept {
  if (!layer.has_pairs()) return 0;
  Carver carver;
  DecodeMemory(layer, carver);
  return carver.bytes();
}

std::size_t max_bytes_of(const DitheredLayer& layer) noexcept {
  std::size_t bytes = layer.is_sketch() ? kPairBytesField : 0;
  if (layer.has_pairs()) bytes += max_pairs_body_bytes(layer.pairs);
  if (layer.has_atoms()) bytes += max_body_bytes(layer.atoms);
  return bytes;
}

/// Takes the word of a thinned body off its front.
bool open_thinned(const DitheredLayer& layer, ConstBytes& body, float& gain) noexcept {
  Thinning thinning;
  if (!layer.has_atoms() || body.size() <= kThinningBytes) return false;
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

Status decode_singular_pairs(const LayerOutput& out, const LayerBody& of, const PairLayer& layer,
                             ConstBytes body, cpu::DecodeMode mode) noexcept {
  Carver carver(out.workspace);
  DecodeMemory memory({layer, {}}, carver);
  if (!carver.fits()) return Status::workspace_too_small;
  const Status status = cpu::decode_pair_factors(body, layer, of.price, mode.gain, of.key,
                                                 out.executor, memory.factors);
  if (failed(status)) return status;
  const Sides sides(layer.view, memory.factors);
  return sum_outer_products({sides.left, sides.right, memory.factors.kept, layer.view.rows,
                             layer.view.columns, memory.factors.scale},
                            mode, out.y, out.executor);
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

Status decode_sketch(const LayerOutput& out, const LayerBody& from, const DitheredLayer& of,
                     ConstBytes body, cpu::DecodeMode mode) noexcept {
  ConstBytes pairs, rows;
  if (!split_sketch(body, pairs, rows)) return Status::corrupt;
  Carver carver(out.workspace);
  DecodeMemory memory(of, carver);
  if (!carver.fits()) return Status::workspace_too_small;
  const PairLayer& layer = of.pairs;
  if (!pairs.empty()) {
    const Status status = cpu::decode_pair_factors(pairs, layer, from.price, mode.gain, from.key,
                                                   out.executor, memory.factors);
    if (failed(status)) return status;
  }
  float* const rest = mode.add ? memory.rest.data() : out.y;
  const Status status = cpu::decode_atoms(rows, of.atoms, from.price, from.key, rest,
                                          {false, 1.0f, mode.gain}, out.executor);
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

Status decode_dithered(const LayerOutput& out, const LayerBody& from) noexcept {
  if (from.bytes.empty()) {
    if (!out.add) std::fill_n(out.y, out.n, 0.0f);
    return Status::ok;
  }
  if (!(from.price > 0)) return Status::corrupt;
  const DitheredLayer layer = dithered_layer(*out.kind, from.row.form());
  cpu::DecodeMode mode{out.add, out.alpha};
  ConstBytes body = from.bytes;
  if (from.is_thinned() && !open_thinned(layer, body, mode.gain)) return Status::corrupt;
  if (!layer.has_pairs())
    return cpu::decode_atoms(body, layer.atoms, from.price, from.key, out.y, mode, out.executor);
  return layer.is_sketch() ? decode_sketch(out, from, layer, body, mode)
                           : decode_singular_pairs(out, from, layer.pairs, body, mode);
}

Status count_dithered(ConstBytes body, const Kind& kind, std::uint8_t form, std::uint64_t& atoms,
                      std::uint64_t& kept) noexcept {
  const DitheredLayer layer = dithered_layer(kind, form);
  atoms = layer.pairs.count + layer.atoms.count;
  kept = 0;
  if (body.empty()) return Status::ok;
  if (!layer.has_pairs()) return cpu::inspect_atoms(body, layer.atoms, kept);
  if (!layer.has_atoms()) return cpu::inspect_pairs(body, layer.pairs, kept);
  ConstBytes pairs, rows;
  if (!split_sketch(body, pairs, rows)) return Status::corrupt;
  std::uint64_t kept_rows = 0;
  Status status = pairs.empty() ? Status::ok : cpu::inspect_pairs(pairs, layer.pairs, kept);
  if (!failed(status)) status = cpu::inspect_atoms(rows, layer.atoms, kept_rows);
  kept += kept_rows;
  return status;
}

// ---- automatic: coordinates too

/// What a body of coordinates is, by itself.
Kind coordinates_of(const Kind& kind) noexcept {
  return {MethodId::coordinate, kind.dtype, 0, kind.shape};
}

std::size_t max_bytes(const Kind& kind) noexcept {
  const bool automatic = kind.method == MethodId::automatic;
  std::size_t bytes = automatic ? decoders::coordinate.max_body_bytes(coordinates_of(kind)) : 0;
  for_each_form(kind, [&](std::uint8_t, const DitheredLayer& layer) {
    bytes = std::max(bytes, max_bytes_of(layer));
  });
  return bytes;
}

std::size_t workspace(const Kind& kind) noexcept {
  const bool automatic = kind.method == MethodId::automatic;
  std::size_t bytes = automatic ? decoders::coordinate.workspace_bytes(coordinates_of(kind)) : 0;
  for_each_form(kind, [&](std::uint8_t, const DitheredLayer& layer) {
    bytes = std::max(bytes, workspace_of(layer));
  });
  return bytes;
}

bool is_grid(const LayerBody& body) noexcept { return body.row.form() == kGridForm; }

Status decode_form(const LayerOutput& out, const LayerBody& body) noexcept {
  if (!has_form(fields_of(*out.kind), body.row.form()) || is_grid(body)) return Status::corrupt;
  return decode_dithered(out, body);
}

/// Neighbours that are coordinates, which are never thinned, go together.
void decode_automatic(const LayerOutput& out) noexcept {
  const Kind kind = coordinates_of(*out.kind);
  const auto is_other = [](const LayerBody& body) { return !is_grid(body) || body.is_thinned(); };
  for (std::span<LayerBody> left = out.bodies; !left.empty();) {
    LayerOutput part = out;
    const auto other = std::find_if(left.begin(), left.end(), is_other);
    part.bodies = left.first(static_cast<std::size_t>(other - left.begin()));
    if (part.bodies.empty()) {
      part.bodies = left.first(1);
      decode_each<decode_form>(part);
      left = left.subspan(1);
      continue;
    }
    left = left.subspan(part.bodies.size());
    part.kind = &kind;
    for (LayerBody& body : part.bodies) body.price = grid_step(body.price);
    decoders::coordinate.decode(part);
  }
}

Status count_automatic(ConstBytes body, const Kind& kind, std::uint8_t form, std::uint64_t& atoms,
                       std::uint64_t& kept) noexcept {
  if (!has_form(fields_of(kind), form)) return Status::corrupt;
  if (form != kGridForm) return count_dithered(body, kind, form, atoms, kept);
  return decoders::coordinate.count(body, coordinates_of(kind), 0, atoms, kept);
}

}  // namespace

const BodyDecoder decoders::atoms{describe_atoms, max_bytes, workspace,
                                  decode_each<decode_dithered>, count_dithered};
const BodyDecoder decoders::automatic{describe_automatic, max_bytes, workspace, decode_automatic,
                                      count_automatic};

}  // namespace atomo::codec
