// SPDX-License-Identifier: Apache-2.0
/// Writes bodies of dithered atoms, whose vectors are rows, blocks or the factors of pairs: draws
/// which atoms are kept, then writes marks, flags and classes, the lengths of the groups and their
/// dithered content (format/atom_body.hpp).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/workspace.hpp"
#include "cpu/atoms.hpp"
#include "cpu/pairs.hpp"
#include "cpu/pieces.hpp"
#include "format/atom_body.hpp"
#include "math/selection.hpp"

namespace atomo::cpu {
namespace {

static_assert(kSelectionChunk % 64 == 0);

/// Whole chunks of marks, so that a chunk's mask is stored as it is.
std::size_t mask_words(std::uint64_t atoms) noexcept {
  return round_up(marks_words(atoms), kSelectionChunk / 64);
}

/// Draws the marks of the atoms.
void draw_marks(DrawnAtoms& atoms, const Philox& draws) noexcept {
  for (std::size_t first = 0; first < atoms.rms.size(); first += kSelectionChunk) {
    const std::size_t size = std::min(kSelectionChunk, atoms.rms.size() - first);
    const KeptMask mask = select_chunk(atoms.rms.data() + first, size, atoms.price,
                                       draws(first / kSelectionChunk)[0]);
    for (std::size_t w = 0; w < mask.size(); ++w) {
      atoms.masks[first / 64 + w] = mask[w];
      atoms.kept += static_cast<std::uint64_t>(std::popcount(mask[w]));
    }
  }
}

/// Calls `visit(atom, choice)` for each kept atom, in order.
template <typename Visit>
void for_each_kept(const DrawnAtoms& atoms, Visit visit) {
  for_each_mark(atoms.marks(), [&](std::uint64_t atom) {
    visit(atom, choose_atom(atoms.rms[atom], atoms.price));
    return true;
  });
}

/// Certain flags, then classes. Returns the bytes written.
std::size_t write_flags(const DrawnAtoms& atoms, Bytes out) noexcept {
  BitWriter bits(out.data(), out.size());
  for_each_kept(atoms, [&](std::uint64_t, const AtomChoice& choice) {
    bits.put(choice.atom_class != 0 ? 1 : 0, 1);
  });
  for_each_kept(atoms, [&](std::uint64_t, const AtomChoice& choice) {
    if (choice.atom_class != 0) bits.put(choice.atom_class - 1u, kClassBits);
  });
  return bits.finish();
}

/// Where the entries of the atoms' vectors are.
template <typename Vectors>
using Sources = std::array<const float*, Vectors::kCount>;

/// Writes content and group lengths as pieces come.
template <typename Vectors>
class ContentWriter {
 public:
  ContentWriter(const Vectors& vectors, const Sources<Vectors>& x, const Key& key,
                std::byte* lengths, Bytes content) noexcept
      : x_(x),
        cutter_(vectors),
        batch_(vectors, key),
        pre_round_(draws_of(vectors, key, &VectorShape::pre_round)),
        lengths_(lengths),
        bits_(content.data(), content.size()) {}

  /// The entries of the atom's vectors stand at `place`.
  void add(std::uint64_t atom, std::uint64_t place, const AtomChoice& choice) noexcept {
    cutter_.cut(atom, place, choice, [&](const AtomPiece& piece) {
      if (!batch_.fits(piece)) flush();
      batch_.add(piece);
      const float* const x = entries_of(piece);
      for (std::uint32_t i = 0; i < piece.piece.entries; i += 16) __builtin_prefetch(x + i);
      return true;
    });
  }

  /// Returns the bytes of content.
  std::size_t finish() noexcept {
    flush();
    if (cutter_.in_group()) end_group();
    return bits_.finish();
  }

 private:
  [[nodiscard]] const float* entries_of(const AtomPiece& piece) const noexcept {
    return x_[piece.vector] + piece.offset;
  }

  void flush() noexcept {
    batch_.draw();
    for (const AtomPiece& piece : batch_.pieces()) {
      encode_piece(entries_of(piece), piece.piece, piece.scale, *piece.coding,
                   pre_round_[piece.vector], batch_.levels(piece), bits_);
      if (piece.ends_group) end_group();
    }
    batch_.clear();
  }

  void end_group() noexcept {
    store_le(lengths_, static_cast<std::uint16_t>(bits_.position() - group_begin_));
    lengths_ += 2;
    group_begin_ = bits_.position();
  }

  Sources<Vectors> x_;
  PieceCutter<Vectors> cutter_;
  PieceBatch<Vectors> batch_;
  std::array<Philox, Vectors::kCount> pre_round_;
  std::uint64_t group_begin_ = 0;
  std::byte* lengths_;
  BitWriter bits_;
};

/// All sections; returns the bytes of the body.
template <typename Vectors>
std::size_t write_body(const DrawnAtoms& atoms, const Vectors& vectors, const Sources<Vectors>& x,
                       AtomPlaces places, const Key& key, Bytes out) noexcept {
  const MarksChoice plan = choose_marks(atoms.marks(), atoms.rms.size());
  write_marks(plan, atoms.marks(), atoms.rms.size(), out.data());
  const std::size_t flags_end = plan.bytes + write_flags(atoms, out.subspan(plan.bytes));
  const std::size_t lengths = round_up(flags_end, 2);
  if (lengths != flags_end) out[lengths - 1] = std::byte{0};
  const std::size_t content =
      lengths + 2 * GroupShape::of(vectors.frame().length).groups(atoms.kept);
  ContentWriter writer(vectors, x, key, out.data() + lengths, out.subspan(content));
  std::uint64_t rank = 0;
  for_each_kept(atoms, [&](std::uint64_t atom, const AtomChoice& choice) {
    writer.add(atom, places == AtomPlaces::own ? atom : rank, choice);
    ++rank;
  });
  const std::size_t end = content + writer.finish(), padded = round_up(end, 4);
  std::fill(out.data() + end, out.data() + padded, std::byte{0});
  return padded;
}

double largest_of(std::span<const double> amplitudes) noexcept {
  double largest = 0;
  for (const double amplitude : amplitudes) largest = std::max(largest, amplitude);
  return largest;
}

/// Whether atoms of up to this amplitude can be sent at a price.
bool can_send(double largest, float price) noexcept {
  return price > 0 && std::isfinite(price) && largest / static_cast<double>(price) < kTopRatio;
}

}  // namespace

std::size_t encode_workspace_bytes(std::uint64_t atoms) noexcept {
  Carver carver;
  carver.take<std::uint64_t>(mask_words(atoms));
  return carver.bytes();
}

Status draw_atoms(const AtomLayout& layout, const double* rms, float price, const Key& key,
                  Bytes workspace, DrawnAtoms& atoms) noexcept {
  atoms = DrawnAtoms{};
  if (!valid_layout(layout)) return Status::unsupported;
  const std::span<const double> amplitudes(rms, layout.count);
  const double largest = largest_of(amplitudes);
  if (largest == 0) return Status::ok;
  if (!can_send(largest, price)) return Status::corrupt;
  Carver carver(workspace);
  atoms = {amplitudes, price, carver.take<std::uint64_t>(mask_words(layout.count))};
  if (!carver.fits()) return Status::workspace_too_small;
  draw_marks(atoms, Philox(key, purposes_of(layout.family).select));
  return Status::ok;
}

Status write_atoms(const float* x, AtomPlaces places, const AtomLayout& layout,
                   const DrawnAtoms& atoms, const Key& key, Bytes out, AtomBody& body) noexcept {
  body = AtomBody{};
  if (atoms.kept == 0) return Status::ok;
  if (out.size() < max_body_bytes(layout)) return Status::buffer_too_small;
  body.kept = atoms.kept;
  body.bytes = write_body(atoms, SingleVectors(layout, atoms.price), {x}, places, key, out);
  return Status::ok;
}

Status encode_atoms(const float* x, const AtomLayout& layout, const double* rms, float price,
                    const Key& key, Bytes out, Bytes workspace, AtomBody& body) noexcept {
  body = AtomBody{};
  DrawnAtoms atoms;
  if (const Status s = draw_atoms(layout, rms, price, key, workspace, atoms); failed(s)) return s;
  return write_atoms(x, AtomPlaces::own, layout, atoms, key, out, body);
}

Status encode_pairs(const SingularPairs& pairs, const PairLayer& layer,
                    std::span<const double> amplitudes, float price, const Key& key, Bytes body,
                    Bytes workspace, std::size_t& bytes) noexcept {
  bytes = 0;
  const double largest = largest_of(amplitudes);
  if (largest == 0) return Status::ok;
  if (!can_send(largest, price)) return Status::unsupported;
  Carver carver(workspace);
  DrawnAtoms atoms{amplitudes, price, carver.take<std::uint64_t>(mask_words(layer.count))};
  if (!carver.fits()) return Status::workspace_too_small;
  draw_marks(atoms, Philox(key, Purpose::select_pair));
  if (atoms.kept == 0) return Status::ok;
  bytes = write_body(atoms, PairVectors(layer, price, 1, pairs.exponent),
                     {pairs.shorter.data(), pairs.longer.data()}, AtomPlaces::own, key, body);
  return Status::ok;
}

}  // namespace atomo::cpu
