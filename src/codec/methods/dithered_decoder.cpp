// SPDX-License-Identifier: Apache-2.0
/// Decoding bodies of the methods atoms and automatic (FORMAT.md, "atoms" and "automatic"): what a
/// row's form says that the body holds, pairs, rows, blocks or coordinates.

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
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
  const Status status =
      cpu::decode_pair_factors(body, layer, of.price, mode, of.key, out.executor, memory.factors);
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

/// A body with entries, without the word of thinned ones.
Status open_dithered(const LayerBody& from, const DitheredLayer& layer, ConstBytes& body,
                     float& gain) noexcept {
  body = from.bytes;
  const bool sound = from.price > 0 && (!from.is_thinned() || open_thinned(layer, body, gain));
  return sound ? Status::ok : Status::corrupt;
}

/// A sketch's factors and the bytes of its rows.
Status open_sketch(const LayerBody& from, const DitheredLayer& of, PairFactors& factors,
                   ConstBytes& rows, float& gain, Executor* executor) noexcept {
  ConstBytes body, pairs;
  if (const Status s = open_dithered(from, of, body, gain); failed(s)) return s;
  if (!split_sketch(body, pairs, rows)) return Status::corrupt;
  if (pairs.empty()) return Status::ok;
  return cpu::decode_pair_factors(pairs, of.pairs, from.price,
                                  {false, 1.0f, gain, from.is_centred()}, from.key, executor,
                                  factors);
}

LowRank low_rank_of(const PairLayer& layer, const PairFactors& factors) noexcept {
  const Sides sides(layer.view, factors);
  return {sides.left,         sides.right,     factors.kept,
          layer.view.columns, layer.view.rows, static_cast<float>(factors.scale)};
}

Status decode_sketch(const LayerOutput& out, const LayerBody& from,
                     const DitheredLayer& of) noexcept {
  ConstBytes rows;
  cpu::DecodeMode mode{out.add, out.alpha};
  Carver carver(out.workspace);
  DecodeMemory memory(of, carver);
  if (!carver.fits()) return Status::workspace_too_small;
  Status status = open_sketch(from, of, memory.factors, rows, mode.gain, out.executor);
  if (failed(status)) return status;
  float* const rest = mode.add ? memory.rest.data() : out.y;
  status = cpu::decode_atoms(rows, of.atoms, from.price, from.key, rest,
                             {false, 1.0f, mode.gain, from.is_centred()}, out.executor);
  if (failed(status)) return status;
  const LowRank sum = low_rank_of(of.pairs, memory.factors);
  std::atomic<bool> overflow{false};
  run_ranges(out.executor, sum.rows, 64, [&](std::size_t begin, std::size_t end) {
    const std::size_t at = begin * sum.columns;
    if (add_low_rank(sum, begin, end, rest + at, mode, out.y + at))
      overflow.store(true, std::memory_order_relaxed);
  });
  return overflow.load(std::memory_order_relaxed) ? Status::overflow : Status::ok;
}

Status decode_dithered(const LayerOutput& out, const DitheredLayer& layer,
                       const LayerBody& from) noexcept {
  if (from.bytes.empty()) {
    if (!out.add) std::fill_n(out.y, out.n, 0.0f);
    return Status::ok;
  }
  if (layer.is_sketch()) return decode_sketch(out, from, layer);
  cpu::DecodeMode mode{out.add, out.alpha, 1.0f, from.is_centred()};
  ConstBytes body;
  if (const Status s = open_dithered(from, layer, body, mode.gain); failed(s)) return s;
  if (layer.has_pairs()) return decode_singular_pairs(out, from, layer.pairs, body, mode);
  return cpu::decode_atoms(body, layer.atoms, from.price, from.key, out.y, mode, out.executor);
}

using Messages = std::array<cpu::AtomMessage, cpu::kBodiesAtOnce>;

/// Bodies of rows, or of blocks, which are added together.
void add_atoms(const LayerOutput& out, const DitheredLayer& layer) noexcept {
  Messages messages;
  for (std::size_t i = 0; i < out.bodies.size(); ++i) {
    const LayerBody& from = out.bodies[i];
    messages[i].price = from.price;
    messages[i].key = from.key;
    messages[i].centred = from.is_centred();
    if (!from.bytes.empty())
      messages[i].status = open_dithered(from, layer, messages[i].body, messages[i].gain);
  }
  cpu::add_atoms(std::span(messages).first(out.bodies.size()), layer.atoms, out.alpha, out.y);
  for (std::size_t i = 0; i < out.bodies.size(); ++i) out.bodies[i].status = messages[i].status;
}

/// What adding sketches together needs: the factors of all, and the rows of a stretch.
struct SketchesMemory {
  std::array<std::optional<PairFactors>, cpu::kBodiesAtOnce> factors;
  std::span<float> rows;
  SketchesMemory(const DitheredLayer& layer, std::size_t count, Carver& carver) noexcept {
    for (std::size_t i = 0; i < count; ++i) factors[i].emplace(layer.pairs, carver);
    const std::uint64_t most = std::min(cpu::atoms_together(layer.atoms), layer.atoms.count);
    rows = carver.take<float>(most * layer.atoms.length);
  }
};

/// Sketches that there is room for together: the workspace is that of one, whose rows are the whole tensor.
std::size_t sketches_together(const LayerOutput& out, const DitheredLayer& layer) noexcept {
  std::size_t count = out.bodies.size();
  for (; count > 1; --count) {
    Carver carver(out.workspace);
    SketchesMemory(layer, count, carver);
    if (carver.fits()) break;
  }
  return count;
}

/// `out` has as many bodies as there is room for. Those that kept nothing add nothing, not even zeros.
void add_sketches(const LayerOutput& out, const DitheredLayer& layer) noexcept {
  Carver carver(out.workspace);
  SketchesMemory memory(layer, out.bodies.size(), carver);
  Messages messages;
  std::array<LayerBody*, cpu::kBodiesAtOnce> of{};
  std::size_t count = 0;
  for (LayerBody& from : out.bodies) {
    from.status = Status::ok;
    if (from.bytes.empty()) continue;
    cpu::AtomMessage& message = messages[count];
    message.price = from.price;
    message.key = from.key;
    message.centred = from.is_centred();
    message.status =
        open_sketch(from, layer, *memory.factors[count], message.body, message.gain, nullptr);
    of[count++] = &from;
  }
  const auto add = [&](std::size_t m, std::uint64_t first, std::uint64_t end) noexcept {
    const LowRank sum = low_rank_of(layer.pairs, *memory.factors[m]);
    if (add_low_rank(sum, first, end, memory.rows.data(), {true, out.alpha},
                     out.y + first * sum.columns))
      messages[m].status = Status::overflow;
  };
  cpu::read_atoms(std::span(messages).first(count), layer.atoms, memory.rows.data(),
                  cpu::StretchAdder(add));
  for (std::size_t m = 0; m < count; ++m) of[m]->status = messages[m].status;
}

/// Bodies of one form. Singular pairs, and all on several threads, are decoded one after the other.
void decode_bodies(const LayerOutput& out, std::uint8_t form) noexcept {
  const DitheredLayer layer = dithered_layer(*out.kind, form);
  LayerOutput part = out;
  for (std::span<LayerBody> left = out.bodies; !left.empty();
       left = left.subspan(part.bodies.size())) {
    part.bodies = left;
    const bool together = left.size() > 1 && out.executor == nullptr;
    if (together && !layer.has_pairs()) return add_atoms(part, layer);
    part.bodies = left.first(together && layer.is_sketch() ? sketches_together(part, layer) : 1);
    if (part.bodies.size() > 1)
      add_sketches(part, layer);
    else
      left.front().status = decode_dithered(out, layer, left.front());
  }
}

void decode_atoms(const LayerOutput& out) noexcept { decode_bodies(out, 0); }

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

/// Coordinates are never thinned or centred.
bool is_grid(const LayerBody& body) noexcept {
  return body.row.form() == kGridForm && !body.is_thinned() && !body.is_centred();
}

/// Neighbours of one form go together.
void decode_automatic(const LayerOutput& out) noexcept {
  const Kind grid = coordinates_of(*out.kind);
  for (std::span<LayerBody> left = out.bodies; !left.empty();) {
    const LayerBody& first = left.front();
    const std::uint8_t form = first.row.form();
    const auto other = std::find_if(left.begin(), left.end(), [&](const LayerBody& body) {
      return body.row.form() != form || is_grid(body) != is_grid(first);
    });
    LayerOutput part = out;
    part.bodies = left.first(static_cast<std::size_t>(other - left.begin()));
    left = left.subspan(part.bodies.size());
    if (is_grid(first)) {
      part.kind = &grid;
      for (LayerBody& body : part.bodies) body.price = grid_step(body.price);
      decoders::coordinate.decode(part);
    } else if (form != kGridForm && has_form(fields_of(*out.kind), form)) {
      decode_bodies(part, form);
    } else {
      for (LayerBody& body : part.bodies) body.status = Status::corrupt;
    }
  }
}

Status count_automatic(ConstBytes body, const Kind& kind, std::uint8_t form, std::uint64_t& atoms,
                       std::uint64_t& kept) noexcept {
  if (!has_form(fields_of(kind), form)) return Status::corrupt;
  if (form != kGridForm) return count_dithered(body, kind, form, atoms, kept);
  return decoders::coordinate.count(body, coordinates_of(kind), 0, atoms, kept);
}

}  // namespace

const BodyDecoder decoders::atoms{describe_atoms, max_bytes, workspace, decode_atoms,
                                  count_dithered};
const BodyDecoder decoders::automatic{describe_automatic, max_bytes, workspace, decode_automatic,
                                      count_automatic};

}  // namespace atomo::codec
