// SPDX-License-Identifier: Apache-2.0
/// Encoding: a group of chunks at a time. What the k-th largest of a chunk was says near which magnitude
/// it is in the next one: one pass marks all above a bound below it, and of these few the k largest are
/// found. Where they are fewer than k, or many, the search is among all entries of the chunk.
/// Where entries are drawn, a group is read twice: for its scale, then for the draw. Tiles are made a chunk's
/// worth at a time, so that they stay in a cache. A draw keeps the tiles of a group of at most 65,536 entries
/// between its two passes; those of a larger group, which keeps less than 1/64, are made twice.
///
/// Reads 4 bytes an entry, writes what is sent.

#include "cpu/chunk_topk.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <span>

#include "coding/rice.hpp"
#include "core/philox.hpp"
#include "core/run_tasks.hpp"
#include "cpu/chunk_candidates.hpp"
#include "cpu/chunk_draw.hpp"
#include "cpu/tile_sequence.hpp"
#include "format/chunk_values.hpp"
#include "format/drawn_values.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_topk.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/magnitude_marks-inl.hpp"

#ifndef ATOMO_CPU_CHUNK_TOPK_ONCE
#define ATOMO_CPU_CHUNK_TOPK_ONCE
namespace atomo::cpu {
namespace {

/// How many entries of a chunk were marked, and the largest magnitude of all.
struct Marked {
  std::uint32_t count, largest;
};

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Marks the entries of a chunk whose magnitude, as an integer, is above `bound`.
Marked mark_above_bound(const float* x, std::size_t n, std::uint32_t bound, std::uint64_t* words) {
  const hn::CappedTag<std::int32_t, 16> d;
  const auto least = hn::Set(d, static_cast<std::int32_t>(bound));
  auto largest = hn::Zero(d);
  std::uint32_t count = 0;
  each_64(x, n, [&](const float* in, std::size_t at) {
    const std::uint64_t marks = marks_of_64(d, in, least, largest);
    count += static_cast<std::uint32_t>(std::popcount(marks));
    words[at / 64] = marks;
  });
  return {count, static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)))};
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(mark_above_bound);

namespace {

using format::ChunkBody;
using format::ChunkCoder;
using format::ChunkValues;

/// What the next chunk's bound is below the k-th largest of this one, as integers: a quarter of an octave.
constexpr std::uint32_t kBelow = 1u << 21;
/// By what a bound is lowered first, and at most before all entries are marked: an octave, and four.
constexpr std::uint32_t kOctave = 1u << 23, kMaxStep = 4 * kOctave;
/// A bound that no finite entry is above: nothing is known of chunks.
constexpr std::uint32_t kNoBound = 0x7F7FFFFF;

/// Entries of a group that a draw keeps between its two passes: 256 KiB of a task's stack.
constexpr std::size_t kStoredGroup = 1 << 16;

/// What a group keeps.
struct Kept {
  std::uint32_t entries[kMaxChunk];  ///< bit patterns
  std::uint16_t slots[kMaxChunk];
  std::uint32_t count = 0, least = ~0u, largest = 0;

  /// What a chunk keeps of its entries, from a slot on.
  void add(const Candidates& chunk, const float* own, std::uint32_t first_slot) noexcept {
    for (std::uint32_t i = 0; i < chunk.count; ++i) {
      const std::uint32_t sign = std::bit_cast<std::uint32_t>(own[chunk.places[i]]) & 0x80000000u;
      slots[count] = static_cast<std::uint16_t>(first_slot + i);
      entries[count++] = sign | chunk.magnitudes[i];
      least = std::min(least, chunk.magnitudes[i]);
      largest = std::max(largest, chunk.magnitudes[i]);
    }
  }
};

/// The k largest entries of a chunk that are not 0; false when one is not finite. `bound` is a guess,
/// which becomes one for the next chunk. Where too few are above it, it is lowered in growing steps.
bool select_chunk_entries(const float* x, std::size_t n, std::uint32_t k, std::uint32_t& bound,
                          Candidates& out) noexcept {
  std::uint64_t words[kMaxChunk / 64];
  Marked marked = HWY_DYNAMIC_DISPATCH(mark_above_bound)(x, n, bound, words);
  if (marked.largest >= 0x7F800000u) return false;
  bound = std::min(bound, marked.largest);
  for (std::uint32_t step = kOctave; marked.count < k && bound != 0; step *= 2) {
    bound = step <= kMaxStep && bound > step ? bound - step : 0;
    marked = HWY_DYNAMIC_DISPATCH(mark_above_bound)(x, n, bound, words);
  }
  out.collect(x, n, words);
  if (out.count <= k) return true;
  const std::uint32_t key = out.keep_largest(k);
  bound = key > kBelow ? key - kBelow : 0;
  return true;
}

void write_gap(std::uint32_t gap, std::uint32_t left, std::uint32_t marks,
               core::BitWriter& out) noexcept {
  const auto word = coding::rice_word(gap, format::gap_parameter(left, marks), format::kRawGapBits);
  out.put(word.bits, word.count);
}

void write_gaps(const Candidates& chunk, std::uint32_t n, std::uint32_t keep,
                core::BitWriter& out) noexcept {
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    write_gap(chunk.places[i] - next, n - next, keep - i, out);
    next = chunk.places[i] + 1u;
  }
  if (chunk.count < keep) write_gap(n - next, n - next, keep - chunk.count, out);
}

/// The bins of what a group keeps.
void find_group_bins(const Kept& kept, const ChunkCoder& coder) noexcept {
  math::CellSums cells[math::kBinCells + 1] = {};
  for (std::uint32_t i = 0; i < kept.count; ++i) {
    const std::uint32_t m = kept.entries[i] & 0x7FFFFFFFu;
    math::CellSums& cell = cells[coder.cell_of(m) + 1];
    cell.sum += coder.fixed(m);
    ++cell.count;
  }
  for (unsigned c = 0; c < math::kBinCells; ++c) {
    cells[c + 1].sum += cells[c].sum;
    cells[c + 1].count += cells[c].count;
  }
  coder.find_bins(cells);
}

/// The chunks of a sequence, one after the other.
class ChunkReader {
 public:
  /// `tiles`: what the sequence consists of; null where it is `x`. `room`, for tiles: a chunk and two tiles
  /// or more.
  ChunkReader(const float* x, const TileReader* tiles, std::span<float> room) noexcept
      : x_(x), tiles_(tiles), room_(room) {}

  /// The entries [begin, begin + n), n <= kMaxChunk, until the next call; null where one is not finite and
  /// would be transformed. Those from `begin` on are kept as long as there is room.
  const float* read(std::uint64_t begin, std::uint32_t n) noexcept {
    if (tiles_ == nullptr) return x_ + begin;
    const std::uint64_t tile = tiles_->tile_entries();
    if (begin < begin_ || begin > end_) begin_ = end_ = begin / tile * tile;
    while (end_ < begin + n) {
      if (end_ - begin_ + tile > room_.size()) drop_before(std::min(begin, end_));
      if (!tiles_->read(end_ / tile, room_.data() + (end_ - begin_))) return nullptr;
      end_ += tile;
    }
    return room_.data() + (begin - begin_);
  }
  /// Makes room for what stands from `begin` on.
  void start(std::uint64_t begin) noexcept {
    if (begin > begin_ && begin <= end_) drop_before(begin);
  }

 private:
  void drop_before(std::uint64_t begin) noexcept {
    const auto first = room_.begin();
    std::copy(first + static_cast<std::ptrdiff_t>(begin - begin_),
              first + static_cast<std::ptrdiff_t>(end_ - begin_), first);
    begin_ = begin;
  }

  const float* x_;
  const TileReader* tiles_;
  std::span<float> room_;
  std::uint64_t begin_ = 0, end_ = 0;  ///< of what is in the room
};

/// Groups on their way into a body.
struct GroupWriter {
  const ChunkConfig& config;
  const ChunkBody& body;
  const Key& key;
  std::byte* out;

  /// Returns the bytes of the group's gaps; ~0 where an entry is not finite.
  std::size_t write(std::uint64_t g, ChunkReader& reader, std::byte* gaps) const noexcept {
    core::BitWriter stream(gaps, body.max_gap_bytes());
    const bool finite =
        config.draws ? write_drawn(g, reader, stream) : write_largest(g, reader, stream);
    return finite ? stream.finish() : ~std::size_t{0};
  }

 private:
  /// Calls `visit(number of a chunk in the group, in the layer, its entries, how many, slots)` until it
  /// returns false.
  template <typename Visit>
  bool each_chunk(std::uint64_t g, ChunkReader& reader, Visit visit) const noexcept {
    for (std::uint32_t c = 0; c < body.chunks_of(g); ++c) {
      const std::uint64_t number = g * body.group_chunks + c;
      const std::uint32_t n = body.entries_of(number);
      const float* const own = reader.read(number * body.chunk, n);
      if (own == nullptr || !visit(c, number, own, n, body.keep_of(number))) return false;
    }
    return true;
  }
  bool write_largest(std::uint64_t g, ChunkReader& reader, core::BitWriter& stream) const noexcept {
    Kept kept;
    Candidates chunk;
    std::uint32_t bound = kNoBound;
    const bool finite = each_chunk(
        g, reader,
        [&](std::uint32_t c, std::uint64_t, const float* own, std::uint32_t n, std::uint32_t k) {
          if (!select_chunk_entries(own, n, k, bound, chunk)) return false;
          write_gaps(chunk, n, k, stream);
          kept.add(chunk, own, c * body.keep);
          return true;
        });
    if (!finite || write_empty(g, kept)) return finite;
    math::ValueBins bins{};
    const ChunkCoder coder(config.values, kept.least, kept.largest, bins);
    if (coder.has_bins()) find_group_bins(kept, coder);
    write_values(g, kept, coder, stream);
    return true;
  }
  bool write_drawn(std::uint64_t g, ChunkReader& reader, core::BitWriter& stream) const noexcept {
    format::DrawnChunk chunks[ChunkBody::kMaxGroup], group;
    std::uint32_t guess = 0;
    reader.start(g * body.group_chunks * body.chunk);
    const bool finite = each_chunk(
        g, reader,
        [&](std::uint32_t c, std::uint64_t, const float* own, std::uint32_t n, std::uint32_t k) {
          chunks[c] = measure_chunk(own, n, k, guess);
          group.join(chunks[c]);
          return true;
        });
    if (!finite || group.largest >= 0x7F800000u) return false;
    const format::DrawnCoder coder(config.values, group);
    const core::Philox draws(key, core::Purpose::select_entry);
    Kept kept;
    Candidates chunk;
    each_chunk(g, reader,
               [&](std::uint32_t c, std::uint64_t number, const float* own, std::uint32_t n,
                   std::uint32_t k) {
                 draw_entries(own, n, k, coder.scale(chunks[c]), draws(number)[0], chunk);
                 write_gaps(chunk, n, k, stream);
                 kept.add(chunk, own, c * body.keep);
                 return true;
               });
    if (write_empty(g, kept)) return true;
    const core::Philox rounds(key, core::Purpose::round_entry);
    const std::uint64_t first = g * body.group_chunks * body.keep;
    core::PhiloxWords words{};
    std::uint64_t block = ~std::uint64_t{0};
    for (std::uint32_t i = 0; i < kept.count; ++i) {
      const std::uint64_t slot = first + kept.slots[i];
      if (slot / 4 != block) words = rounds(block = slot / 4);
      kept.entries[i] = coder.quantise(kept.entries[i], words[slot % 4]);
    }
    write_values(g, kept, coder, stream);
    return true;
  }
  /// Whether a group keeps nothing; its levels and values are then zeros.
  bool write_empty(std::uint64_t g, const Kept& kept) const noexcept {
    if (kept.count != 0) return false;
    std::fill_n(out + body.levels_at + 2 * g * body.level_words, 2 * body.level_words,
                std::byte{0});
    std::fill_n(out + body.values_of(g), body.value_bytes_of(body.group_slots(g)), std::byte{0});
    return true;
  }
  template <typename Coder>
  void write_values(std::uint64_t g, const Kept& kept, const Coder& coder,
                    core::BitWriter& gaps) const noexcept {
    std::byte* const words = out + body.levels_at + 2 * g * body.level_words;
    const std::uint32_t slots = body.group_slots(g), bytes = body.value_bytes_of(slots);
    for (unsigned i = 0; i < body.level_words; ++i)
      core::store_le<std::uint16_t>(words + 2 * i, coder.word(i));
    if (body.lists_upper) core::store_le(words + 4, write_upper(kept, coder, slots, gaps));
    core::BitWriter stream(out + body.values_of(g), bytes);
    std::uint32_t next = 0;
    for (std::uint32_t i = 0; i < kept.count; ++i) {
      for (; next < kept.slots[i]; ++next) stream.put(0, body.value_bits);
      stream.put(coder.code(kept.entries[i]), body.value_bits);
      ++next;
    }
    std::byte* const end = out + body.values_of(g) + stream.finish();
    std::fill(end, out + body.values_of(g) + bytes, std::byte{0});
  }
  /// Which slots are in the upper bin; returns how many.
  template <typename Coder>
  static std::uint16_t write_upper(const Kept& kept, const Coder& coder, std::uint32_t slots,
                                   core::BitWriter& gaps) noexcept {
    std::uint16_t upper[kMaxChunk];
    std::uint32_t count = 0, next = 0;
    for (std::uint32_t i = 0; i < kept.count; ++i) {
      upper[count] = kept.slots[i];
      count += coder.is_upper(kept.entries[i]) ? 1 : 0;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      write_gap(upper[i] - next, slots - next, count - i, gaps);
      next = upper[i] + 1u;
    }
    return static_cast<std::uint16_t>(count);
  }
};

/// Groups of a task: of so many entries that a tile on a border, which is made twice, takes little.
std::uint64_t groups_at_once(const ChunkBody& body) noexcept {
  constexpr std::uint64_t kEntries = 1 << 18;
  const std::uint64_t group = std::uint64_t{body.group_chunks} * body.chunk;
  return std::max<std::uint64_t>(kEntries / group, 1);
}

/// Calls `write(first group, group behind the last, room for kEntries and two tiles)` for all groups.
template <std::size_t kEntries, typename Write>
void write_tiled(Executor* executor, const ChunkBody& body, const Write& write) noexcept {
  core::run_ranges(executor, body.groups, groups_at_once(body),
                   [&](std::size_t begin, std::size_t end) {
                     float room[kEntries + 2 * kMaxTile];
                     write(begin, end, room);
                   });
}

}  // namespace

std::size_t max_encoded_bytes(const ChunkConfig& config, std::size_t n) noexcept {
  return n == 0 ? 0 : ChunkBody(config, n).max_bytes();
}

Status encode(const ChunkConfig& config, const TileReader* tiles, const float* x, std::size_t n,
              const Key& key, Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = 0;
  if (body.size() < max_encoded_bytes(config, n)) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  const ChunkBody at(config, n);
  std::byte* const out = body.data();
  const GroupWriter writer{config, at, key, out};
  // Every group's gaps are written where they stand behind the longest others, then moved down.
  std::atomic<bool> finite = true;
  const auto write_groups = [&](std::size_t begin, std::size_t end, std::span<float> room) {
    ChunkReader reader(x, tiles, room);
    for (std::size_t g = begin; g < end; ++g) {
      const std::size_t written =
          writer.write(g, reader, out + at.gaps_at + g * at.max_gap_bytes());
      if (written == ~std::size_t{0}) return finite.store(false, std::memory_order_relaxed);
      core::store_le(out + 2 * g, static_cast<std::uint16_t>(written));
    }
  };
  if (tiles == nullptr) {
    core::run_ranges(executor, at.groups, 1,
                     [&](std::size_t begin, std::size_t end) { write_groups(begin, end, {}); });
  } else if (config.draws) {
    write_tiled<kStoredGroup>(executor, at, write_groups);
  } else {
    write_tiled<kMaxChunk>(executor, at, write_groups);
  }
  if (!finite.load(std::memory_order_relaxed)) return Status::non_finite;
  std::fill(out + 2 * at.groups, out + at.levels_at, std::byte{0});
  std::fill(out + at.levels_at + 2 * at.groups * at.level_words, out + at.values_at, std::byte{0});
  std::size_t end = at.gaps_at;
  for (std::uint64_t g = 0; g < at.groups; ++g) {
    const std::size_t own = core::load_le<std::uint16_t>(out + 2 * g);
    std::memmove(out + end, out + at.gaps_at + g * at.max_gap_bytes(), own);
    end += own;
  }
  bytes = end;
  return Status::ok;
}

}  // namespace atomo::cpu
#endif
