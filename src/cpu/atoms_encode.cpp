// SPDX-License-Identifier: Apache-2.0
/// Writes bodies of dithered atoms, whose vectors are rows, blocks or the factors of pairs: draws
/// which atoms are kept, then writes marks, flags and classes, the lengths of the groups and their
/// dithered content (format/atom_body.hpp).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/run_tasks.hpp"
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

/// Finds the marks of the atoms.
void draw_marks(DrawnAtoms& atoms, const Philox& draws) noexcept {
  for (std::size_t first = 0; first < atoms.rms.size(); first += kSelectionChunk) {
    const std::size_t size = std::min(kSelectionChunk, atoms.rms.size() - first);
    const double* const rms = atoms.rms.data() + first;
    const KeptMask mask =
        atoms.selection == Selection::nearest
            ? select_nearest(rms, size, atoms.price)
            : select_chunk(rms, size, atoms.price, draws(first / kSelectionChunk)[0]);
    for (std::size_t w = 0; w < mask.size(); ++w) {
      atoms.masks[first / 64 + w] = mask[w];
      atoms.kept += static_cast<std::uint64_t>(std::popcount(mask[w]));
    }
  }
}

/// Calls `visit(atom, choice)` for the kept atoms from number `first` to before `end`, in order.
template <typename Visit>
void for_each_kept(const DrawnAtoms& atoms, std::uint64_t first, std::uint64_t end, Visit visit) {
  const std::span<const std::uint64_t> marks = atoms.marks();
  std::uint64_t number = 0;
  for (std::size_t w = 0; number < end; ++w) {
    std::uint64_t word = marks[w];
    const auto count = static_cast<std::uint64_t>(std::popcount(word));
    if (number + count <= first) {
      number += count;
      continue;
    }
    for (; word != 0 && number < end; word &= word - 1, ++number) {
      if (number < first) continue;
      const std::uint64_t atom = 64 * w + static_cast<std::uint64_t>(std::countr_zero(word));
      visit(atom, choose_atom(atoms.rms[atom], atoms.price));
    }
  }
}

/// Certain flags, then classes. Returns the bytes written.
std::size_t write_flags(const DrawnAtoms& atoms, Bytes out) noexcept {
  BitWriter bits(out.data(), out.size());
  for_each_kept(atoms, 0, atoms.kept, [&](std::uint64_t, const AtomChoice& choice) {
    bits.put(choice.atom_class != 0 ? 1 : 0, 1);
  });
  for_each_kept(atoms, 0, atoms.kept, [&](std::uint64_t, const AtomChoice& choice) {
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
        groups_(content.data(), content.size()) {}

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

  /// Returns the bits of content; more than there is room for when it did not fit.
  std::uint64_t finish() noexcept {
    flush();
    if (cutter_.in_group()) end_group();
    return groups_.finish();
  }

 private:
  [[nodiscard]] const float* entries_of(const AtomPiece& piece) const noexcept {
    return x_[piece.vector] + piece.offset;
  }

  void flush() noexcept {
    batch_.draw();
    for (const AtomPiece& piece : batch_.pieces()) {
      encode_piece(entries_of(piece), piece.piece, piece.upward, piece.scale, *piece.coding,
                   pre_round_[piece.vector], batch_.levels(piece), groups_);
      if (piece.ends_group) end_group();
    }
    batch_.clear();
  }

  void end_group() noexcept {
    store_le(lengths_, static_cast<std::uint16_t>(groups_.end_group()));
    lengths_ += 2;
  }

  Sources<Vectors> x_;
  PieceCutter<Vectors> cutter_;
  PieceBatch<Vectors> batch_;
  std::array<Philox, Vectors::kCount> pre_round_;
  std::byte* lengths_;
  GroupWriter groups_;
};

/// Appends bits that stand behind those of `out`, from a byte on, to its first `bits`.
void append_bits(std::byte* out, std::uint64_t bits, const std::byte* from,
                 std::uint64_t count) noexcept {
  std::byte* const to = out + bits / 8;
  const auto shift = static_cast<unsigned>(bits % 8);
  const std::size_t bytes = (count + 7) / 8;
  if (shift == 0) {
    std::memmove(to, from, bytes);
    return;
  }
  std::uint64_t carry = std::to_integer<std::uint64_t>(to[0]) & ((1u << shift) - 1);
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    const auto word = load_le<std::uint64_t>(from + i);
    store_le(to + i, word << shift | carry);
    carry = word >> (64 - shift);
  }
  for (; i < bytes; ++i) {
    const auto byte = std::to_integer<std::uint64_t>(from[i]);
    to[i] = static_cast<std::byte>((byte << shift | carry) & 0xFF);
    carry = byte >> (8 - shift);
  }
  if (bits % 8 + count > 8 * bytes) to[bytes] = static_cast<std::byte>(carry);
}

/// The content of a body, written in stretches of whole groups.
template <typename Vectors>
class Content {
 public:
  Content(const DrawnAtoms& atoms, const Vectors& vectors, const Sources<Vectors>& x,
          AtomPlaces places, const Key& key, std::byte* lengths, Bytes out) noexcept
      : atoms_(atoms),
        vectors_(vectors),
        x_(x),
        places_(places),
        key_(key),
        groups_(GroupShape::of(vectors.frame().length)),
        lengths_(lengths),
        out_(out) {}

  /// Returns its bytes.
  std::size_t write(Executor* executor) const noexcept {
    std::uint64_t bits = executor == nullptr ? kDoesNotFit : write_at_once(executor);
    if (bits == kDoesNotFit) bits = write_stretch(0, atoms_.kept, out_);
    return (bits + 7) / 8;
  }

 private:
  static constexpr std::uint64_t kDoesNotFit = ~std::uint64_t{0};
  /// Entries of a stretch that is worth a task, and stretches at most.
  static constexpr std::uint64_t kStretchEntries = std::uint64_t{1} << 16;
  static constexpr std::size_t kMaxStretches = 64;

  std::uint64_t write_stretch(std::uint64_t first, std::uint64_t end, Bytes out) const noexcept {
    ContentWriter writer(vectors_, x_, key_, lengths_ + 2 * groups_.groups(first), out);
    std::uint64_t number = first;
    for_each_kept(atoms_, first, end, [&](std::uint64_t atom, const AtomChoice& choice) {
      writer.add(atom, places_ == AtomPlaces::own ? atom : number, choice);
      ++number;
    });
    return writer.finish();
  }

  /// Each stretch has a part of the room for itself; then they are put together. Returns the bits;
  /// `kDoesNotFit` where a part was too small.
  std::uint64_t write_at_once(Executor* executor) const noexcept {
    const std::uint64_t entries = std::max<std::uint64_t>(1, vectors_.frame().length);
    std::uint64_t each = std::max(kStretchEntries / entries, atoms_.kept / kMaxStretches + 1);
    each = round_up(each, groups_.atoms);
    const std::size_t count = (atoms_.kept + each - 1) / each;
    if (count <= 1) return kDoesNotFit;
    const std::size_t room = out_.size() / count / 8 * 8;
    std::array<std::uint64_t, kMaxStretches> bits;
    core::run_tasks(executor, count, [&](std::size_t s) {
      bits[s] = write_stretch(s * each, std::min(atoms_.kept, (s + 1) * each),
                              out_.subspan(s * room, room));
    });
    if (std::find(bits.begin(), bits.begin() + count, kDoesNotFit) != bits.begin() + count)
      return kDoesNotFit;
    std::uint64_t all = bits[0];
    for (std::size_t s = 1; s < count; ++s) {
      append_bits(out_.data(), all, out_.data() + s * room, bits[s]);
      all += bits[s];
    }
    return all;
  }

  const DrawnAtoms& atoms_;
  const Vectors& vectors_;
  Sources<Vectors> x_;
  AtomPlaces places_;
  Key key_;
  GroupShape groups_;
  std::byte* lengths_;
  Bytes out_;
};

/// All sections; returns the bytes of the body.
template <typename Vectors>
std::size_t write_body(const DrawnAtoms& atoms, const Vectors& vectors, const Sources<Vectors>& x,
                       AtomPlaces places, const Key& key, Executor* executor, Bytes out) noexcept {
  const MarksChoice plan = choose_marks(atoms.marks(), atoms.rms.size());
  write_marks(plan, atoms.marks(), atoms.rms.size(), out.data());
  const std::size_t flags_end = plan.bytes + write_flags(atoms, out.subspan(plan.bytes));
  const std::size_t lengths = round_up(flags_end, 2);
  if (lengths != flags_end) out[lengths - 1] = std::byte{0};
  const std::size_t content =
      lengths + 2 * GroupShape::of(vectors.frame().length).groups(atoms.kept);
  const Content all(atoms, vectors, x, places, key, out.data() + lengths, out.subspan(content));
  const std::size_t end = content + all.write(executor), padded = round_up(end, 4);
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
                  Bytes workspace, DrawnAtoms& atoms, Selection selection) noexcept {
  atoms = DrawnAtoms{};
  if (!valid_layout(layout)) return Status::unsupported;
  const std::span<const double> amplitudes(rms, layout.count);
  const double largest = largest_of(amplitudes);
  if (largest == 0) return Status::ok;
  if (!can_send(largest, price)) return Status::corrupt;
  Carver carver(workspace);
  atoms = {amplitudes, price, carver.take<std::uint64_t>(mask_words(layout.count)), 0, selection};
  if (!carver.fits()) return Status::workspace_too_small;
  draw_marks(atoms, Philox(key, purposes_of(layout.family).select));
  return Status::ok;
}

Status write_atoms(const float* x, AtomPlaces places, const AtomLayout& layout,
                   const DrawnAtoms& atoms, const Key& key, Executor* executor, Bytes out,
                   AtomBody& body) noexcept {
  body = AtomBody{};
  if (atoms.kept == 0) return Status::ok;
  if (out.size() < max_body_bytes(layout)) return Status::buffer_too_small;
  body.kept = atoms.kept;
  body.bytes =
      write_body(atoms, SingleVectors(layout, atoms.price, atoms.selection == Selection::nearest),
                 {x}, places, key, executor, out);
  return Status::ok;
}

Status encode_atoms(const float* x, const AtomLayout& layout, const double* rms, float price,
                    const Key& key, Executor* executor, Bytes out, Bytes workspace, AtomBody& body,
                    Selection selection) noexcept {
  body = AtomBody{};
  DrawnAtoms atoms;
  if (const Status s = draw_atoms(layout, rms, price, key, workspace, atoms, selection); failed(s))
    return s;
  return write_atoms(x, AtomPlaces::own, layout, atoms, key, executor, out, body);
}

Status encode_pairs(const SingularPairs& pairs, const PairLayer& layer,
                    std::span<const double> amplitudes, float price, const Key& key,
                    Executor* executor, Bytes body, Bytes workspace, std::size_t& bytes,
                    Selection selection) noexcept {
  bytes = 0;
  const double largest = largest_of(amplitudes);
  if (largest == 0) return Status::ok;
  if (!can_send(largest, price)) return Status::unsupported;
  Carver carver(workspace);
  DrawnAtoms atoms{amplitudes, price, carver.take<std::uint64_t>(mask_words(layer.count)), 0,
                   selection};
  if (!carver.fits()) return Status::workspace_too_small;
  draw_marks(atoms, Philox(key, Purpose::select_pair));
  if (atoms.kept == 0) return Status::ok;
  bytes = write_body(
      atoms, PairVectors(layer, price, selection == Selection::nearest, 1, pairs.exponent),
      {pairs.shorter.data(), pairs.longer.data()}, AtomPlaces::own, key, executor, body);
  return Status::ok;
}

}  // namespace atomo::cpu
