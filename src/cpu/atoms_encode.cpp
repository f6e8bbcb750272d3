// SPDX-License-Identifier: Apache-2.0
/// Writes bodies of rows and blocks: draws which atoms are kept, then writes marks, flags and
/// classes, the lengths of the groups and their dithered content (format/atom_body.hpp).
#include <algorithm>
#include <bit>
#include <cmath>

#include "core/workspace.hpp"
#include "cpu/atoms.hpp"
#include "cpu/pieces.hpp"
#include "format/atom_body.hpp"
#include "math/selection.hpp"

namespace atomo::cpu {
namespace {

static_assert(kSelectionChunk % 64 == 0);

/// Whole chunks of marks, so that a chunk's mask is stored as it is.
std::size_t mask_words(const AtomLayout& layout) noexcept {
  return round_up(marks_words(layout.count), kSelectionChunk / 64);
}

/// Everything the steps of one call share.
struct Encoding {
  const float* x;
  const AtomLayout& layout;
  const double* rms;
  float price;
  const Key& key;
  std::span<std::uint64_t> marks;

  /// Calls `visit(atom)` for each kept atom, in order.
  template <typename Visit>
  void for_each_kept(Visit visit) const {
    for (std::size_t w = 0; w < marks.size(); ++w) {
      for (std::uint64_t left = marks[w]; left != 0; left &= left - 1) {
        visit(std::uint64_t{w} * 64 + static_cast<std::uint64_t>(std::countr_zero(left)));
      }
    }
  }
};

std::uint64_t select(const Encoding& e) noexcept {
  const Philox draws(e.key, purposes_of(e.layout.family).select);
  std::uint64_t kept = 0;
  for (std::uint64_t first = 0, chunk = 0; first < e.layout.count;
       first += kSelectionChunk, ++chunk) {
    const std::size_t size = std::min<std::uint64_t>(kSelectionChunk, e.layout.count - first);
    const KeptMask mask = select_chunk(e.rms + first, size, e.price, draws(chunk)[0]);
    for (std::size_t w = 0; w < mask.size(); ++w) {
      e.marks[first / 64 + w] = mask[w];
      kept += static_cast<std::uint64_t>(std::popcount(mask[w]));
    }
  }
  return kept;
}

/// Certain flags, then classes. Returns the bytes written.
std::size_t write_flags(const Encoding& e, std::byte* out, std::size_t capacity) noexcept {
  BitWriter bits(out, capacity);
  e.for_each_kept([&](std::uint64_t t) {
    bits.put(choose_atom(e.rms[t], e.price).atom_class != 0 ? 1 : 0, 1);
  });
  e.for_each_kept([&](std::uint64_t t) {
    const std::uint8_t c = choose_atom(e.rms[t], e.price).atom_class;
    if (c != 0) bits.put(c - 1u, kClassBits);
  });
  return bits.finish();
}

/// Writes content and group lengths as pieces come.
class ContentWriter {
 public:
  ContentWriter(const Encoding& e, std::byte* lengths, std::byte* content,
                std::size_t capacity) noexcept
      : encoding_(e),
        codings_(e.layout.length, e.price),
        last_codings_(e.layout.last, e.price),
        pre_round_(e.key, purposes_of(e.layout.family).pre_round),
        dither_(e.key, purposes_of(e.layout.family).dither),
        shape_(GroupShape::of(e.layout.length)),
        lengths_(lengths),
        bits_(content, capacity) {}

  void add(std::uint64_t atom) noexcept {
    const std::uint64_t length = encoding_.layout.length_of(atom);
    const AtomChoice choice = choose_atom(encoding_.rms[atom], encoding_.price);
    for (std::uint64_t from = 0; from < length; from += kPieceEntries) {
      const auto entries =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kPieceEntries, length - from));
      if (!batch_.fits(entries)) flush();
      PieceBatch::Item item;
      // Draws are laid out by the tiles of a whole atom: a short last one must not reach into
      // another's.
      item.piece = {atom, (encoding_.layout.length + kTile - 1) / kTile, from / kTile, entries};
      item.offset = atom * encoding_.layout.length + from;
      item.atom_class = choice.atom_class;
      item.ends_group = shape_.atoms == 1 || ++in_group_ == shape_.atoms;
      if (item.ends_group) in_group_ = 0;
      scales_[batch_.items().size()] = codings(atom).scale(choice.atom_class, choice.probability);
      batch_.add(item);
      const float* const x = encoding_.x + item.offset;
      for (std::uint32_t i = 0; i < entries; i += 16) __builtin_prefetch(x + i);
    }
  }

  /// Returns the bytes of content.
  std::size_t finish() noexcept {
    flush();
    if (in_group_ != 0) end_group();
    return bits_.finish();
  }

 private:
  /// The last atom may be shorter: its escapes are.
  [[nodiscard]] const ClassCodings& codings(std::uint64_t atom) const noexcept {
    return atom + 1 == encoding_.layout.count ? last_codings_ : codings_;
  }

  void flush() noexcept {
    batch_.draw(dither_);
    std::size_t i = 0;
    for (const PieceBatch::Item& item : batch_.items()) {
      encode_piece(encoding_.x + item.offset, item.piece, scales_[i++],
                   codings(item.piece.vector).coding(item.atom_class), pre_round_,
                   batch_.levels(item), bits_);
      if (item.ends_group) end_group();
    }
    batch_.clear();
  }

  void end_group() noexcept {
    store_le(lengths_, static_cast<std::uint16_t>(bits_.position() - group_begin_));
    lengths_ += 2;
    group_begin_ = bits_.position();
  }

  const Encoding& encoding_;
  ClassCodings codings_, last_codings_;
  Philox pre_round_, dither_;
  GroupShape shape_;
  PieceBatch batch_;
  VectorScale scales_[PieceBatch::kLevelGroups];
  std::uint64_t in_group_ = 0, group_begin_ = 0;
  std::byte* lengths_;
  BitWriter bits_;
};

/// All sections; returns the bytes of the body.
std::size_t write_body(const Encoding& e, std::uint64_t kept, Bytes out) noexcept {
  const MarksPlan plan = plan_marks(e.marks.first(marks_words(e.layout.count)), e.layout.count);
  write_marks(plan, e.marks.first(marks_words(e.layout.count)), e.layout.count, out.data());
  const std::size_t flag_bytes = write_flags(e, out.data() + plan.bytes, out.size() - plan.bytes);
  const std::size_t lengths = round_up(plan.bytes + flag_bytes, 2);
  if (lengths != plan.bytes + flag_bytes) out[lengths - 1] = std::byte{0};
  const std::size_t content = lengths + 2 * GroupShape::of(e.layout.length).groups(kept);
  ContentWriter writer(e, out.data() + lengths, out.data() + content, out.size() - content);
  e.for_each_kept([&](std::uint64_t atom) { writer.add(atom); });
  const std::size_t end = content + writer.finish(), padded = round_up(end, 4);
  std::fill(out.data() + end, out.data() + padded, std::byte{0});
  return padded;
}

}  // namespace

std::size_t encode_workspace_bytes(const AtomLayout& layout) noexcept {
  Carver carver;
  carver.take<std::uint64_t>(mask_words(layout));
  return carver.bytes();
}

Status encode_atoms(const float* x, const AtomLayout& layout, const double* rms, float price,
                    const Key& key, Bytes out, Bytes workspace, AtomBody& body) noexcept {
  body = AtomBody{};
  if (!valid_layout(layout)) return Status::unsupported;
  double max_rms = 0;
  for (std::uint64_t t = 0; t < layout.count; ++t) max_rms = std::max(max_rms, rms[t]);
  if (max_rms == 0) return Status::ok;
  if (!(price > 0) || !std::isfinite(price) ||
      !(max_rms / static_cast<double>(price) < kTopRatio)) {
    return Status::corrupt;
  }
  if (out.size() < max_body_bytes(layout)) return Status::buffer_too_small;
  Carver carver(workspace);
  const Encoding encoding{x,     layout, rms,
                          price, key,    carver.take<std::uint64_t>(mask_words(layout))};
  if (!carver.fits()) return Status::workspace_too_small;
  body.kept = select(encoding);
  if (body.kept != 0) body.bytes = write_body(encoding, body.kept, out);
  return Status::ok;
}

}  // namespace atomo::cpu
