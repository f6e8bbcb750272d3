// SPDX-License-Identifier: Apache-2.0
/// Reads bodies of rows and blocks front to back: marks, flags, classes, then the content of the
/// kept atoms in batches whose levels are drawn together.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/atoms.hpp"
#include "cpu/pieces.hpp"
#include "format/atom_body.hpp"

namespace atomo::cpu {
namespace {

/// Reads a body front to back: every kept atom takes its flag, its class and its content in turn.
class ContentReader {
 public:
  ContentReader(ConstBytes body, const BodyIndex& index, const AtomLayout& layout, float price,
                const Key& key, float* y, DecodeMode mode) noexcept
      : layout_(layout),
        codings_(layout.length, price, mode.gain),
        last_codings_(layout.last, price, mode.gain),
        dither_(key, purposes_of(layout.family).dither),
        shape_(GroupShape::of(layout.length)),
        flags_(body.data() + index.flags, index.lengths - index.flags),
        content_(body.data() + index.content, body.size() - index.content),
        lengths_(body.data() + index.lengths),
        class_bit_(index.kept),
        y_(y),
        mode_(mode) {}

  /// False: a group did not end where its length said.
  [[nodiscard]] bool add(std::uint64_t atom) noexcept {
    const std::uint64_t length = layout_.length_of(atom);
    if (!mode_.add) zero_up_to(atom * layout_.length);
    next_entry_ = atom * layout_.length + length;
    const std::uint8_t atom_class = next_class();
    for (std::uint64_t from = 0; from < length; from += kPieceEntries) {
      const auto entries =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kPieceEntries, length - from));
      if (!batch_.fits(entries) && !flush()) return false;
      PieceBatch::Item item;
      item.piece = {atom, (layout_.length + kTile - 1) / kTile, from / kTile, entries};
      item.offset = atom * layout_.length + from;
      item.atom_class = atom_class;
      item.ends_group = shape_.atoms == 1 || ++in_group_ == shape_.atoms;
      if (item.ends_group) in_group_ = 0;
      batch_.add(item);
    }
    return true;
  }

  [[nodiscard]] bool finish() noexcept {
    if (!flush()) return false;
    if (!mode_.add) zero_up_to(layout_.elements());
    return !group_open_ || bit_ == group_end_;
  }

 private:
  [[nodiscard]] std::uint8_t next_class() noexcept {
    if (flags_.bits(flag_bit_++, 1) == 0) return 0;
    const std::uint64_t c = flags_.bits(class_bit_, kClassBits) + 1;
    class_bit_ += kClassBits;
    return static_cast<std::uint8_t>(c);
  }

  void zero_up_to(std::uint64_t entry) noexcept {
    if (entry > next_entry_)
      std::memset(y_ + next_entry_, 0, (entry - next_entry_) * sizeof(float));
  }

  /// The items of one group that are in the batch, decoded one after the other.
  struct Run {
    std::size_t next, end;
    std::uint64_t bit;
    std::uint64_t stop;  ///< where the group ends
    bool complete;       ///< its last item is in the batch
  };

  /// Runs begin at bits that are known, so each step decodes the next item of every run side by
  /// side.
  [[nodiscard]] bool flush() noexcept {
    batch_.draw(dither_);
    Run runs[PieceBatch::kLevelGroups];
    const std::size_t count = find_runs(runs);
    PieceStream pieces[PieceBatch::kLevelGroups];
    std::size_t of_run[PieceBatch::kLevelGroups];
    for (;;) {
      std::size_t live = 0;
      for (std::size_t r = 0; r < count; ++r) {
        if (runs[r].next == runs[r].end) continue;
        of_run[live] = r;
        pieces[live++] = stream_of(batch_.items()[runs[r].next++], runs[r].bit);
      }
      if (live == 0) break;
      decode_pieces(content_, pieces, live, mode_);
      for (std::size_t i = 0; i < live; ++i) runs[of_run[i]].bit = pieces[i].bit;
    }
    for (std::size_t r = 0; r < count; ++r) {
      if (runs[r].complete ? runs[r].bit != runs[r].stop : runs[r].bit > runs[r].stop) return false;
      bit_ = runs[r].bit;
    }
    batch_.clear();
    return true;
  }

  [[nodiscard]] std::size_t find_runs(Run* runs) noexcept {
    const std::span<PieceBatch::Item> items = batch_.items();
    std::size_t count = 0;
    for (std::size_t i = 0; i < items.size();) {
      if (!group_open_) {
        bit_ = group_end_;
        group_end_ += load_le<std::uint16_t>(lengths_);
        lengths_ += 2;
      }
      std::size_t end = i;
      while (end < items.size() && !items[end].ends_group) ++end;
      group_open_ = end == items.size();
      if (!group_open_) ++end;
      runs[count++] = {i, end, bit_, group_end_, !group_open_};
      i = end;
    }
    return count;
  }

  [[nodiscard]] PieceStream stream_of(const PieceBatch::Item& item,
                                      std::uint64_t bit) const noexcept {
    const ClassCodings& codings = item.piece.vector + 1 == layout_.count ? last_codings_ : codings_;
    return {bit,
            item.piece.entries,
            codings.scale(item.atom_class, 0),
            &codings.coding(item.atom_class),
            batch_.levels(item),
            y_ + item.offset};
  }

  const AtomLayout& layout_;
  ClassCodings codings_, last_codings_;
  Philox dither_;
  GroupShape shape_;
  BitReader flags_, content_;
  const std::byte* lengths_;
  PieceBatch batch_;
  std::uint64_t flag_bit_ = 0, class_bit_, bit_ = 0, group_end_ = 0, in_group_ = 0, next_entry_ = 0;
  bool group_open_ = false;  ///< the last group begun goes on in the next batch
  float* y_;
  DecodeMode mode_;
};

/// Calls `visit(atom)` for each kept atom until it returns false.
template <typename Visit>
bool for_each_marked(MarksReader& marks, std::uint64_t atoms, Visit visit) {
  SegmentMarks segment;
  std::uint64_t found = 0;
  for (std::uint64_t first = 0; first < atoms; first += kMarksSegment) {
    if (!marks.next(segment)) return false;
    for (std::size_t w = 0; w < segment.size(); ++w) {
      for (std::uint64_t left = segment[w]; left != 0; left &= left - 1, ++found) {
        if (!visit(first + w * 64 + static_cast<std::uint64_t>(std::countr_zero(left))))
          return false;
      }
    }
  }
  return found == marks.kept();
}

}  // namespace

Status decode_atoms(ConstBytes body, const AtomLayout& layout, float price, const Key& key,
                    float* y, DecodeMode mode) noexcept {
  if (!valid_layout(layout)) return Status::unsupported;
  if (body.empty()) {
    if (!mode.add && layout.count != 0) std::memset(y, 0, layout.elements() * sizeof(float));
    return Status::ok;
  }
  MarksReader marks;
  BodyIndex index;
  if (!(price > 0) || !std::isfinite(price) || !index.open(body, layout, marks))
    return Status::corrupt;
  ContentReader reader(body, index, layout, price, key, y, mode);
  const bool good =
      for_each_marked(marks, layout.count, [&](std::uint64_t atom) { return reader.add(atom); });
  return good && reader.finish() ? Status::ok : Status::corrupt;
}

Status inspect_atoms(ConstBytes body, const AtomLayout& layout, std::uint64_t& kept) noexcept {
  kept = 0;
  if (!valid_layout(layout)) return Status::unsupported;
  if (body.empty()) return Status::ok;
  MarksReader marks;
  BodyIndex index;
  if (!index.open(body, layout, marks)) return Status::corrupt;
  if (!for_each_marked(marks, layout.count, [](std::uint64_t) { return true; }))
    return Status::corrupt;
  kept = index.kept;
  return Status::ok;
}

}  // namespace atomo::cpu
