// SPDX-License-Identifier: Apache-2.0
/// A sample of the entries gives a bound that a few more than k entries reach. One pass marks these
/// and collects them; the k-th largest of the collected is the k-th largest of all, and those below
/// it are unmarked. Where the bound was too high or too low, or k is a large part of n, the k-th
/// largest is found among all entries.
///
/// Selection is by radix: magnitudes order as 31-bit integers, of which a histogram over 11, 10 and
/// 10 bits finds the k-th largest in three passes.

#include "cpu/topk.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "coding/marks.hpp"
#include "core/run_tasks.hpp"
#include "cpu/kept_entries.hpp"
#include "cpu/scan.hpp"
#include "format/topk_body.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/topk.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/magnitude_marks-inl.hpp"

#ifndef ATOMO_CPU_TOPK_ONCE
#define ATOMO_CPU_TOPK_ONCE
namespace atomo::cpu {
namespace {

/// Marked entries of one part of a layer.
struct Collected {
  float* values = nullptr;
  std::size_t room = 0;
  std::size_t count = 0;  ///< above the room: those beyond it were not collected
  bool finite = true;
};

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Marks the entries of n whose magnitude, as an integer, is above `bound`, and collects them.
void mark_above(const float* x, std::size_t n, std::uint32_t bound, std::uint64_t* words,
                Collected* out) {
  const hn::CappedTag<std::int32_t, 16> d;
  const auto least = hn::Set(d, static_cast<std::int32_t>(bound));
  auto largest = hn::Zero(d);
  Collected found = *out;
  each_64(x, n, [&](const float* in, std::size_t at) {
    std::uint64_t marks = marks_of_64(d, in, least, largest);
    words[at / 64] = marks;
    const auto count = static_cast<std::size_t>(std::popcount(marks));
    if (found.count + count <= found.room) {
      float* next = found.values + found.count;
      for (; marks != 0; marks &= marks - 1) *next++ = in[std::countr_zero(marks)];
    }
    found.count += count;
  });
  found.finite = hn::GetLane(hn::MaxOfLanes(d, largest)) < 0x7F800000;
  *out = found;
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(mark_above);

namespace {

constexpr std::size_t kBins = 2048;
constexpr std::size_t kParts = 4;            ///< that are collected side by side
constexpr std::size_t kSampled = 64;         ///< one line in so many is in the sample
constexpr std::size_t kLine = 16;            ///< entries
constexpr std::size_t kLeast = 1u << 16;     ///< entries from which on a sample is taken
constexpr std::size_t kSampleBins = 0x8000;  ///< by the upper 15 bits of a magnitude
using Histogram = std::array<std::uint64_t, kBins>;

/// Whether a sample may spare the search among all entries.
constexpr bool is_sampled(const TopkConfig& config, std::size_t n) noexcept {
  return n >= kLeast && config.keep > 0 && config.keep <= n / 16;
}
constexpr std::size_t room_of(const TopkConfig& config, std::size_t n) noexcept {
  return is_sampled(config, n) ? 2 * config.keep + 1024 : 0;
}

struct TopkMemory {
  KeptSet set;
  std::span<Histogram>
      histograms;  ///< two, so that neighbours in one bin do not wait for each other
  std::span<std::uint32_t> sample;  ///< a histogram
  std::span<float> collected;       ///< of every part

  TopkMemory(core::Carver& carver, const TopkConfig& config, std::size_t n) noexcept
      : set(KeptSet::carve(carver, n)),
        histograms(carver.take<Histogram>(2)),
        sample(carver.take<std::uint32_t>(is_sampled(config, n) ? kSampleBins : 0)),
        collected(carver.take<float>(kParts * room_of(config, n))) {}
};

std::uint32_t magnitude(float x) noexcept { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu; }

/// The k-th largest magnitude as an integer, and how many of those equal to it are among the k.
struct Threshold {
  std::uint32_t key = 0;
  std::uint64_t ties = 0;
};

/// Counts the bits [shift, shift + width) of magnitudes whose bits above agree with `key`.
void fill_histogram(std::span<const float> x, std::uint32_t key, int shift, int width,
                    std::span<Histogram> histograms) noexcept {
  for (auto& histogram : histograms) histogram.fill(0);
  const std::uint32_t mask = (1u << width) - 1;
  const int above = shift + width;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t m = magnitude(x[i]);
    if (above == 31 || (m >> above) == (key >> above)) ++histograms[i & 1][(m >> shift) & mask];
  }
}

Threshold find_threshold(std::span<const float> x, std::uint64_t k,
                         std::span<Histogram> histograms) noexcept {
  constexpr int kShifts[] = {20, 10, 0}, kWidths[] = {11, 10, 10};
  Threshold found{0, k};
  for (int pass = 0; pass < 3; ++pass) {
    fill_histogram(x, found.key, kShifts[pass], kWidths[pass], histograms);
    std::uint32_t bin = (1u << kWidths[pass]) - 1;
    for (;; --bin) {
      const std::uint64_t count = histograms[0][bin] + histograms[1][bin];
      if (count >= found.ties) break;
      found.ties -= count;
    }
    found.key |= bin << kShifts[pass];
  }
  return found;
}

/// A magnitude that a few more than k entries are above, by a sample of them.
std::uint32_t sampled_bound(const float* x, std::size_t n, std::uint64_t k,
                            std::span<std::uint32_t> bins) noexcept {
  std::fill(bins.begin(), bins.end(), 0u);
  std::size_t taken = 0;
  for (std::size_t at = 0; at + kLine <= n; at += kLine * kSampled, taken += kLine) {
    for (std::size_t i = 0; i < kLine; ++i) ++bins[magnitude(x[at + i]) >> 16];
  }
  // Entries of one line may be alike: their count varies by more than a binomial one would.
  const double expected =
      static_cast<double>(k) * static_cast<double>(taken) / static_cast<double>(n);
  const double wanted = expected + 8 * std::sqrt(expected) + 2 * kLine;
  std::uint64_t above = 0;
  for (std::size_t bin = kSampleBins; bin-- > 0;) {
    above += bins[bin];
    if (static_cast<double>(above) >= wanted)
      return bin == 0 ? 0 : static_cast<std::uint32_t>(bin << 16) - 1;
  }
  return 0;
}

/// Marks all above the bound; returns them, in order. Nothing where they did not fit.
std::span<float> collect(const float* x, std::size_t n, std::uint32_t bound, std::size_t room,
                         TopkMemory& memory, Executor* executor, bool& finite) noexcept {
  Collected parts[kParts];
  for (std::size_t p = 0; p < kParts; ++p) parts[p] = {memory.collected.data() + p * room, room};
  const std::size_t each = (n / kParts + 64) / 64 * 64;
  core::run_ranges(executor, n, each, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(mark_above)
    (x + begin, end - begin, bound, memory.set.words.data() + begin / 64, &parts[begin / each]);
  });
  std::size_t count = 0;
  bool fit = true;
  for (const Collected& part : parts) {
    finite &= part.finite;
    fit &= part.count <= part.room;
    if (!fit) continue;
    std::memmove(memory.collected.data() + count, part.values, part.count * sizeof(float));
    count += part.count;
  }
  return fit ? memory.collected.first(count) : std::span<float>();
}

/// Unmarks those below the threshold and all but the first `ties` equal to it; writes the others.
void keep_largest(std::span<const float> collected, Threshold threshold,
                  std::span<std::uint64_t> words, std::byte* values) noexcept {
  const float* next = collected.data();
  std::byte* out = values;
  for (std::uint64_t& word : words) {
    for (std::uint64_t left = word; left != 0; left &= left - 1) {
      const float x = *next++;
      const std::uint32_t m = magnitude(x);
      const bool tie = m == threshold.key && threshold.ties > 0;
      if (m > threshold.key || tie) {
        std::memcpy(out, &x, sizeof x);
        out += sizeof x;
        threshold.ties -= tie ? 1 : 0;
      } else {
        word &= ~(left & -left);
      }
    }
  }
}

/// Marks every entry above the threshold and the first `ties` equal to it; gathers them.
void mark_largest(const float* x, std::size_t n, Threshold threshold, KeptSet& set,
                  Executor* executor, std::byte* values) noexcept {
  set.clear();
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t m = magnitude(x[i]);
    const bool tie = m == threshold.key && threshold.ties > 0;
    threshold.ties -= tie ? 1 : 0;
    if (m > threshold.key || tie) set.mark(i);
  }
  set.count();
  gather_kept(x, n, set, executor, values);
}

/// Marks the k largest and writes them, k at most n. False when an entry is not finite.
bool select_largest(const TopkConfig& config, const float* x, std::size_t n, TopkMemory& memory,
                    Executor* executor, std::byte* values) noexcept {
  bool finite = true;
  if (is_sampled(config, n)) {
    const std::uint32_t bound = sampled_bound(x, n, config.keep, memory.sample);
    const std::span<float> collected =
        collect(x, n, bound, room_of(config, n), memory, executor, finite);
    if (!finite) return false;
    if (collected.size() >= config.keep) {
      const Threshold threshold = find_threshold(collected, config.keep, memory.histograms);
      keep_largest(collected, threshold, memory.set.words, values);
      return true;
    }
  } else if (!scan_entries(x, n, executor).finite) {
    return false;
  }
  const Threshold threshold = find_threshold({x, n}, config.keep, memory.histograms);
  mark_largest(x, n, threshold, memory.set, executor, values);
  return true;
}

/// Entries whose marks are read before the values are scattered, by several tasks.
constexpr std::size_t kWindow = 8 * kKeptGrain;

/// The marks of one body's window, and where its values go on.
struct MarkedBody {
  LayerBody* body;
  coding::MarksReader reader;
  const std::byte* values;
  std::uint64_t left;  ///< values of the entries from the window on
  std::uint64_t in_window;
  KeptSet set;

  [[nodiscard]] bool sound() const noexcept { return !failed(body->status); }
  /// Checks all but the marks.
  Status open(const TopkConfig& config, std::size_t n) noexcept {
    const ConstBytes bytes = body->bytes;
    if (n == 0) return bytes.empty() ? Status::ok : Status::corrupt;
    if (!reader.open(bytes, n) || reader.kept() != config.keep) return Status::corrupt;
    const std::size_t at = format::topk_values_at(reader.bytes());
    if (bytes.size() < at || bytes.size() - at != 4 * config.keep) return Status::corrupt;
    if (!all_zero(bytes.data(), reader.bytes(), at)) return Status::corrupt;
    values = bytes.data() + at;
    left = config.keep;
    in_window = 0;
    return check_values(values, config.keep, 1);
  }
  /// Goes on to a window of so many entries; `last` behind which there is none.
  void read_marks(std::size_t entries, bool last) noexcept {
    values += 4 * in_window;
    set.words = set.words.first((entries + 63) / 64);
    coding::SegmentMarks segment;
    bool good = true;
    for (std::size_t at = 0; good && at < set.words.size(); at += segment.size()) {
      good = reader.next(segment);
      std::copy_n(segment.begin(), std::min(segment.size(), set.words.size() - at),
                  set.words.begin() + static_cast<std::ptrdiff_t>(at));
    }
    in_window = good ? set.count() : 0;
    good = good && (last ? in_window == left : in_window <= left);
    if (!good) body->status = Status::corrupt;
    left -= in_window;
  }
};

/// The windows of bodies that are decoded together.
std::array<KeptSet, kBodiesAtOnce> carve_windows(Carver& carver, std::size_t n) noexcept {
  std::array<KeptSet, kBodiesAtOnce> windows;
  for (KeptSet& set : windows) set = KeptSet::carve(carver, std::min(n, kWindow));
  return windows;
}

void scatter(const TopkConfig& config, std::span<LayerBody> bodies, bool add, float alpha, float* y,
             std::size_t n, Bytes workspace, Executor* executor) noexcept {
  core::Carver carver(workspace);
  const std::array<KeptSet, kBodiesAtOnce> windows = carve_windows(carver, n);
  OpenBodies<MarkedBody> opened(bodies, [&](LayerBody& body, MarkedBody& marked) {
    marked.body = &body;
    return carver.fits() ? marked.open(config, n) : Status::workspace_too_small;
  });
  const std::span<MarkedBody> all = opened.all();
  for (std::size_t at = 0; at < n; at += kWindow) {
    const std::size_t entries = std::min(kWindow, n - at);
    core::run_tasks(executor, all.size(), [&](std::size_t i) {
      all[i].set = windows[i];
      if (all[i].sound()) all[i].read_marks(entries, at + entries == n);
    });
    core::run_ranges(executor, entries, kKeptGrain, [&](std::size_t begin, std::size_t end) {
      for (const MarkedBody& marked : all) {
        if (!marked.sound()) continue;
        scatter_marked(marked.values + 4 * marked.set.before[begin / kKeptGrain],
                       marked.set.words.data() + begin / 64, 1, add, alpha, y + at + begin,
                       end - begin);
      }
    });
  }
}

}  // namespace

std::size_t max_encoded_bytes(const TopkConfig& config, std::size_t n) noexcept {
  return n == 0 ? 0 : format::max_topk_values_at(n) + 4 * config.keep;
}

std::size_t workspace_bytes(const TopkConfig& config, std::size_t n) noexcept {
  core::Carver carver;
  TopkMemory(carver, config, n);
  return carver.bytes();
}

std::size_t decode_workspace_bytes(const TopkConfig&, std::size_t n) noexcept {
  core::Carver carver;
  carve_windows(carver, n);
  return carver.bytes();
}

Status encode(const TopkConfig& config, const float* x, std::size_t n, Bytes workspace,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = 0;
  if (body.size() < max_encoded_bytes(config, n)) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  core::Carver carver(workspace);
  TopkMemory memory(carver, config, n);
  if (!carver.fits()) return Status::workspace_too_small;
  // The values are written where they stand behind the longest marks, then moved down.
  std::byte* const values = body.data() + format::max_topk_values_at(n);
  if (!select_largest(config, x, n, memory, executor, values)) return Status::non_finite;
  // Gaps take at least two bits a kept entry, or one bit an entry at parameter 0: from half of them
  // on the bit map is the shorter form, short of long runs of zeros at segments' ends.
  const coding::MarksChoice plan = config.keep >= n - config.keep
                                       ? coding::MarksChoice{0, coding::max_marks_bytes(n)}
                                       : coding::choose_marks(memory.set.words, n);
  coding::write_marks(plan, memory.set.words, n, body.data());
  const std::size_t values_at = format::topk_values_at(plan.bytes);
  std::fill(body.data() + plan.bytes, body.data() + values_at, std::byte{0});
  std::memmove(body.data() + values_at, values, 4 * config.keep);
  bytes = values_at + 4 * config.keep;
  return Status::ok;
}

Status decode(const TopkConfig& config, ConstBytes body, float* y, std::size_t n, Bytes workspace,
              Executor* executor) noexcept {
  LayerBody one;
  one.bytes = body;
  scatter(config, {&one, 1}, false, 1, y, n, workspace, executor);
  return one.status;
}

void decode_add(const TopkConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Bytes workspace, Executor* executor) noexcept {
  scatter(config, bodies, true, alpha, y, n, workspace, executor);
}

}  // namespace atomo::cpu
#endif
