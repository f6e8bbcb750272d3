// SPDX-License-Identifier: Apache-2.0
/// Encoding: a group of chunks at a time. What the k-th largest of a chunk was says near which magnitude
/// it is in the next one: one pass marks all above a bound below it, and of these few the k largest are
/// found. Where they are fewer than k, or many, the search is among all entries of the chunk.
///
/// Reads 4 bytes an entry, writes what is sent; decoding reads that and writes 4 bytes an entry.

#include "cpu/chunk_topk.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "coding/rice.hpp"
#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "format/chunk_values.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_topk.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Marks the entries of a chunk whose magnitude, as an integer, is above `bound`; returns the largest.
std::uint32_t mark_above_bound(const float* x, std::size_t n, std::uint32_t bound,
                               std::uint64_t* words) {
  const hn::CappedTag<std::int32_t, 16> d;
  const hn::RebindToFloat<decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, 0x7FFFFFFF);
  const auto least = hn::Set(d, static_cast<std::int32_t>(bound));
  auto largest = hn::Zero(d);
  for (std::size_t at = 0; at < n; at += 64) {
    float tail[64] = {};
    const float* in = x + at;
    if (n - at < 64) {
      std::memcpy(tail, in, (n - at) * sizeof(float));
      in = tail;
    }
    std::uint64_t marks = 0;
    for (std::size_t i = 0; i < 64; i += lanes) {
      const auto magnitude = hn::And(hn::BitCast(d, hn::LoadU(df, in + i)), mask);
      largest = hn::Max(largest, magnitude);
      std::uint8_t bits[8] = {};
      hn::StoreMaskBits(d, hn::Gt(magnitude, least), bits);
      marks |= (std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 8) << i;
    }
    words[at / 64] = marks;
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

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
HWY_EXPORT(mark_above_bound);
HWY_EXPORT(add_chunk);

namespace {

using format::ChunkBody;
using format::ChunkCoder;
using format::ChunkValues;

constexpr std::uint32_t kMaxChunk = ChunkConfig::kMaxChunk;
/// What the next chunk's bound is below the k-th largest of this one, as integers: a quarter of an octave.
constexpr std::uint32_t kBelow = 1u << 21;

std::uint32_t magnitude(float x) noexcept { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu; }

/// What a group keeps.
struct Kept {
  std::uint32_t entries[kMaxChunk];  ///< bit patterns
  std::uint32_t count = 0, least = ~0u, largest = 0;
};

/// Places of the entries of one chunk that may be among the k largest, and their magnitudes.
struct Candidates {
  std::uint16_t places[kMaxChunk];
  std::uint32_t magnitudes[kMaxChunk], sorted[kMaxChunk];
  std::uint32_t count = 0;

  void collect(const float* x, std::size_t n, const std::uint64_t* words) noexcept {
    count = 0;
    for (std::size_t w = 0; w * 64 < n; ++w) {
      for (std::uint64_t left = words[w]; left != 0; left &= left - 1) {
        const std::size_t i = 64 * w + static_cast<std::size_t>(std::countr_zero(left));
        places[count] = static_cast<std::uint16_t>(i);
        magnitudes[count++] = magnitude(x[i]);
      }
    }
  }
  /// Drops all but the k largest; returns the least of them.
  std::uint32_t keep_largest(std::uint32_t k) noexcept {
    std::copy_n(magnitudes, count, sorted);
    std::nth_element(sorted, sorted + (k - 1), sorted + count, std::greater<>());
    const std::uint32_t key = sorted[k - 1];
    std::uint32_t ties = k;
    for (std::uint32_t i = 0; i < k; ++i) ties -= sorted[i] > key ? 1 : 0;
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool tie = magnitudes[i] == key && ties > 0;
      ties -= tie ? 1 : 0;
      places[kept] = places[i];
      magnitudes[kept] = magnitudes[i];
      kept += magnitudes[i] > key || tie ? 1 : 0;
    }
    count = kept;
    return key;
  }
};

std::uint32_t count_marks(const std::uint64_t* words, std::size_t n) noexcept {
  std::uint32_t count = 0;
  for (std::size_t w = 0; w * 64 < n; ++w)
    count += static_cast<std::uint32_t>(std::popcount(words[w]));
  return count;
}

/// The k largest entries of a chunk that are not 0; false when one is not finite. `bound` is a guess,
/// which becomes one for the next chunk.
bool select_chunk_entries(const float* x, std::size_t n, std::uint32_t k, std::uint32_t& bound,
                          Candidates& out) noexcept {
  std::uint64_t words[kMaxChunk / 64];
  const std::uint32_t largest = HWY_DYNAMIC_DISPATCH(mark_above_bound)(x, n, bound, words);
  if (largest >= 0x7F800000u) return false;
  if (bound != 0 && count_marks(words, n) < k)
    HWY_DYNAMIC_DISPATCH(mark_above_bound)(x, n, bound = 0, words);
  out.collect(x, n, words);
  if (out.count <= k) return true;
  const std::uint32_t key = out.keep_largest(k);
  bound = key > kBelow ? key - kBelow : 0;
  return true;
}

void write_gaps(const Candidates& chunk, std::uint32_t n, std::uint32_t keep,
                core::BitWriter& out) noexcept {
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    const std::uint32_t gap = chunk.places[i] - next;
    const auto word = coding::rice_word(gap, format::gap_parameter(n - next, keep - i),
                                        format::kRawGapBits);
    out.put(word.bits, word.count);
    next = chunk.places[i] + 1u;
  }
  if (chunk.count == keep) return;
  const std::uint32_t left = n - next, marks = keep - chunk.count;
  const auto word = coding::rice_word(left, format::gap_parameter(left, marks),
                                      format::kRawGapBits);
  out.put(word.bits, word.count);
}

/// The bins of what a group keeps.
void find_group_bins(const Kept& kept, ChunkCoder& coder) noexcept {
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
  coder.set_bins(cells);
}

/// One group on its way into a body: its kept entries, and how many of each chunk.
struct GroupWriter {
  const ChunkConfig& config;
  const ChunkBody& body;
  const float* x;
  std::byte* out;

  /// Returns the bytes of the group's gaps; ~0 where an entry is not finite.
  std::size_t write(std::uint64_t g, std::byte* gaps) const noexcept {
    Kept kept;
    Candidates chunk;
    std::uint16_t counts[256];
    core::BitWriter stream(gaps, body.max_gap_bytes());
    std::uint32_t bound = 0;
    const std::uint32_t chunks = body.chunks_of(g);
    for (std::uint32_t c = 0; c < chunks; ++c) {
      const std::uint64_t number = g * body.group_chunks + c;
      const std::uint32_t n = body.entries_of(number), keep = body.keep_of(number);
      const float* const own = x + number * body.chunk;
      if (!select_chunk_entries(own, n, keep, bound, chunk)) return ~std::size_t{0};
      write_gaps(chunk, n, keep, stream);
      counts[c] = static_cast<std::uint16_t>(chunk.count);
      for (std::uint32_t i = 0; i < chunk.count; ++i) {
        kept.entries[kept.count++] = std::bit_cast<std::uint32_t>(own[chunk.places[i]]);
        kept.least = std::min(kept.least, chunk.magnitudes[i]);
        kept.largest = std::max(kept.largest, chunk.magnitudes[i]);
      }
    }
    write_values(g, kept, counts);
    return stream.finish();
  }

 private:
  void write_values(std::uint64_t g, const Kept& kept, const std::uint16_t* counts) const noexcept {
    std::byte* const words = out + body.levels_at + 2 * g * body.level_words;
    const std::uint32_t bytes = body.value_bytes_of(body.group_slots(g));
    if (kept.count == 0) {
      std::fill_n(words, 2 * body.level_words, std::byte{0});
      std::fill_n(out + body.values_of(g), bytes, std::byte{0});
      return;
    }
    ChunkCoder coder(config.values, kept.least, kept.largest);
    if (coder.has_bins()) find_group_bins(kept, coder);
    for (unsigned i = 0; i < body.level_words; ++i)
      core::store_le<std::uint16_t>(words + 2 * i, coder.word(i));
    core::BitWriter stream(out + body.values_of(g), bytes);
    const std::uint32_t* next = kept.entries;
    for (std::uint32_t c = 0; c < body.chunks_of(g); ++c) {
      const std::uint32_t keep = body.keep_of(g * body.group_chunks + c);
      for (std::uint32_t i = 0; i < counts[c]; ++i) stream.put(coder.code(*next++), body.value_bits);
      for (std::uint32_t i = counts[c]; i < keep; ++i) stream.put(0, body.value_bits);
    }
    std::byte* const end = out + body.values_of(g) + stream.finish();
    std::fill(end, out + body.values_of(g) + bytes, std::byte{0});
  }
};

/// A body whose lengths, levels and paddings were checked.
struct Opened {
  LayerBody* body = nullptr;
  std::span<const std::uint64_t> ends;  ///< of the groups' gaps
  std::atomic<bool>* broken = nullptr;  ///< set by the tasks
};

Status open(const ChunkConfig& config, const ChunkBody& at, ConstBytes bytes,
            std::span<std::uint64_t> ends) noexcept {
  if (bytes.size() < at.gaps_at) return Status::truncated;
  std::uint64_t end = at.gaps_at;
  for (std::uint64_t g = 0; g < at.groups; ++g) {
    end += core::load_le<std::uint16_t>(bytes.data() + 2 * g);
    ends[g] = end;
  }
  if (end != bytes.size()) return bytes.size() < end ? Status::truncated : Status::corrupt;
  for (std::uint64_t i = 0; i < at.groups * at.level_words; ++i) {
    const auto word = core::load_le<std::uint16_t>(bytes.data() + at.levels_at + 2 * i);
    if (!format::valid_level(config.values, word)) return Status::corrupt;
  }
  const std::uint64_t levels_end = at.levels_at + 2 * at.groups * at.level_words;
  const bool clean = core::all_zero(bytes.data(), 2 * at.groups, at.levels_at) &&
                     core::all_zero(bytes.data(), levels_end, at.values_at);
  return clean ? Status::ok : Status::corrupt;
}

/// Reads one group of one body, chunk by chunk.
class GroupReader {
 public:
  GroupReader(const ChunkConfig& config, const ChunkBody& at, const Opened& opened,
              std::uint64_t g) noexcept
      : config_(config),
        at_(at),
        words_(opened.body->bytes.data() + at.levels_at + 2 * g * at.level_words),
        values_(opened.body->bytes.data() + at.values_of(g), at.value_bytes_of(at.group_slots(g))),
        gaps_(opened.body->bytes.data() + (g == 0 ? at.gaps_at : opened.ends[g - 1]),
              bytes_of(at, opened, g)),
        gap_bits_(8 * std::uint64_t{bytes_of(at, opened, g)}),
        value_bits_(8 * std::uint64_t{at.value_bytes_of(at.group_slots(g))}) {}

  /// Calls `put(place, value)` for what a chunk keeps; false when it contradicts the format.
  template <typename Put>
  bool read(std::uint64_t number, Put put) noexcept {
    const std::uint32_t n = at_.entries_of(number), keep = at_.keep_of(number);
    std::uint32_t next = 0, marks = keep;
    bool good = true;
    for (; marks > 0; --marks) {
      const std::uint32_t gap = read_gap(format::gap_parameter(n - next, marks), good);
      if (gap >= n - next) {
        good = good && gap == n - next;
        break;
      }
      const auto code = static_cast<std::uint32_t>(values_.bits(value_at_, at_.value_bits));
      value_at_ += at_.value_bits;
      good = good && format::valid_code(config_.values, code);
      const std::uint32_t place = next + gap;
      put(place, format::chunk_value(config_.values, code, [&](unsigned i) {
            return core::load_le<std::uint16_t>(words_ + 2 * i);
          }));
      next = place + 1;
    }
    for (; marks > 0; --marks, value_at_ += at_.value_bits)
      good = good && values_.bits(value_at_, at_.value_bits) == 0;
    return good;
  }
  /// All chunks were read: both streams end in zeros.
  [[nodiscard]] bool ends() const noexcept {
    if (gap_at_ > gap_bits_ || gap_bits_ - gap_at_ >= 8) return false;
    return gaps_.bits(gap_at_, 7) == 0 && values_.bits(value_at_, 31) == 0;
  }

 private:
  static std::size_t bytes_of(const ChunkBody& at, const Opened& opened, std::uint64_t g) noexcept {
    return opened.ends[g] - (g == 0 ? at.gaps_at : opened.ends[g - 1]);
  }
  std::uint32_t read_gap(unsigned k, bool& good) noexcept {
    struct Stream {
      const core::BitReader& bits;
      std::uint64_t& at;
      [[nodiscard]] coding::UpwardWindow window() const noexcept { return {bits.peek(at)}; }
      void move(unsigned count) noexcept { at += count; }
    } stream{gaps_, gap_at_};
    return coding::read_rice(stream, k, format::kRawGapBits, good);
  }

  const ChunkConfig& config_;
  const ChunkBody& at_;
  const std::byte* words_;
  core::BitReader values_, gaps_;
  std::uint64_t gap_bits_, value_bits_;
  std::uint64_t gap_at_ = 0, value_at_ = 0;
};

/// Adds one body's group to y.
bool add_group(GroupReader reader, const ChunkBody& at, std::uint64_t g, bool add, float alpha,
               float* y) noexcept {
  float values[kMaxChunk] = {};
  std::uint16_t places[kMaxChunk];
  bool good = true;
  for (std::uint32_t c = 0; good && c < at.chunks_of(g); ++c) {
    const std::uint64_t number = g * at.group_chunks + c;
    float* const own = y + number * at.chunk;
    const std::uint32_t n = at.entries_of(number);
    if (!add) {
      std::fill_n(own, n, 0.0f);
      good = reader.read(number, [&](std::uint32_t place, float v) { own[place] = v; });
      continue;
    }
    std::uint32_t count = 0;
    good = reader.read(number, [&](std::uint32_t place, float v) {
      values[place] = v;
      places[count++] = static_cast<std::uint16_t>(place);
    });
    HWY_DYNAMIC_DISPATCH(add_chunk)(values, n, alpha, own);
    for (std::uint32_t i = 0; i < count; ++i) values[places[i]] = 0;
  }
  return good && reader.ends();
}

std::array<std::span<std::uint64_t>, kBodiesAtOnce> carve_ends(core::Carver& carver,
                                                               std::uint64_t groups) noexcept {
  std::array<std::span<std::uint64_t>, kBodiesAtOnce> ends;
  for (auto& of : ends) of = carver.take<std::uint64_t>(groups);
  return ends;
}

}  // namespace

std::size_t max_encoded_bytes(const ChunkConfig& config, std::size_t n) noexcept {
  return n == 0 ? 0 : ChunkBody(config, n).max_bytes();
}

std::size_t decode_workspace_bytes(const ChunkConfig& config, std::size_t n) noexcept {
  core::Carver carver;
  if (n > 0) carve_ends(carver, ChunkBody(config, n).groups);
  return carver.bytes();
}

Status encode(const ChunkConfig& config, const float* x, std::size_t n, Executor* executor,
              Bytes body, std::size_t& bytes) noexcept {
  bytes = 0;
  if (body.size() < max_encoded_bytes(config, n)) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  const ChunkBody at(config, n);
  std::byte* const out = body.data();
  const GroupWriter writer{config, at, x, out};
  // Every group's gaps are written where they stand behind the longest others, then moved down.
  std::atomic<bool> finite = true;
  core::run_tasks(executor, at.groups, [&](std::size_t g) {
    const std::size_t written = writer.write(g, out + at.gaps_at + g * at.max_gap_bytes());
    if (written == ~std::size_t{0}) {
      finite.store(false, std::memory_order_relaxed);
    } else {
      core::store_le(out + 2 * g, static_cast<std::uint16_t>(written));
    }
  });
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

void decode(const ChunkConfig& config, std::span<LayerBody> bodies, bool add, float alpha, float* y,
            std::size_t n, Bytes workspace, Executor* executor) noexcept {
  if (n == 0) {
    for (LayerBody& body : bodies) body.status = body.bytes.empty() ? Status::ok : Status::corrupt;
    return;
  }
  const ChunkBody at(config, n);
  core::Carver carver(workspace);
  const auto ends = carve_ends(carver, at.groups);
  std::array<std::atomic<bool>, kBodiesAtOnce> broken = {};
  std::size_t used = 0;
  OpenBodies<Opened> opened(bodies, [&](LayerBody& body, Opened& one) {
    if (!carver.fits()) return Status::workspace_too_small;
    one = {&body, ends[used], &broken[used]};
    const Status status = open(config, at, body.bytes, ends[used]);
    used += failed(status) ? 0 : 1;
    return status;
  });
  core::run_tasks(executor, at.groups, [&](std::size_t g) {
    for (const Opened& one : opened.all()) {
      if (!add_group(GroupReader(config, at, one, g), at, g, add, alpha, y))
        one.broken->store(true, std::memory_order_relaxed);
    }
  });
  for (const Opened& one : opened.all()) {
    if (one.broken->load(std::memory_order_relaxed)) one.body->status = Status::corrupt;
  }
}

}  // namespace atomo::cpu
#endif
