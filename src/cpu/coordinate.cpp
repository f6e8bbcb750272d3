// SPDX-License-Identifier: Apache-2.0
/// Writing coordinates, segment by segment: round 8 chunks of 4,096 entries, then write them
/// (coordinate_write.hpp). Segments need nothing of each other; those of one batch may run on
/// several threads, each in a slot of the workspace, and are then laid end to end.

#include "cpu/coordinate.hpp"

#include <atomic>
#include <bit>
#include <cstring>

#include "core/philox.hpp"
#include "core/run_tasks.hpp"
#include "cpu/coordinate_memory.hpp"
#include "cpu/coordinate_round.hpp"
#include "cpu/coordinate_write.hpp"

namespace atomo::cpu {
namespace {

/// Levels of a segment; an entry's sign is its own.
struct RoundedLevels {
  const std::uint32_t* levels;
  const float* x;

  [[nodiscard]] std::uint32_t at(std::size_t place) const noexcept { return levels[place]; }
  [[nodiscard]] std::uint64_t negative(std::size_t place) const noexcept {
    return std::bit_cast<std::uint32_t>(x[place]) >> 31;
  }
};

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
      const RoundedChunk chunk{slot.levels.data() + at, slot.marks[0].data() + at / 64,
                               slot.marks[1].data() + at / 64};
      if (!round_chunk(entries + at, std::min(kCoordinateChunk, m - at), step, u, chunk)) {
        too_small.store(true, std::memory_order_relaxed);
        return;
      }
    }
    const RoundedLevels levels{slot.levels.data(), entries};
    const std::size_t marks = whole_chunks(m) / 64;
    const SegmentLists lists = list_marked(slot.marks[0].first(marks), slot.marks[1].first(marks),
                                           {slot.nonzero, slot.ones, slot.others});
    if (lists.nonzero.empty()) return;
    const SegmentPlan plan = choose_word(levels, lists, m);
    words[i] = plan.word;
    words[i].bytes = static_cast<std::uint32_t>((plan.bits + 7) / 8);
    write_content(slot.out.data(), levels, lists, m, words[i]);
  }
};

}  // namespace

std::size_t max_encoded_bytes(const CoordinateConfig&, std::size_t n) noexcept {
  return segments_of(n) * kSegmentWordBytes +
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
  const std::size_t table = segments * kSegmentWordBytes;
  std::size_t end = table;
  for (std::size_t s = 0; s < segments; s += memory.count) {
    const std::size_t count = std::min(memory.count, segments - s);
    task.first = s;
    run_tasks(executor, count, [&](std::size_t i) { task(i); });
    if (task.too_small.load(std::memory_order_relaxed)) return Status::unsupported;
    for (std::size_t i = 0; i < count; ++i) {
      store_le(body.data() + (s + i) * kSegmentWordBytes, task.words[i].pack());
      std::memcpy(body.data() + end, memory.slots[i].out.data(), task.words[i].bytes);
      end += task.words[i].bytes;
    }
  }
  bytes = end > table ? end : 0;
  return Status::ok;
}

}  // namespace atomo::cpu
