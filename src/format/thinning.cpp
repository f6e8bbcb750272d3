// SPDX-License-Identifier: Apache-2.0
/// Thins bodies of dithered atoms to a limit: measures their runs, leaves consecutive ones out and
/// writes the others anew (FORMAT.md, "Thinning").
#include "format/thinning.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "coding/duo_code.hpp"
#include "core/philox.hpp"
#include "core/workspace.hpp"
#include "format/atom_body.hpp"
#include "format/content_bound.hpp"

namespace atomo::format {
namespace {

/// The kept atoms of a body as units that can be left out: those that share a group, or one atom
/// with its groups.
class Units {
 public:
  /// `first` is the number of the first unit; a body of no bytes has none.
  bool open(ConstBytes body, const AtomLayout& layout, std::uint64_t first) noexcept {
    layout_ = layout;
    first_ = first;
    shape_ = GroupShape::of(layout.length);
    body_ = body;
    if (body.empty()) return true;
    if (!index_.open(body, layout, marks_) || index_.kept == 0) return false;
    flags_ = BitReader(body.data() + index_.flags, index_.lengths - index_.flags);
    count_ = (index_.kept + shape_.atoms - 1) / shape_.atoms;
    return true;
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t first() const noexcept { return first_; }
  [[nodiscard]] const AtomLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::uint64_t kept() const noexcept { return index_.kept; }
  [[nodiscard]] std::size_t marks_bytes() const noexcept {
    return count_ == 0 ? 0 : marks_.bytes();
  }
  [[nodiscard]] MarksReader& marks() noexcept { return marks_; }
  [[nodiscard]] const GroupShape& shape() const noexcept { return shape_; }

  [[nodiscard]] bool certain(std::uint64_t kept) const noexcept {
    return flags_.bits(kept, 1) != 0;
  }
  [[nodiscard]] std::uint64_t class_bits(std::uint64_t certain) const noexcept {
    return flags_.bits(index_.kept + kClassBits * certain, kClassBits);
  }
  [[nodiscard]] std::uint64_t first_atom(std::uint64_t unit) const noexcept {
    return unit * shape_.atoms;
  }
  [[nodiscard]] std::uint64_t end_atom(std::uint64_t unit) const noexcept {
    return std::min(index_.kept, (unit + 1) * shape_.atoms);
  }
  [[nodiscard]] std::uint64_t group_bits(std::uint64_t group) const noexcept {
    return load_le<std::uint16_t>(body_.data() + index_.lengths + 2 * group);
  }
  /// Everything the unit adds to a body.
  [[nodiscard]] std::uint64_t bits(std::uint64_t unit) const noexcept {
    std::uint64_t sum = 16 * shape_.pieces;
    for (std::uint64_t g = 0; g < shape_.pieces; ++g) sum += group_bits(unit * shape_.pieces + g);
    for (std::uint64_t a = first_atom(unit); a < end_atom(unit); ++a)
      sum += certain(a) ? 1 + kClassBits : 1;
    return sum;
  }
  [[nodiscard]] BitReader content() const noexcept {
    return {body_.data() + index_.content, body_.size() - index_.content};
  }

 private:
  ConstBytes body_;
  BodyIndex index_;
  MarksReader marks_;
  GroupShape shape_;
  BitReader flags_{nullptr, 0};
  AtomLayout layout_;
  std::uint64_t first_ = 0, count_ = 0;
};

/// Whether a thinning leaves a unit out.
bool is_dropped(const Runs& runs, std::uint64_t unit, const Thinning& t) noexcept {
  return runs.drops(runs.run_of(unit), t.dropped, t.start);
}

/// The least that d consecutive runs take, whatever the start.
std::uint64_t least_window(std::span<const std::uint64_t> runs, std::uint64_t d) noexcept {
  std::uint64_t window = 0;
  for (std::uint64_t i = 0; i < d; ++i) window += runs[i];
  std::uint64_t least = window;
  for (std::uint64_t s = 1; s < runs.size(); ++s) {
    window += runs[(s + d - 1) % runs.size()] - runs[s - 1];
    least = std::min(least, window);
  }
  return least;
}

/// The marks of the atoms that stay, from those of all kept atoms, in place; `left_over` counts
/// them.
bool mark_those_left(Units& units, const Runs& runs, const Thinning& t,
                     std::span<std::uint64_t> marks, std::uint64_t& left_over) noexcept {
  SegmentMarks segment;
  std::uint64_t kept = 0;
  left_over = 0;
  std::fill(marks.begin(), marks.end(), 0u);
  for (std::uint64_t first = 0; first < units.layout().count; first += kMarksSegment) {
    if (!units.marks().next(segment)) return false;
    for (std::size_t w = 0; w < segment.size() && first / 64 + w < marks.size(); ++w) {
      for (std::uint64_t left = segment[w]; left != 0; left &= left - 1, ++kept) {
        const std::uint64_t unit = units.first() + kept / units.shape().atoms;
        if (is_dropped(runs, unit, t)) continue;
        ++left_over;
        marks[first / 64 + w] |= std::uint64_t{1} << std::countr_zero(left);
      }
    }
  }
  return kept == units.kept();
}

void copy_bits(const BitReader& from, std::uint64_t at, std::uint64_t length,
               BitWriter& to) noexcept {
  for (; length >= 48; length -= 48, at += 48) to.put(from.bits(at, 48), 48);
  to.put(from.bits(at, static_cast<unsigned>(length)), static_cast<unsigned>(length));
}

/// Flags, lengths and content of the units that stay, behind the marks. Returns the body's bytes.
std::size_t write_rest(const Units& units, const Runs& runs, const Thinning& t, std::byte* body,
                       std::size_t at, std::size_t capacity) noexcept {
  BitWriter flags(body + at, capacity - at);
  const auto for_each_left = [&](auto visit) {
    for (std::uint64_t u = 0; u < units.count(); ++u) {
      if (!is_dropped(runs, units.first() + u, t)) visit(u);
    }
  };
  for_each_left([&](std::uint64_t u) {
    for (std::uint64_t a = units.first_atom(u); a < units.end_atom(u); ++a)
      flags.put(units.certain(a) ? 1 : 0, 1);
  });
  std::uint64_t atom = 0, certain = 0;
  for (std::uint64_t u = 0; u < units.count(); ++u) {
    for (; atom < units.end_atom(u); ++atom) {
      if (!units.certain(atom)) continue;
      if (!is_dropped(runs, units.first() + u, t)) flags.put(units.class_bits(certain), kClassBits);
      ++certain;
    }
  }
  const std::size_t end_of_flags = at + flags.finish(), lengths = round_up(end_of_flags, 2);
  std::fill(body + end_of_flags, body + lengths, std::byte{0});
  std::size_t content = lengths;
  const std::uint64_t pieces = units.shape().pieces;
  for_each_left([&](std::uint64_t u) {
    for (std::uint64_t g = u * pieces; g < (u + 1) * pieces; ++g, content += 2) {
      store_le(body + content, static_cast<std::uint16_t>(units.group_bits(g)));
    }
  });
  BitWriter out(body + content, capacity - content);
  const BitReader from = units.content();
  std::uint64_t bit = 0;
  for (std::uint64_t u = 0; u < units.count(); ++u) {
    std::uint64_t bits = 0;
    for (std::uint64_t g = u * pieces; g < (u + 1) * pieces; ++g) bits += units.group_bits(g);
    if (!is_dropped(runs, units.first() + u, t)) copy_bits(from, bit, bits, out);
    bit += bits;
  }
  const std::size_t end = content + out.finish(), whole = round_up(end, 4);
  std::fill(body + end, body + whole, std::byte{0});
  return whole;
}

/// Writes the part of one body that stays; `bytes` is 0 when none does. False: a corrupt body.
bool write_those_left(Units& units, const Runs& runs, const Thinning& t,
                      std::span<std::uint64_t> marks, Bytes out, std::size_t& bytes) noexcept {
  bytes = 0;
  if (units.count() == 0) return true;
  const auto own = marks.first(marks_words(units.layout().count));
  std::uint64_t left = 0;
  if (!mark_those_left(units, runs, t, own, left)) return false;
  if (left == 0) return true;
  const MarksChoice plan = choose_marks(own, units.layout().count);
  write_marks(plan, own, units.layout().count, out.data());
  bytes = write_rest(units, runs, t, out.data(), plan.bytes, out.size());
  return true;
}

/// The bodies of a layer, one or two.
class Bodies {
 public:
  bool open(ConstBytes body, const DitheredLayer& layer) noexcept {
    ConstBytes pairs, atoms = body;
    if (layer.is_sketch()) {
      const std::size_t bytes = load_le<std::uint32_t>(body.data());
      pairs = body.subspan(kPairBytesField, bytes);
      atoms = body.subspan(kPairBytesField + bytes);
      if (!units_[0].open(pairs, pairs_frame(layer.pairs), 0)) return false;
    }
    first_ = layer.is_sketch() ? 0 : 1;
    return units_[1].open(atoms, layer.atoms, units_[0].count());
  }
  [[nodiscard]] std::uint64_t count() const noexcept {
    return units_[0].count() + units_[1].count();
  }
  [[nodiscard]] std::span<Units> units() noexcept { return std::span(units_).subspan(first_); }

 private:
  std::array<Units, 2> units_;
  std::size_t first_ = 0;
};

struct ThinningMemory {
  std::span<std::uint64_t> run_bits, marks;
  ThinningMemory(const DitheredLayer& layer, Carver& carver) noexcept
      : run_bits(carver.take<std::uint64_t>(Runs::kMost)),
        marks(carver.take<std::uint64_t>(
            marks_words(std::max<std::uint64_t>(layer.atoms.count, layer.pairs.count)))) {}
};

/// What the runs of a body take, and with everything beside them, at most.
struct MeasuredRuns {
  Runs runs;
  std::span<std::uint64_t> bits;
  std::uint64_t total;

  MeasuredRuns(Bodies& bodies, const DitheredLayer& layer, const ThinningMemory& memory) noexcept
      : runs(Runs::of(bodies.count())),
        bits(memory.run_bits.first(static_cast<std::size_t>(runs.count()))),
        total(8 * (kThinningBytes + (layer.is_sketch() ? kPairBytesField : 0))) {
    std::fill(bits.begin(), bits.end(), 0u);
    for (const Units& units : bodies.units()) {
      total += 8 * units.marks_bytes() + kThinningPaddingBits;
      for (std::uint64_t u = 0; u < units.count(); ++u) {
        const std::uint64_t of_unit = units.bits(u);
        bits[runs.run_of(units.first() + u)] += of_unit;
        total += of_unit;
      }
    }
  }
};

/// Units that all atoms of a frame make, at most.
std::uint64_t most_units(const AtomLayout& layout) noexcept {
  const std::uint64_t in_unit = GroupShape::of(layout.length).atoms;
  return (layout.count + in_unit - 1) / in_unit;
}

}  // namespace

std::size_t max_thinnest_bytes(const DitheredLayer& layer) noexcept {
  // A run holds fewer than two units more than a whole number of them: with K above half the units,
  // at most two.
  std::uint64_t units = most_units(layer.atoms);
  if (layer.is_sketch()) units += most_units(pairs_frame(layer.pairs));
  const std::uint64_t in_run = units / Runs::kMost + 2;
  const auto run_bits = [&](const AtomLayout& layout, std::uint64_t content) {
    const GroupShape shape = GroupShape::of(layout.length);
    const std::uint64_t atoms = std::min(layout.count, in_run * shape.atoms);
    return atoms * (1 + kClassBits + content) + 16 * shape.groups(atoms);
  };
  std::uint64_t content = 0;
  for (const AtomClass& c : kAtomClasses)
    content = std::max(content, max_vector_bits(c.step, c.reach, layer.atoms.length));
  std::uint64_t run = run_bits(layer.atoms, content);
  std::uint64_t fixed = 8 * (kThinningBytes + max_marks_bytes(layer.atoms.count));
  fixed += kThinningPaddingBits;
  if (layer.is_sketch()) {
    fixed += 8 * (kPairBytesField + max_marks_bytes(layer.pairs.count)) + kThinningPaddingBits;
    content = max_pair_content_bits(layer.pairs.view);
    // As many units of either kind: no mixture of the two is larger.
    run = std::max(run, run_bits(pairs_frame(layer.pairs), content));
  }
  return round_up(static_cast<std::size_t>((fixed + run + 7) / 8), 4);
}

std::size_t thinning_workspace_bytes(const DitheredLayer& layer) noexcept {
  Carver carver;
  ThinningMemory(layer, carver);
  return carver.bytes();
}

std::uint64_t min_dropped(std::span<const std::uint64_t> runs, std::uint64_t total,
                          std::uint64_t limit) noexcept {
  std::uint64_t low = 0, high = runs.size();
  while (low < high) {
    const std::uint64_t d = (low + high) / 2;
    if (total - least_window(runs, d) <= limit)
      high = d;
    else
      low = d + 1;
  }
  return low;
}

Status thin(ConstBytes body, const DitheredLayer& layer, std::size_t limit, const Key& key,
            Bytes out, Bytes workspace, std::size_t& bytes) noexcept {
  Carver carver(workspace);
  const ThinningMemory memory(layer, carver);
  if (!carver.fits()) return Status::workspace_too_small;
  Bodies bodies;
  if (!bodies.open(body, layer)) return Status::corrupt;

  const MeasuredRuns measured(bodies, layer, memory);
  const Runs& runs = measured.runs;
  const std::uint64_t dropped =
      min_dropped(measured.bits, measured.total, 8 * std::uint64_t{limit});
  if (dropped == 0 || dropped >= runs.count()) return Status::unsupported;
  const Thinning t{runs.log2, static_cast<std::uint32_t>(dropped),
                   runs.start(Philox(key, Purpose::thinning)(0)[0])};

  store_le(out.data(), t.word());
  bytes = kThinningBytes + (layer.is_sketch() ? kPairBytesField : 0);
  for (Units& units : bodies.units()) {
    std::size_t left = 0;
    if (!write_those_left(units, runs, t, memory.marks, out.subspan(bytes), left))
      return Status::corrupt;
    if (layer.is_sketch() && &units == &bodies.units().front())
      store_le(out.data() + kThinningBytes, static_cast<std::uint32_t>(left));
    bytes += left;
  }
  return bytes <= limit ? Status::ok : Status::unsupported;
}

std::size_t thinnest_bytes(ConstBytes body, const DitheredLayer& layer, Bytes workspace) noexcept {
  Carver carver(workspace);
  const ThinningMemory memory(layer, carver);
  Bodies bodies;
  if (!carver.fits() || !bodies.open(body, layer)) return body.size();
  const MeasuredRuns measured(bodies, layer, memory);
  if (measured.runs.count() == 1) return body.size();
  std::uint64_t all = 0, largest = 0;
  for (const std::uint64_t bits : measured.bits) {
    all += bits;
    largest = std::max(largest, bits);
  }
  const std::uint64_t bits = measured.total - all + largest;
  return std::min(body.size(), round_up(static_cast<std::size_t>((bits + 7) / 8), 4));
}

}  // namespace atomo::format
