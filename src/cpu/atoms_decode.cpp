// SPDX-License-Identifier: Apache-2.0
/// Reads bodies of dithered atoms, whose vectors are rows, blocks or the factors of pairs, front to
/// back: marks, flags, classes, then the content of the kept atoms in batches whose levels are drawn
/// together.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/bit_counts.hpp"
#include "core/run_tasks.hpp"
#include "cpu/add_bodies.hpp"
#include "cpu/atoms.hpp"
#include "cpu/pairs.hpp"
#include "cpu/pieces.hpp"
#include "cpu/strands.hpp"
#include "format/atom_body.hpp"

namespace atomo::cpu {
namespace {

/// Where the entries of the atoms' vectors go.
template <typename Vectors>
using Targets = std::array<float*, Vectors::kCount>;

/// What stands before the kept atom of a number, which begins a group.
struct AtomStart {
  std::uint64_t number = 0, group = 0, bit = 0, certain = 0;

  AtomStart() = default;
  AtomStart(ConstBytes body, const BodyIndex& index, const GroupShape& groups,
            std::uint64_t of) noexcept
      : number(of), group(groups.groups(of)) {
    for (std::uint64_t g = 0; g < group; ++g)
      bit += load_le<std::uint16_t>(body.data() + index.lengths + 2 * g);
    const BitReader flags(body.data() + index.flags, index.lengths - index.flags);
    for (std::uint64_t i = 0; i < of; i += 56) {
      const auto some = static_cast<unsigned>(std::min<std::uint64_t>(56, of - i));
      certain += static_cast<std::uint64_t>(std::popcount(flags.bits(i, some)));
    }
  }
};

/// Reads a body from an atom on: every kept atom takes its flag, its class and its content in turn.
template <typename Vectors>
class ContentReader {
 public:
  ContentReader(ConstBytes body, const BodyIndex& index, const Vectors& vectors, const Key& key,
                const Targets<Vectors>& y, DecodeMode mode, const AtomStart& start = {}) noexcept
      : y_(y),
        mode_(mode),
        cutter_(vectors),
        batch_(vectors, key),
        flags_(body.data() + index.flags, index.lengths - index.flags),
        content_(body.data() + index.content, body.size() - index.content),
        lengths_(body.data() + index.lengths + 2 * start.group),
        flag_bit_(start.number),
        class_bit_(index.kept + kClassBits * start.certain),
        group_end_(start.bit) {}

  /// The atom goes to the `place`th vectors. False: a group did not end where its length said.
  [[nodiscard]] bool add(std::uint64_t atom, std::uint64_t place) noexcept {
    return cutter_.cut(atom, place, {0, next_class()}, [&](const AtomPiece& piece) {
      if (!batch_.fits(piece) && !flush()) return false;
      batch_.add(piece);
      return true;
    });
  }

  /// Decodes what was added so far. False: as above.
  [[nodiscard]] bool pause() noexcept { return flush(); }
  [[nodiscard]] bool finish() noexcept { return flush() && (!group_open_ || bit_[0] == bit_[1]); }

 private:
  [[nodiscard]] std::uint8_t next_class() noexcept {
    if (flags_.bits(flag_bit_++, 1) == 0) return 0;
    const std::uint64_t c = flags_.bits(class_bit_, kClassBits) + 1;
    class_bit_ += kClassBits;
    return static_cast<std::uint8_t>(c);
  }

  /// The pieces of one group that are in the batch, and how far each of its strands is read.
  struct Run {
    std::size_t begin, end;
    std::uint64_t bit[2];
    bool complete;  ///< its last piece is in the batch
  };
  /// The next piece of a run on a strand.
  struct Step {
    Run* run;
    std::size_t piece;
    std::uint32_t entries;
  };
  static constexpr std::size_t kMaxRuns = PieceBatch<Vectors>::kDitherGroups;

  [[nodiscard]] bool flush() noexcept {
    batch_.draw();
    Run runs[kMaxRuns];
    const std::size_t count = find_runs(runs);
    read_strands<Direction::upward>(runs, count);
    read_strands<Direction::downward>(runs, count);
    for (std::size_t r = 0; r < count; ++r) {
      if (runs[r].complete && runs[r].bit[0] != runs[r].bit[1]) return false;
    }
    if (count != 0) std::copy_n(runs[count - 1].bit, 2, bit_);
    batch_.clear();
    return true;
  }

  /// Strands begin at bits that are known, so each step decodes the next piece of every one side by
  /// side.
  template <Direction kDirection>
  void read_strands(Run* runs, std::size_t count) noexcept {
    Step steps[kMaxRuns];
    StrandPiece strands[kMaxRuns];
    for (std::size_t r = 0; r < count; ++r) steps[r] = {runs + r, runs[r].begin, 0};
    for (std::size_t live = find_next<kDirection>(steps, count); live != 0;
         live = find_next<kDirection>(steps, live)) {
      // Those alike go side by side, such as the short last pieces of rows.
      const auto comes_first = [&](const Step& a, const Step& b) {
        if (a.entries != b.entries) return a.entries > b.entries;
        const auto has_raw = [&](const Step& s) {
          return batch_.pieces()[s.piece].coding->raw != 0;
        };
        return has_raw(a) && !has_raw(b);
      };
      if (!std::is_sorted(steps, steps + live, comes_first))
        std::sort(steps, steps + live, comes_first);
      for (std::size_t i = 0; i < live; ++i) strands[i] = strand_of<kDirection>(steps[i]);
      decode_strands(content_, kDirection, strands, live, mode_);
      for (std::size_t i = 0; i < live; ++i) {
        steps[i].run->bit[static_cast<unsigned>(kDirection)] = strands[i].bit;
        ++steps[i].piece;
      }
    }
  }

  /// Moves each run to its next piece with tiles on a strand; returns how many have one.
  template <Direction kDirection>
  [[nodiscard]] std::size_t find_next(Step* steps, std::size_t count) const noexcept {
    std::size_t live = 0;
    for (std::size_t i = 0; i < count; ++i) {
      Step step = steps[i];
      for (; step.piece != step.run->end; ++step.piece) {
        step.entries = entries_on<kDirection>(batch_.pieces()[step.piece]);
        if (step.entries != 0) break;
      }
      if (step.piece != step.run->end) steps[live++] = step;
    }
    return live;
  }

  template <Direction kDirection>
  [[nodiscard]] static std::uint32_t entries_on(const AtomPiece& piece) noexcept {
    const std::uint32_t upward = std::min(piece.piece.entries, piece.upward * kTile);
    return kDirection == Direction::upward ? upward : piece.piece.entries - upward;
  }

  template <Direction kDirection>
  [[nodiscard]] StrandPiece strand_of(const Step& step) const noexcept {
    const AtomPiece& piece = batch_.pieces()[step.piece];
    const std::uint32_t first = kDirection == Direction::upward ? 0 : piece.upward;
    return {step.run->bit[static_cast<unsigned>(kDirection)],
            first,
            step.entries,
            piece.scale,
            piece.coding,
            batch_.levels(piece),
            y_[piece.vector] + piece.offset + std::size_t{first} * kTile};
  }

  [[nodiscard]] std::size_t find_runs(Run* runs) noexcept {
    const std::span<const AtomPiece> pieces = batch_.pieces();
    std::size_t count = 0;
    for (std::size_t i = 0; i < pieces.size();) {
      if (!group_open_) {
        bit_[0] = group_end_;
        group_end_ += load_le<std::uint16_t>(lengths_);
        bit_[1] = group_end_;
        lengths_ += 2;
      }
      std::size_t end = i;
      while (end < pieces.size() && !pieces[end].ends_group) ++end;
      group_open_ = end == pieces.size();
      if (!group_open_) ++end;
      runs[count++] = {i, end, {bit_[0], bit_[1]}, !group_open_};
      i = end;
    }
    return count;
  }

  Targets<Vectors> y_;
  DecodeMode mode_;
  PieceCutter<Vectors> cutter_;
  PieceBatch<Vectors> batch_;
  BitReader flags_, content_;
  const std::byte* lengths_;
  std::uint64_t flag_bit_, class_bit_, group_end_;
  std::uint64_t bit_[2] = {};  ///< how far the strands of the last group are read
  bool group_open_ = false;    ///< the last group begun goes on in the next batch
};

/// Calls `visit(atom)` for each kept atom until it returns false.
template <typename Visit>
bool for_each_kept(MarksReader& marks, std::uint64_t atoms, Visit visit) {
  SegmentMarks segment;
  std::uint64_t found = 0;
  for (std::uint64_t first = 0; first < atoms; first += kMarksSegment) {
    if (!marks.next(segment)) return false;
    const bool good = for_each_mark(segment, [&](std::uint64_t i) {
      ++found;
      return visit(first + i);
    });
    if (!good) return false;
  }
  return found == marks.kept();
}

bool is_price(float price) noexcept { return price > 0 && std::isfinite(price); }

Status inspect(ConstBytes body, const AtomLayout& frame, std::uint64_t& kept) noexcept {
  MarksReader marks;
  BodyIndex index;
  if (!index.open(body, frame, marks)) return Status::corrupt;
  if (!for_each_kept(marks, frame.count, [](std::uint64_t) { return true; }))
    return Status::corrupt;
  kept = index.kept;
  return Status::ok;
}

/// A body of rows or blocks, read in stretches of whole groups.
struct AtomReader {
  ConstBytes body;
  const AtomLayout& layout;
  const BodyIndex& index;
  const MarksReader& marks;
  const SingleVectors& vectors;
  const Key& key;
  float* y;
  DecodeMode mode;

  void zero(std::uint64_t from, std::uint64_t to) const noexcept {
    if (!mode.add && to > from) std::memset(y + from, 0, (to - from) * sizeof(float));
  }

  /// Reads the kept atoms from number `first` to before `end`, and clears what lies before each of
  /// them, and behind the last of all. Marks are walked from the beginning: they are few bits beside
  /// the content.
  [[nodiscard]] bool read(std::uint64_t first, std::uint64_t end) const noexcept {
    const AtomStart start(body, index, GroupShape::of(layout.length), first);
    ContentReader reader(body, index, vectors, key, {y}, mode, start);
    MarksReader own = marks;
    std::uint64_t number = 0, next = 0;  // entry that is not written yet
    bool good = true;
    const bool walked = for_each_kept(own, layout.count, [&](std::uint64_t atom) {
      if (number == end) return false;
      if (number++ >= first) {
        zero(next, atom * layout.length);
        good = reader.add(atom, atom);
      }
      next = atom * layout.length + layout.length_of(atom);
      return good;
    });
    if (!good || !reader.finish()) return false;
    if (end < index.kept) return number == end;
    zero(next, layout.elements());
    return walked;
  }
};

/// Entries of a stretch that is read of all messages: it stays in an L2 cache, and is long enough that what is decoded
/// side by side seldom ends early.
constexpr std::uint64_t kReadTogether = std::uint64_t{1} << 17;

/// A body of rows or blocks on its way into a tensor, a stretch of atoms after the other.
class AtomStream {
 public:
  [[nodiscard]] static Status open(const AtomMessage& message, const AtomLayout& layout,
                                   DecodeMode mode, float* y,
                                   std::optional<AtomStream>& stream) noexcept {
    MarksReader marks;
    BodyIndex index;
    if (!is_price(message.price) || !index.open(message.body, layout, marks))
      return Status::corrupt;
    mode.gain = message.gain;
    stream.emplace(message, layout, mode, y, index, marks);
    return Status::ok;
  }
  AtomStream(const AtomMessage& message, const AtomLayout& layout, DecodeMode mode, float* y,
             const BodyIndex& index, const MarksReader& marks) noexcept
      : vectors_(layout, message.price, message.centred, message.gain),
        reader_(message.body, index, vectors_, message.key, {y}, mode),
        marks_(marks) {}
  AtomStream(const AtomStream&) = delete;
  AtomStream& operator=(const AtomStream&) = delete;

  /// Writes, or adds, the kept atoms before `end` that were not yet; y begins at atom `origin`. False: the
  /// body is damaged.
  [[nodiscard]] bool read_before(std::uint64_t end, std::uint64_t origin) noexcept {
    for (;;) {
      for (; word_ != 0; word_ &= word_ - 1, ++found_) {
        const std::uint64_t atom = begin_ + static_cast<std::uint64_t>(core::countr_zero(word_));
        if (atom >= end) return reader_.pause();
        if (!reader_.add(atom, atom - origin)) return false;
      }
      if (next_ >= end) return reader_.pause();
      if (next_ % kMarksSegment == 0 && !marks_.next(segment_)) return false;
      word_ = segment_[next_ % kMarksSegment / 64];
      begin_ = next_;
      next_ += 64;
    }
  }
  /// Behind the last atom.
  [[nodiscard]] bool finish() noexcept { return reader_.finish() && found_ == marks_.kept(); }

 private:
  SingleVectors vectors_;
  ContentReader<SingleVectors> reader_;
  MarksReader marks_;
  SegmentMarks segment_;
  std::uint64_t word_ = 0;  ///< marks that are left of the atoms from `begin_` on
  std::uint64_t begin_ = 0;
  std::uint64_t next_ = 0;   ///< atom of the next word
  std::uint64_t found_ = 0;  ///< kept atoms so far
};

/// Messages that are read a stretch of atoms at a time.
class MessageStreams {
 public:
  MessageStreams(std::span<AtomMessage> messages, const AtomLayout& layout, DecodeMode mode,
                 float* y) noexcept
      : messages_(messages), layout_(layout) {
    for (std::size_t m = 0; m < messages.size(); ++m) {
      AtomMessage& message = messages[m];
      if (failed(message.status) || message.body.empty()) continue;
      message.status = AtomStream::open(message, layout, mode, y, streams_[m]);
    }
  }
  /// Calls read(message, begin, end) for every stretch of atoms and of it for every message that has not
  /// failed, which it has when that returns false.
  template <typename Read>
  void each_stretch(const Read& read) noexcept {
    const std::uint64_t each = atoms_together(layout_);
    for (std::uint64_t begin = 0; begin < layout_.count; begin += each) {
      const std::uint64_t end = std::min(layout_.count, begin + each);
      for (std::size_t m = 0; m < messages_.size(); ++m) {
        if (!failed(messages_[m].status) && !read(m, begin, end))
          messages_[m].status = Status::corrupt;
      }
    }
  }
  /// What a message has before `end` and was not read yet.
  [[nodiscard]] bool read(std::size_t message, std::uint64_t end, std::uint64_t origin) noexcept {
    std::optional<AtomStream>& stream = streams_[message];
    if (!stream) return true;
    return stream->read_before(end, origin) && (end < layout_.count || stream->finish());
  }

 private:
  std::span<AtomMessage> messages_;
  const AtomLayout& layout_;
  std::array<std::optional<AtomStream>, kBodiesAtOnce> streams_;
};

void refuse(std::span<AtomMessage> messages) noexcept {
  for (AtomMessage& message : messages) {
    if (!failed(message.status)) message.status = Status::unsupported;
  }
}

/// Entries of a stretch that is worth a task, and stretches at most: each walks the marks.
constexpr std::uint64_t kStretchEntries = std::uint64_t{1} << 16, kMaxStretches = 8;

/// Calls `read(first, end)` for stretches of the kept atoms, whole groups; whether all were good.
template <typename Read>
bool read_stretches(std::uint64_t kept, std::uint64_t length, Executor* executor,
                    const Read& read) noexcept {
  const std::uint64_t most = executor == nullptr ? 1 : kMaxStretches;
  std::uint64_t each = std::max(kStretchEntries / length, kept / most + 1);
  each = round_up(each, GroupShape::of(length).atoms);
  const std::uint64_t count = (kept + each - 1) / each;
  if (executor == nullptr || count <= 1) return read(0, kept);
  std::atomic<bool> good{true};
  core::run_tasks(executor, count, [&](std::size_t s) {
    if (!read(s * each, std::min(kept, (s + 1) * each))) good = false;
  });
  return good;
}

}  // namespace

Status decode_atoms(ConstBytes body, const AtomLayout& layout, float price, const Key& key,
                    float* y, DecodeMode mode, Executor* executor) noexcept {
  if (!valid_layout(layout)) return Status::unsupported;
  if (body.empty()) {
    if (!mode.add) std::memset(y, 0, layout.elements() * sizeof(float));
    return Status::ok;
  }
  MarksReader marks;
  BodyIndex index;
  if (!is_price(price) || !index.open(body, layout, marks)) return Status::corrupt;
  const SingleVectors vectors(layout, price, mode.centred, mode.gain);
  const AtomReader reader{body, layout, index, marks, vectors, key, y, mode};
  const bool good = read_stretches(
      index.kept, layout.length, executor,
      [&](std::uint64_t first, std::uint64_t end) { return reader.read(first, end); });
  return good ? Status::ok : Status::corrupt;
}

std::uint64_t atoms_together(const AtomLayout& layout) noexcept {
  return std::max<std::uint64_t>(1, kReadTogether / layout.length);
}

void add_atoms(std::span<AtomMessage> messages, const AtomLayout& layout, float alpha,
               float* y) noexcept {
  if (!valid_layout(layout)) return refuse(messages);
  MessageStreams streams(messages, layout, {true, alpha}, y);
  streams.each_stretch(
      [&](std::size_t m, std::uint64_t, std::uint64_t end) { return streams.read(m, end, 0); });
}

void read_atoms(std::span<AtomMessage> messages, const AtomLayout& layout, float* values,
                const StretchAdder& add) noexcept {
  if (!valid_layout(layout)) return refuse(messages);
  MessageStreams streams(messages, layout, {}, values);
  streams.each_stretch([&](std::size_t m, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t entries =
        std::min(end * layout.length, layout.elements()) - begin * layout.length;
    std::memset(values, 0, entries * sizeof(float));
    if (!streams.read(m, end, begin)) return false;
    add(m, begin, end);
    return true;
  });
}

Status decode_pair_factors(ConstBytes body, const PairLayer& layer, float price, DecodeMode how,
                           const Key& key, Executor* executor, PairFactors& factors) noexcept {
  MarksReader marks;
  BodyIndex index;
  if (!is_price(price) || !index.open(body, pairs_frame(layer), marks)) return Status::corrupt;
  const PairVectors vectors(layer, price, how.centred, how.gain);
  const std::uint64_t length = vectors.frame().length;
  factors.kept = index.kept;
  factors.scale = vectors.unscale();
  const bool good =
      read_stretches(index.kept, length, executor, [&](std::uint64_t first, std::uint64_t end) {
        const AtomStart start(body, index, GroupShape::of(length), first);
        ContentReader reader(body, index, vectors, key,
                             {factors.shorter.data(), factors.longer.data()}, {}, start);
        MarksReader own = marks;
        std::uint64_t number = 0;
        bool sound = true;
        const bool walked = for_each_kept(own, layer.count, [&](std::uint64_t pair) {
          if (number == end) return false;
          if (number >= first) sound = reader.add(pair, number);
          ++number;
          return sound;
        });
        return sound && reader.finish() && (end < index.kept ? number == end : walked);
      });
  return good ? Status::ok : Status::corrupt;
}

Status inspect_atoms(ConstBytes body, const AtomLayout& layout, std::uint64_t& kept) noexcept {
  kept = 0;
  if (!valid_layout(layout)) return Status::unsupported;
  return body.empty() ? Status::ok : inspect(body, layout, kept);
}

Status inspect_pairs(ConstBytes body, const PairLayer& layer, std::uint64_t& kept) noexcept {
  kept = 0;
  return inspect(body, pairs_frame(layer), kept);
}

}  // namespace atomo::cpu
