// SPDX-License-Identifier: Apache-2.0
/// Reading coordinates, segment by segment; nothing of a body is trusted. Its layout stands in
/// methods/coordinate.cpp.

#include <atomic>
#include <cstring>

#include "atomo/coordinate.hpp"
#include "bits.hpp"
#include "cpu/coordinate_memory.hpp"
#include "cpu/run_tasks.hpp"

namespace atomo::cpu {
namespace {

using namespace detail;

/// Calls found(place, signed level) for what a list holds; false when it breaks the format.
template <typename Found>
bool read_list(const BitReader& in, std::uint64_t& bit, std::size_t m, unsigned gap_k,
               bool with_levels, std::uint32_t base, unsigned k, Found found) noexcept {
  bool canonical = true;
  for (std::size_t place = 0;; ++place) {
    place += read_rice(in, bit, gap_k, kGapRawBits, canonical);
    if (!canonical || place > m) return false;
    if (place == m) return true;
    const bool negative = (in.peek(bit++) & 1) != 0;
    const std::uint32_t level =
        base + (with_levels ? read_rice(in, bit, k, kLevelBits, canonical) : 0);
    if (!canonical || level > kMaxLevel) return false;
    const auto magnitude = static_cast<std::int32_t>(level);
    if (!found(place, negative ? -magnitude : magnitude)) return false;
  }
}

template <typename Found>
bool read_dense(const BitReader& in, std::uint64_t& bit, std::size_t m, unsigned k,
                Found found) noexcept {
  bool canonical = true;
  for (std::size_t i = 0; i < m; ++i) {
    const std::uint32_t level = read_rice(in, bit, k, kLevelBits, canonical);
    if (!canonical || level > kMaxLevel) return false;
    if (level == 0) continue;
    const auto magnitude = static_cast<std::int32_t>(level);
    const bool negative = (in.peek(bit++) & 1) != 0;
    if (!found(i, negative ? -magnitude : magnitude)) return false;
  }
  return true;
}

/// Reads a segment of m entries whose bytes begin `data`; `data` goes on to the body's end.
template <typename Found>
bool read_segment(ConstBytes data, SegmentWord word, std::size_t m, Found found) noexcept {
  const BitReader in(data.data(), word.bytes);
  std::uint64_t bit = 0;
  bool good = true;
  switch (word.mode) {
    case SegmentMode::zero:
      return true;
    case SegmentMode::one_list:
      good = read_list(in, bit, m, word.others, true, 1, word.level, found);
      break;
    case SegmentMode::two_lists: {
      // No place may stand in both lists.
      std::uint64_t taken[kCoordinateSegment / 64] = {};
      const auto once = [&](std::size_t place, std::int32_t level) {
        const std::uint64_t mask = std::uint64_t{1} << (place % 64);
        if ((taken[place / 64] & mask) != 0) return false;
        taken[place / 64] |= mask;
        return found(place, level);
      };
      good = read_list(in, bit, m, word.ones, false, 1, 0, once) &&
             read_list(in, bit, m, word.others, true, 2, word.level, once);
      break;
    }
    case SegmentMode::dense:
      good = read_dense(in, bit, m, word.level, found);
      break;
  }
  // Exactly the stated bytes, the last one padded with zeros.
  return good && (bit + 7) / 8 == word.bytes && in.peek(bit) == 0;
}

struct SegmentTable {
  ConstBytes body;
  std::size_t segments;

  [[nodiscard]] SegmentWord word(std::size_t s) const noexcept {
    return SegmentWord::unpack(load_le<std::uint32_t>(body.data() + s * kTableEntryBytes));
  }
  /// Every word is valid and the segments fill the body exactly; not every one is zero.
  [[nodiscard]] bool valid() const noexcept {
    if (body.size() / kTableEntryBytes < segments) return false;
    std::uint64_t end = segments * kTableEntryBytes;
    const std::uint64_t table = end;
    for (std::size_t s = 0; s < segments; ++s) {
      const SegmentWord w = word(s);
      if (!w.valid()) return false;
      end += w.bytes;
    }
    return end == body.size() && end > table;
  }
};

struct DecodeTask {
  SegmentTable table;
  std::size_t n;
  double step;
  bool add;
  float alpha;
  float* y;
  DecodeMemory& memory;
  std::size_t first = 0;
  std::atomic<bool> corrupt{false};

  void operator()(std::size_t i) noexcept {
    const std::size_t begin = (first + i) * kCoordinateSegment;
    const std::size_t m = std::min(kCoordinateSegment, n - begin);
    float* out = y + begin;
    float* values = add ? memory.values[i].data() : out;
    std::memset(values, 0, m * sizeof(float));
    const auto found = [&](std::size_t place, std::int32_t level) {
      values[place] = grid_value(level, step);
      return true;
    };
    if (!read_segment(table.body.subspan(memory.starts[i]), table.word(first + i), m, found)) {
      corrupt.store(true, std::memory_order_relaxed);
      return;
    }
    if (!add) return;
    for (std::size_t k = 0; k < m; ++k) out[k] = out[k] + (alpha * values[k]);
  }
};

void fill_zero(std::size_t n, bool add, float alpha, float* y) noexcept {
  if (!add) {
    std::memset(y, 0, n * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < n; ++i) y[i] = y[i] + (alpha * 0.0f);
}

Status decode_body(ConstBytes body, std::size_t n, float step, bool add, float alpha, float* y,
                   Bytes workspace, Executor* executor) noexcept {
  if (n == 0) return body.empty() ? Status::ok : Status::corrupt;
  if (body.empty()) {
    fill_zero(n, add, alpha, y);
    return Status::ok;
  }
  if (!(step > 0) || !std::isfinite(step)) return Status::corrupt;
  const SegmentTable table{body, segments_of(n)};
  if (!table.valid()) return Status::corrupt;
  Carver carver(workspace);
  DecodeMemory memory(carver, n);
  if (!carver.fits()) return Status::workspace_too_small;
  DecodeTask task{table, n, step, add, alpha, y, memory};
  std::uint64_t start = table.segments * kTableEntryBytes;
  for (std::size_t s = 0; s < table.segments; s += memory.count) {
    const std::size_t count = std::min(memory.count, table.segments - s);
    for (std::size_t i = 0; i < count; ++i) {
      memory.starts[i] = start;
      start += table.word(s + i).bytes;
    }
    task.first = s;
    run_tasks(executor, count, [&](std::size_t i) { task(i); });
    if (task.corrupt.load(std::memory_order_relaxed)) return Status::corrupt;
  }
  return Status::ok;
}

}  // namespace

std::size_t decode_workspace_bytes(const CoordinateConfig&, std::size_t n) noexcept {
  Carver decoding;
  DecodeMemory(decoding, n);
  return decoding.bytes();
}

Status decode(const CoordinateConfig& config, ConstBytes body, float* y, std::size_t n,
              Bytes workspace, Executor* executor) noexcept {
  return decode_body(body, n, config.step, false, 1, y, workspace, executor);
}

Status decode_add(const CoordinateConfig& config, ConstBytes body, float alpha, float* y,
                  std::size_t n, Bytes workspace, Executor* executor) noexcept {
  return decode_body(body, n, config.step, true, alpha, y, workspace, executor);
}

Status coordinate_count(ConstBytes body, std::size_t n, std::uint64_t& kept) noexcept {
  kept = 0;
  if (body.empty()) return Status::ok;
  const SegmentTable table{body, segments_of(n)};
  if (!table.valid()) return Status::corrupt;
  std::uint64_t start = table.segments * kTableEntryBytes;
  for (std::size_t s = 0; s < table.segments; ++s) {
    const std::size_t m = std::min(kCoordinateSegment, n - s * kCoordinateSegment);
    const auto found = [&](std::size_t, std::int32_t) {
      ++kept;
      return true;
    };
    if (!read_segment(body.subspan(start), table.word(s), m, found)) return Status::corrupt;
    start += table.word(s).bytes;
  }
  return Status::ok;
}

}  // namespace atomo::cpu
