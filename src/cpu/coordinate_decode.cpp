// SPDX-License-Identifier: Apache-2.0
/// Decoding coordinates, segment by segment, on several threads.

#include <atomic>
#include <cstring>

#include "core/run_tasks.hpp"
#include "cpu/coordinate.hpp"
#include "cpu/coordinate_memory.hpp"
#include "cpu/coordinate_read.hpp"

namespace atomo::cpu {
namespace {

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
    const auto found = [&](std::size_t place, std::int64_t level) {
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
  std::uint64_t start = table.bytes();
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
  std::uint64_t start = table.bytes();
  for (std::size_t s = 0; s < table.segments; ++s) {
    const std::size_t m = std::min(kCoordinateSegment, n - s * kCoordinateSegment);
    const auto found = [&](std::size_t, std::int64_t) {
      ++kept;
      return true;
    };
    if (!read_segment(body.subspan(start), table.word(s), m, found)) return Status::corrupt;
    start += table.word(s).bytes;
  }
  return Status::ok;
}

}  // namespace atomo::cpu
