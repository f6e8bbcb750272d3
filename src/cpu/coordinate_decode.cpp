// SPDX-License-Identifier: Apache-2.0
/// Decoding coordinates, segment by segment, on several threads. A segment of y stays in a cache while
/// one body after the other is added to it.

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "core/run_tasks.hpp"
#include "cpu/coordinate.hpp"
#include "cpu/coordinate_memory.hpp"
#include "cpu/coordinate_read.hpp"

namespace atomo::cpu {
namespace {

/// A body while its segments are read.
struct SegmentReader {
  LayerBody* body = nullptr;
  SegmentTable table;
  std::uint64_t next = 0;  ///< where the next batch of segments starts
  std::array<std::uint64_t, kSlots> starts{};
  std::atomic<bool> corrupt{false};

  Status open(std::size_t n) noexcept {
    if (n == 0) return body->bytes.empty() ? Status::ok : Status::corrupt;
    if (body->bytes.empty()) return Status::ok;  // zeros
    if (!(body->price > 0) || !std::isfinite(body->price)) return Status::corrupt;
    table = {body->bytes, segments_of(n)};
    next = table.bytes();
    return table.valid() ? Status::ok : Status::corrupt;
  }
  [[nodiscard]] bool sound() const noexcept { return !failed(body->status); }
  /// Finds the segments [first, first + count).
  void go_on(std::size_t first, std::size_t count) noexcept {
    if (table.segments == 0) return;
    for (std::size_t i = 0; i < count; ++i) {
      starts[i] = next;
      next += table.word(first + i).bytes;
    }
  }
  /// The m values of segment first + i.
  void read(std::size_t first, std::size_t i, std::size_t m, float* values) noexcept {
    std::memset(values, 0, m * sizeof(float));
    if (table.segments == 0) return;
    const double step = body->price;
    const auto found = [&](std::size_t place, std::int64_t level) {
      values[place] = grid_value(level, step);
      return true;
    };
    if (!read_segment(table.body.subspan(starts[i]), table.word(first + i), m, found))
      corrupt.store(true, std::memory_order_relaxed);
  }
};

/// Of one body unless `add`.
void decode_bodies(std::span<LayerBody> bodies, bool add, float alpha, float* y, std::size_t n,
                   Bytes workspace, Executor* executor) noexcept {
  Carver carver(workspace);
  DecodeMemory memory(carver, n);
  OpenBodies<SegmentReader> opened(bodies, [&](LayerBody& body, SegmentReader& reader) {
    reader.body = &body;
    return carver.fits() ? reader.open(n) : Status::workspace_too_small;
  });
  const std::span<SegmentReader> readers = opened.all();
  const std::size_t segments = readers.empty() ? 0 : segments_of(n);
  for (std::size_t s = 0; s < segments; s += memory.count) {
    const std::size_t count = std::min(memory.count, segments - s);
    for (SegmentReader& reader : readers) {
      if (reader.sound()) reader.go_on(s, count);
    }
    run_tasks(executor, count, [&](std::size_t i) {
      const std::size_t begin = (s + i) * kCoordinateSegment;
      const std::size_t m = std::min(kCoordinateSegment, n - begin);
      float* const out = y + begin;
      for (SegmentReader& reader : readers) {
        if (!reader.sound()) continue;
        reader.read(s, i, m, add ? memory.values[i].data() : out);
        if (!add) continue;
        for (std::size_t k = 0; k < m; ++k) out[k] = out[k] + (alpha * memory.values[i][k]);
      }
    });
    for (SegmentReader& reader : readers) {
      if (reader.corrupt.load(std::memory_order_relaxed)) reader.body->status = Status::corrupt;
    }
  }
}

}  // namespace

std::size_t decode_workspace_bytes(const CoordinateConfig&, std::size_t n) noexcept {
  Carver decoding;
  DecodeMemory(decoding, n);
  return decoding.bytes();
}

Status decode(const CoordinateConfig& config, ConstBytes body, float* y, std::size_t n,
              Bytes workspace, Executor* executor) noexcept {
  LayerBody one;
  one.bytes = body;
  one.price = config.step;
  decode_bodies({&one, 1}, false, 1, y, n, workspace, executor);
  return one.status;
}

void decode_add(std::span<LayerBody> bodies, float alpha, float* y, std::size_t n, Bytes workspace,
                Executor* executor) noexcept {
  decode_bodies(bodies, true, alpha, y, n, workspace, executor);
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
