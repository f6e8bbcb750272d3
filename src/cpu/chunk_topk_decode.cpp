// SPDX-License-Identifier: Apache-2.0
/// Decoding chunked top-k: a group of chunks at a time, message by message. Where chunks are of tiles, a tile
/// at a time, message by message, of a group at a time of each message.

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "coding/rice.hpp"
#include "core/run_tasks.hpp"
#include "cpu/chunk_candidates.hpp"
#include "cpu/chunk_topk.hpp"
#include "format/chunk_values.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_topk_decode.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// y[i] = y[i] + (alpha * v[i]).
void add_chunk(const float* v, std::size_t n, float alpha, float* y) {
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto times = hn::Set(d, alpha);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::Mul(times, hn::LoadU(d, v + i))), d, y + i);
  for (; i < n; ++i) y[i] = y[i] + (alpha * v[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(add_chunk);

namespace {

using format::ChunkBody;

/// A body whose lengths, levels and paddings were checked.
struct Opened {
  LayerBody* body = nullptr;
  std::atomic<bool>* broken = nullptr;  ///< set by the tasks
};

constexpr std::uint64_t kStretches = 64;  ///< of groups, at most, that are decoded at once

/// Bytes of a group's gaps.
std::size_t gap_bytes(ConstBytes body, std::uint64_t g) noexcept {
  return core::load_le<std::uint16_t>(body.data() + 2 * g);
}
/// Where the gaps of a group begin.
std::uint64_t gaps_begin(const ChunkBody& at, ConstBytes body, std::uint64_t g) noexcept {
  std::uint64_t begin = at.gaps_at;
  for (std::uint64_t i = 0; i < g; ++i) begin += gap_bytes(body, i);
  return begin;
}

Status open(const ChunkConfig& config, const ChunkBody& at, ConstBytes bytes) noexcept {
  if (bytes.size() < at.gaps_at) return Status::truncated;
  const std::uint64_t end = gaps_begin(at, bytes, at.groups);
  if (end != bytes.size()) return bytes.size() < end ? Status::truncated : Status::corrupt;
  for (std::uint64_t g = 0; g < at.groups; ++g) {
    for (unsigned i = 0; i < at.level_words; ++i) {
      const auto word =
          core::load_le<std::uint16_t>(bytes.data() + at.levels_at + 2 * (g * at.level_words + i));
      if (!format::valid_level(config.values, i, at.group_slots(g), word)) return Status::corrupt;
    }
  }
  const std::uint64_t levels_end = at.levels_at + 2 * at.groups * at.level_words;
  const bool clean = core::all_zero(bytes.data(), 2 * at.groups, at.levels_at) &&
                     core::all_zero(bytes.data(), levels_end, at.values_at);
  return clean ? Status::ok : Status::corrupt;
}

/// What a slot of a group holds: the place in its chunk, or nothing.
constexpr std::uint16_t kUnused = 0x8000, kUpper = 0x4000, kPlace = 0x0FFF;

/// One group of one body.
class GroupReader {
 public:
  /// `gaps`: where the group's own begin.
  GroupReader(const ChunkConfig& config, const ChunkBody& at, ConstBytes body, std::uint64_t g,
              std::uint64_t gaps) noexcept
      : config_(&config),
        at_(&at),
        group_(g),
        count_(at.group_slots(g)),
        words_(body.data() + at.levels_at + 2 * g * at.level_words),
        values_(body.data() + at.values_of(g), at.value_bytes_of(count_)),
        gaps_(body.data() + gaps, gap_bytes(body, g)),
        gap_bits_(8 * std::uint64_t{gap_bytes(body, g)}) {}

  /// Reads what all slots hold; false when it contradicts the format. What is read is sound even then.
  bool read() noexcept {
    bool good = true;
    std::uint16_t* next = slots_;
    for (std::uint32_t c = 0; c < at_->chunks_of(group_); ++c)
      next = read_chunk(group_ * at_->group_chunks + c, next, good);
    if (at_->lists_upper) read_upper(good);
    for (std::uint32_t i = 0; i < count_; ++i) {
      if (slots_[i] == kUnused)
        good = good && code(i) == 0;
      else
        good = good && format::valid_code(config_->values, code(i));
    }
    // Both streams end in zeros.
    if (gap_at_ > gap_bits_ || gap_bits_ - gap_at_ >= 8) return false;
    return good && gaps_.bits(gap_at_, 7) == 0 &&
           values_.bits(std::uint64_t{count_} * at_->value_bits, 31) == 0;
  }
  /// The slots of a chunk of the group: from the first on those that hold something.
  [[nodiscard]] std::uint32_t first_slot(std::uint32_t c) const noexcept { return c * at_->keep; }
  [[nodiscard]] std::uint32_t end_slot(std::uint32_t c) const noexcept {
    return first_slot(c) + at_->keep_of(group_ * at_->group_chunks + c);
  }
  [[nodiscard]] bool holds(std::uint32_t slot) const noexcept {
    return (slots_[slot] & kUnused) == 0;
  }
  /// What a slot holds: a place in its chunk, and what stands there.
  [[nodiscard]] std::uint32_t place(std::uint32_t slot) const noexcept {
    return slots_[slot] & kPlace;
  }
  [[nodiscard]] float value(std::uint32_t slot) const noexcept {
    const std::uint32_t upper = (slots_[slot] & kUpper) != 0 ? 1u : 0u;
    const std::uint32_t full = at_->lists_upper ? upper | code(slot) << 1 : code(slot);
    return format::chunk_value(config_->values, full, [&](unsigned w) {
      return core::load_le<std::uint16_t>(words_ + 2 * w);
    });
  }
  /// Calls `put(place, value)` for what a chunk keeps.
  template <typename Put>
  void chunk(std::uint32_t c, Put put) const noexcept {
    for (std::uint32_t i = first_slot(c); i < end_slot(c) && holds(i); ++i) put(place(i), value(i));
  }

 private:
  [[nodiscard]] std::uint32_t code(std::uint32_t slot) const noexcept {
    return static_cast<std::uint32_t>(
        values_.bits(std::uint64_t{slot} * at_->value_bits, at_->value_bits));
  }
  std::uint32_t read_gap(std::uint32_t left, std::uint32_t marks, bool& good) noexcept {
    struct Stream {
      const core::BitReader& bits;
      std::uint64_t& at;
      [[nodiscard]] coding::UpwardWindow window() const noexcept { return {bits.peek(at)}; }
      void move(unsigned count) noexcept { at += count; }
    } stream{gaps_, gap_at_};
    return coding::read_rice(stream, format::gap_parameter(left, marks), format::kRawGapBits, good);
  }
  std::uint16_t* read_chunk(std::uint64_t number, std::uint16_t* out, bool& good) noexcept {
    const std::uint32_t n = at_->entries_of(number);
    std::uint16_t* const end = out + at_->keep_of(number);
    for (std::uint32_t next = 0; out < end;) {
      const std::uint32_t gap = read_gap(n - next, static_cast<std::uint32_t>(end - out), good);
      if (gap >= n - next) {
        good = good && gap == n - next;
        break;
      }
      *out++ = static_cast<std::uint16_t>(next + gap);
      next += gap + 1;
    }
    std::fill(out, end, kUnused);
    return end;
  }
  void read_upper(bool& good) noexcept {
    std::uint32_t next = 0;
    for (std::uint32_t left = core::load_le<std::uint16_t>(words_ + 4); left > 0; --left) {
      next += read_gap(count_ - next, left, good);
      if (next >= count_ || (slots_[next] & kUnused) != 0) {
        good = false;
        return;
      }
      slots_[next++] |= kUpper;
    }
  }

  const ChunkConfig* config_;
  const ChunkBody* at_;
  std::uint64_t group_;
  std::uint32_t count_;
  const std::byte* words_;
  core::BitReader values_, gaps_;
  std::uint64_t gap_bits_, gap_at_ = 0;
  std::uint16_t slots_[kMaxChunk];
};

/// Adds one body's group to y; false, with y as it was, when it contradicts the format.
bool add_group(GroupReader reader, const ChunkBody& at, std::uint64_t g, bool add, float alpha,
               float* y) noexcept {
  if (!reader.read()) return false;
  float values[kMaxChunk];
  if (add) std::fill_n(values, at.chunk, 0.0f);
  for (std::uint32_t c = 0; c < at.chunks_of(g); ++c) {
    const std::uint64_t number = g * at.group_chunks + c;
    float* const own = y + number * at.chunk;
    const std::uint32_t n = at.entries_of(number);
    if (!add) {
      std::fill_n(own, n, 0.0f);
      reader.chunk(c, [&](std::uint32_t place, float v) { own[place] = v; });
      continue;
    }
    reader.chunk(c, [&](std::uint32_t place, float v) { values[place] = v; });
    HWY_DYNAMIC_DISPATCH(add_chunk)(values, n, alpha, own);
    reader.chunk(c, [&](std::uint32_t place, float) { values[place] = 0; });
  }
  return true;
}

/// What one body keeps, in the order of its sequence, from the begin of a group on.
class KeptReader {
 public:
  KeptReader(const ChunkConfig& config, const ChunkBody& at, const Opened& opened,
             std::uint64_t first_group) noexcept
      : config_(config), at_(at), opened_(opened), next_group_(first_group) {
    gaps_ = gaps_begin(at, opened.body->bytes, first_group);
  }

  /// Calls `put(place in the sequence, value)` for what is kept before `end`. Reads and checks all groups
  /// that begin before it; what one that contradicts the format keeps is left out.
  template <typename Put>
  void read_before(std::uint64_t end, Put put) noexcept {
    for (;;) {
      for (; slot_ < end_slot_ && group_->holds(slot_); ++slot_) {
        const std::uint64_t place = chunk_begin_ + group_->place(slot_);
        if (place >= end) return;
        put(place, group_->value(slot_));
      }
      slot_ = end_slot_;
      if (!begin_chunk(end)) return;
    }
  }

 private:
  /// False where the next chunk does not begin before `end`.
  bool begin_chunk(std::uint64_t end) noexcept {
    if (chunk_ == chunks_ && !begin_group(end)) return false;
    const std::uint64_t number = (next_group_ - 1) * at_.group_chunks + chunk_;
    if (number * at_.chunk >= end) return false;
    chunk_begin_ = number * at_.chunk;
    slot_ = group_->first_slot(chunk_);
    end_slot_ = group_->end_slot(chunk_);
    ++chunk_;
    return true;
  }
  bool begin_group(std::uint64_t end) noexcept {
    while (next_group_ < at_.groups && next_group_ * at_.group_chunks * at_.chunk < end) {
      const ConstBytes body = opened_.body->bytes;
      group_.emplace(config_, at_, body, next_group_, gaps_);
      gaps_ += gap_bytes(body, next_group_);
      chunk_ = 0;
      chunks_ = at_.chunks_of(next_group_++);
      if (group_->read()) return true;
      opened_.broken->store(true, std::memory_order_relaxed);
      chunk_ = chunks_;
    }
    return false;
  }

  const ChunkConfig& config_;
  const ChunkBody& at_;
  const Opened& opened_;
  std::uint64_t next_group_, gaps_ = 0, chunk_begin_ = 0;
  std::uint32_t chunk_ = 0, chunks_ = 0;  ///< of the group, the next one and how many
  std::uint32_t slot_ = 0, end_slot_ = 0;
  std::optional<GroupReader> group_;
};

/// Opens the bodies and calls `decode(at, opened bodies, begin, end)` for stretches [begin, end) of their
/// groups.
template <typename Decode>
void decode_bodies(const ChunkConfig& config, std::span<LayerBody> bodies, std::size_t n,
                   Executor* executor, const Decode& decode) noexcept {
  if (n == 0) {
    for (LayerBody& body : bodies) body.status = body.bytes.empty() ? Status::ok : Status::corrupt;
    return;
  }
  const ChunkBody at(config, n);
  std::array<std::atomic<bool>, kBodiesAtOnce> broken = {};
  std::size_t used = 0;
  OpenBodies<Opened> opened(bodies, [&](LayerBody& body, Opened& one) {
    one = {&body, &broken[used]};
    const Status status = open(config, at, body.bytes);
    used += failed(status) ? 0 : 1;
    return status;
  });
  // Each stretch adds up the lengths of the groups before it.
  const std::uint64_t stretch = (at.groups + kStretches - 1) / kStretches;
  core::run_ranges(executor, at.groups, stretch, [&](std::size_t begin, std::size_t end) {
    decode(at, opened.all(), begin, end);
  });
  for (const Opened& one : opened.all()) {
    if (one.broken->load(std::memory_order_relaxed)) one.body->status = Status::corrupt;
  }
}

}  // namespace

void decode(const ChunkConfig& config, std::span<LayerBody> bodies, bool add, float alpha, float* y,
            std::size_t n, Executor* executor) noexcept {
  decode_bodies(
      config, bodies, n, executor,
      [&](const ChunkBody& at, std::span<Opened> opened, std::uint64_t begin, std::uint64_t end) {
        std::array<std::uint64_t, kBodiesAtOnce> gaps = {};
        for (std::size_t k = 0; k < opened.size(); ++k)
          gaps[k] = gaps_begin(at, opened[k].body->bytes, begin);
        for (std::uint64_t g = begin; g < end; ++g) {
          for (std::size_t k = 0; k < opened.size(); ++k) {
            const ConstBytes body = opened[k].body->bytes;
            if (!add_group({config, at, body, g, gaps[k]}, at, g, add, alpha, y))
              opened[k].broken->store(true, std::memory_order_relaxed);
            gaps[k] += gap_bytes(body, g);
          }
        }
      });
}

void decode(const ChunkConfig& config, std::span<LayerBody> bodies, const TileWriter& tiles,
            Executor* executor) noexcept {
  const std::uint64_t tile = tiles.tiles().entries(), n = tile * tiles.tiles().count();
  decode_bodies(
      config, bodies, n, executor,
      [&](const ChunkBody& at, std::span<Opened> opened, std::uint64_t begin, std::uint64_t end) {
        // A stretch has the tiles that begin in its groups.
        const std::uint64_t group = std::uint64_t{at.group_chunks} * at.chunk;
        const std::uint64_t first = (begin * group + tile - 1) / tile;
        const std::uint64_t last = (std::min(end * group, n) + tile - 1) / tile;
        std::array<std::optional<KeptReader>, kBodiesAtOnce> readers;
        for (std::size_t k = 0; k < opened.size(); ++k) {
          readers[k].emplace(config, at, opened[k], begin);
          readers[k]->read_before(first * tile, [](std::uint64_t, float) {});
        }
        KeptEntry kept[kMaxTile];
        for (std::uint64_t t = first; t < last; ++t) {
          for (std::size_t k = 0; k < opened.size(); ++k) {
            std::size_t count = 0;
            readers[k]->read_before((t + 1) * tile, [&](std::uint64_t place, float value) {
              kept[count++] = {static_cast<std::uint32_t>(place - t * tile), value};
            });
            tiles.write(t, {kept, count});
          }
        }
      });
}

}  // namespace atomo::cpu
#endif
