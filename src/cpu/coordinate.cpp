// SPDX-License-Identifier: Apache-2.0
/// Writing coordinates, segment by segment: round 8 chunks of 4,096 entries, list what is not zero,
/// take the shortest of one list, two lists and dense levels, write it. Segments need nothing of
/// each other; those of one batch may run on several threads, each in a slot of the workspace, and
/// are then laid end to end. The body's layout stands in methods/coordinate.cpp.

#include "atomo/coordinate.hpp"

#include <atomic>
#include <bit>
#include <cstring>

#include "atomo/philox.hpp"
#include "bits.hpp"
#include "cpu/coordinate_memory.hpp"
#include "cpu/run_tasks.hpp"

namespace atomo::cpu {
namespace {

using namespace detail;

/// What one `BitWriter::put` takes.
constexpr unsigned kMaxPutBits = 56;

// ---- rounding

/// Levels of one chunk; false when the step is too small for an entry.
bool round_chunk(const float* x, std::size_t m, double step, std::uint32_t u, std::uint32_t* levels,
                 std::uint32_t* parts) noexcept {
  const double scale = grid_scale(step);
  std::uint64_t top = 0;
  for (std::size_t i = 0; i < m; ++i) {
    const std::uint64_t fixed = grid_fixed(x[i], scale);
    top = std::max(top, fixed);
    levels[i] = static_cast<std::uint32_t>(fixed >> 32);
    parts[i] = static_cast<std::uint32_t>(fixed);
  }
  if (top >> 32 >= kMaxLevel) return false;
  if (grid_at_top(top >> 32, step)) {
    for (std::size_t i = 0; i < m; ++i) {
      const std::uint64_t fixed = grid_fixed_at_top(x[i], step, scale);
      levels[i] = static_cast<std::uint32_t>(fixed >> 32);
      parts[i] = static_cast<std::uint32_t>(fixed);
    }
  }
  draw_chunk(
      m, u, [&](std::size_t k) { return parts[k]; },
      [&](std::size_t k, std::uint32_t carried) { levels[k] += carried; });
  return true;
}

// ---- choosing how to write a segment

struct SegmentLists {
  std::span<const std::uint16_t> nonzero, ones, others;
};

SegmentLists list_segment(const Slot& slot, std::size_t m) noexcept {
  // Every place is written, what does not belong is overwritten by the next: no branch on the data.
  const std::uint32_t* const levels = slot.levels.data();
  std::uint16_t* const nonzero = slot.nonzero.data();
  std::uint16_t* const ones = slot.ones.data();
  std::uint16_t* const others = slot.others.data();
  std::size_t count = 0, large = 0;
  for (std::size_t i = 0; i < m; ++i) {
    nonzero[count] = static_cast<std::uint16_t>(i);
    count += std::size_t{levels[i] != 0};
  }
  for (std::size_t i = 0; i < count; ++i) {
    ones[i - large] = others[large] = nonzero[i];
    large += std::size_t{levels[nonzero[i]] > 1};
  }
  return {slot.nonzero.first(count), slot.ones.first(count - large), slot.others.first(large)};
}

/// Bits of the gaps of ascending places, and of the end mark: the gap to place m.
std::uint32_t gaps_bits(std::span<const std::uint16_t> places, std::size_t m, unsigned k) noexcept {
  const std::uint16_t* const at = places.data();
  const std::size_t count = places.size();
  const auto end = static_cast<std::uint32_t>(count == 0 ? m : m - at[count - 1] - 1);
  std::uint32_t bits = rice_bits(end, k, kGapRawBits);
  if (count > 0) bits += rice_bits(at[0], k, kGapRawBits);
  for (std::size_t i = 1; i < count; ++i)
    bits += rice_bits(std::uint32_t{at[i]} - at[i - 1] - 1u, k, kGapRawBits);
  return bits;
}

/// Bits of the levels at `places`, less `base`.
std::uint32_t levels_bits(std::span<const std::uint16_t> places, const std::uint32_t* levels,
                          std::uint32_t base, unsigned k) noexcept {
  std::uint32_t bits = 0;
  for (const std::uint16_t place : places) bits += rice_bits(levels[place] - base, k, kLevelBits);
  return bits;
}

/// Bits of all m levels.
std::uint32_t dense_bits(const std::uint32_t* levels, std::size_t m, unsigned k) noexcept {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < m; ++i) bits += rice_bits(levels[i], k, kLevelBits);
  return bits;
}

SegmentWord choose_word(const std::uint32_t* levels, const SegmentLists& lists,
                        std::size_t m) noexcept {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < m; ++i) total += levels[i];
  const SegmentCounts counts{static_cast<std::uint32_t>(m),
                             static_cast<std::uint32_t>(lists.nonzero.size()),
                             static_cast<std::uint32_t>(lists.others.size()), total};
  const auto bits_at = [&](SegmentSum sum, unsigned k) noexcept -> std::uint32_t {
    switch (sum) {
      case kEveryGaps:
        return gaps_bits(lists.nonzero, m, k);
      case kEveryLevels:
        return levels_bits(lists.nonzero, levels, 1, k);
      case kOnesGaps:
        return gaps_bits(lists.ones, m, k);
      case kOthersGaps:
        return gaps_bits(lists.others, m, k);
      case kOthersLevels:
        return levels_bits(lists.others, levels, 2, k);
      case kDenseLevels:
        break;
    }
    return dense_bits(levels, m, k);
  };
  return plan_segment(counts, bits_at).word;
}

// ---- writing

std::uint64_t sign_of(float x) noexcept { return std::bit_cast<std::uint32_t>(x) >> 31; }

/// Gap and sign of every place; when `with_levels`, then the level less `base` under `k`. At the
/// end the gap to place m.
template <bool with_levels>
void write_list(BitWriter& stream, std::span<const std::uint16_t> places, std::size_t m,
                unsigned gap_k, const float* x, const std::uint32_t* levels, std::uint32_t base,
                unsigned k) noexcept {
  BitWriter out = stream;  // a copy the compiler can keep in registers
  std::size_t next = 0;
  for (const std::uint16_t place : places) {
    RiceWord word = rice_word(static_cast<std::uint32_t>(place - next), gap_k, kGapRawBits);
    next = std::size_t{place} + 1;
    word.bits |= sign_of(x[place]) << word.count++;
    if (with_levels) {
      const RiceWord level = rice_word(levels[place] - base, k, kLevelBits);
      if (word.count + level.count > kMaxPutBits) {
        out.put(word.bits, word.count);
        word = {0, 0};
      }
      word.bits |= level.bits << word.count;
      word.count += level.count;
    }
    out.put(word.bits, word.count);
  }
  const RiceWord end = rice_word(static_cast<std::uint32_t>(m - next), gap_k, kGapRawBits);
  out.put(end.bits, end.count);
  stream = out;
}

void write_dense(BitWriter& out, std::span<const std::uint32_t> levels, const float* x,
                 unsigned k) noexcept {
  BitWriter local = out;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const RiceWord word = rice_word(levels[i], k, kLevelBits);
    const std::uint64_t has_sign = levels[i] != 0 ? 1 : 0;
    local.put(word.bits | (sign_of(x[i]) & has_sign) << word.count,
              word.count + static_cast<unsigned>(has_sign));
  }
  out = local;
}

struct EncodeTask {
  const float* x;
  std::size_t n;
  double step;
  Philox draws;
  EncodeMemory& memory;
  std::size_t first = 0;  ///< segment of slot 0
  SegmentWord words[kSlots] = {};
  std::atomic<bool> too_small{false};

  void operator()(std::size_t i) noexcept {
    Slot& slot = memory.slots[i];
    const std::size_t begin = (first + i) * kCoordinateSegment;
    const std::size_t m = std::min(kCoordinateSegment, n - begin);
    const float* entries = x + begin;
    words[i] = {};
    for (std::size_t at = 0; at < m; at += kCoordinateChunk) {
      const std::uint32_t u = draws((begin + at) / kCoordinateChunk)[0];
      if (!round_chunk(entries + at, std::min(kCoordinateChunk, m - at), step, u,
                       slot.levels.data() + at, slot.parts.data())) {
        too_small.store(true, std::memory_order_relaxed);
        return;
      }
    }
    const SegmentLists lists = list_segment(slot, m);
    if (lists.nonzero.empty()) return;
    const SegmentWord how = choose_word(slot.levels.data(), lists, m);
    BitWriter out(slot.out.data(), slot.out.size());
    const std::uint32_t* levels = slot.levels.data();
    if (how.mode == SegmentMode::dense) {
      write_dense(out, slot.levels.first(m), entries, how.level);
    } else if (how.mode == SegmentMode::one_list) {
      write_list<true>(out, lists.nonzero, m, how.others, entries, levels, 1, how.level);
    } else {
      write_list<false>(out, lists.ones, m, how.ones, entries, nullptr, 0, 0);
      write_list<true>(out, lists.others, m, how.others, entries, levels, 2, how.level);
    }
    words[i] = how;
    words[i].bytes = static_cast<std::uint32_t>(out.finish());
  }
};

}  // namespace

std::size_t max_encoded_bytes(const CoordinateConfig&, std::size_t n) noexcept {
  return segments_of(n) * kTableEntryBytes +
         n / kCoordinateSegment * max_segment_bytes(kCoordinateSegment) +
         max_segment_bytes(n % kCoordinateSegment);
}

std::size_t workspace_bytes(const CoordinateConfig&, std::size_t n) noexcept {
  Carver encoding, decoding;
  EncodeMemory(encoding, n);
  DecodeMemory(decoding, n);
  return std::max(encoding.bytes(), decoding.bytes());
}

Status encode(const CoordinateConfig& config, const float* x, std::size_t n, const Key& key,
              Bytes workspace, Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = 0;
  if (!(config.step > 0) || !std::isfinite(config.step)) return Status::unsupported;
  if (body.size() < max_encoded_bytes(config, n)) return Status::buffer_too_small;
  Carver carver(workspace);
  EncodeMemory memory(carver, n);
  if (!carver.fits()) return Status::workspace_too_small;
  EncodeTask task{x, n, config.step, Philox(key, Purpose::select_coordinate), memory};
  const std::size_t segments = segments_of(n);
  const std::size_t table = segments * kTableEntryBytes;
  std::size_t end = table;
  for (std::size_t s = 0; s < segments; s += memory.count) {
    const std::size_t count = std::min(memory.count, segments - s);
    task.first = s;
    run_tasks(executor, count, [&](std::size_t i) { task(i); });
    if (task.too_small.load(std::memory_order_relaxed)) return Status::unsupported;
    for (std::size_t i = 0; i < count; ++i) {
      store_le(body.data() + (s + i) * kTableEntryBytes, task.words[i].pack());
      std::memcpy(body.data() + end, memory.slots[i].out.data(), task.words[i].bytes);
      end += task.words[i].bytes;
    }
  }
  bytes = end > table ? end : 0;
  return Status::ok;
}

float coordinate_lowest_step(float largest) noexcept {
  return std::bit_cast<float>(lowest_step_code(std::fabs(largest)) << 16);
}

}  // namespace atomo::cpu
