// SPDX-License-Identifier: Apache-2.0
/// Selection by radix: magnitudes order as 31-bit integers, of which a histogram over 11, 10 and 10
/// bits finds the k-th largest in three passes; a fourth marks, a fifth (over the marks) gathers.

#include "cpu/topk.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "coding/marks.hpp"
#include "cpu/kept_entries.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/topk.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Of 64 entries, those with |x| > threshold and those with |x| equal to it.
void compare64(const float* x, float threshold, std::uint64_t* above, std::uint64_t* equal) {
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto bound = hn::Set(d, threshold);
  const auto bits_of = [&](auto mask) {
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(d, mask, bits);
    return std::uint64_t{bits[0]} | (std::uint64_t{bits[1]} << 8);
  };
  *above = *equal = 0;
  for (std::size_t i = 0; i < 64; i += lanes) {
    const auto magnitude = hn::Abs(hn::LoadU(d, x + i));
    *above |= bits_of(hn::Gt(magnitude, bound)) << i;
    *equal |= bits_of(hn::Eq(magnitude, bound)) << i;
  }
}

/// Marks every entry above the threshold and the first `ties` equal to it.
void mark_largest(const float* x, std::size_t n, float threshold, std::uint64_t ties,
                  std::uint64_t* words) {
  for (std::size_t at = 0; at < n; at += 64) {
    std::uint64_t above = 0, equal = 0;
    if (n - at < 64) {
      float tail[64] = {};
      std::memcpy(tail, x + at, (n - at) * sizeof(float));
      compare64(tail, threshold, &above, &equal);
      equal &= (std::uint64_t{1} << (n - at)) - 1;
    } else {
      compare64(x + at, threshold, &above, &equal);
    }
    auto found = static_cast<std::uint64_t>(std::popcount(equal));
    for (; found > ties; --found) equal &= ~std::bit_floor(equal);
    ties -= found;
    words[at / 64] = above | equal;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(mark_largest);

namespace {

constexpr std::size_t kBins = 2048;
using Histogram = std::array<std::uint64_t, kBins>;

struct TopkMemory {
  KeptSet set;
  std::span<Histogram>
      histograms;  ///< two, so that neighbours in one bin do not wait for each other

  TopkMemory(core::Carver& carver, std::size_t n) noexcept
      : set(KeptSet::carve(carver, n)), histograms(carver.take<Histogram>(2)) {}
};

std::uint32_t magnitude(float x) noexcept { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu; }

/// The k-th largest magnitude as an integer, and how many of those equal to it are among the k.
struct Threshold {
  std::uint32_t key = 0;
  std::uint64_t ties = 0;
};

/// Counts the bits [shift, shift + width) of magnitudes whose bits above agree with `key`.
void fill_histogram(const float* x, std::size_t n, std::uint32_t key, int shift, int width,
                    std::span<Histogram> histograms) noexcept {
  for (auto& histogram : histograms) histogram.fill(0);
  const std::uint32_t mask = (1u << width) - 1;
  const int above = shift + width;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t m = magnitude(x[i]);
    if (above == 31 || (m >> above) == (key >> above)) ++histograms[i & 1][(m >> shift) & mask];
  }
}

Threshold find_threshold(const float* x, std::size_t n, std::uint64_t k,
                         std::span<Histogram> histograms) noexcept {
  constexpr int kShifts[] = {20, 10, 0}, kWidths[] = {11, 10, 10};
  Threshold found{0, k};
  for (int pass = 0; pass < 3; ++pass) {
    fill_histogram(x, n, found.key, kShifts[pass], kWidths[pass], histograms);
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

Status scatter(const TopkConfig& config, ConstBytes body, bool add, float alpha, float* y,
               std::size_t n, Bytes workspace, Executor* executor) noexcept {
  if (n == 0) return body.empty() ? Status::ok : Status::corrupt;
  core::Carver carver(workspace);
  TopkMemory memory(carver, n);
  if (!carver.fits()) return Status::workspace_too_small;
  coding::MarksReader reader;
  if (!reader.open(body, n) || reader.kept() != config.keep) return Status::corrupt;
  if (body.size() - reader.bytes() != 4 * config.keep) return Status::corrupt;
  coding::SegmentMarks segment;
  for (std::size_t at = 0; at < memory.set.words.size(); at += segment.size()) {
    if (!reader.next(segment)) return Status::corrupt;
    std::copy_n(segment.begin(), std::min(segment.size(), memory.set.words.size() - at),
                memory.set.words.begin() + static_cast<std::ptrdiff_t>(at));
  }
  if (memory.set.count() != config.keep) return Status::corrupt;
  const std::byte* values = body.data() + reader.bytes();
  if (const Status status = check_values(values, config.keep, 1); failed(status)) return status;
  scatter_kept(values, memory.set, 1, add, alpha, y, n, executor);
  return Status::ok;
}

}  // namespace

std::size_t max_encoded_bytes(const TopkConfig& config, std::size_t n) noexcept {
  return n == 0 ? 0 : coding::max_marks_bytes(n) + 4 * config.keep;
}

std::size_t workspace_bytes(const TopkConfig&, std::size_t n) noexcept {
  core::Carver carver;
  TopkMemory(carver, n);
  return carver.bytes();
}

Status encode(const TopkConfig& config, const float* x, std::size_t n, Bytes workspace,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = 0;
  if (body.size() < max_encoded_bytes(config, n)) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  core::Carver carver(workspace);
  TopkMemory memory(carver, n);
  if (!carver.fits()) return Status::workspace_too_small;
  const Threshold threshold = find_threshold(x, n, config.keep, memory.histograms);
  HWY_DYNAMIC_DISPATCH(mark_largest)
  (x, n, std::bit_cast<float>(threshold.key), threshold.ties, memory.set.words.data());
  // Gaps take at least two bits a kept entry, or one bit an entry at parameter 0: from half of them
  // on the bit map is the shorter form, short of long runs of zeros at segments' ends.
  const coding::MarksChoice plan = config.keep >= n - config.keep
                                       ? coding::MarksChoice{0, coding::max_marks_bytes(n)}
                                       : coding::choose_marks(memory.set.words, n);
  coding::write_marks(plan, memory.set.words, n, body.data());
  memory.set.count();
  gather_kept(x, n, memory.set, executor, body.data() + plan.bytes);
  bytes = plan.bytes + 4 * config.keep;
  return Status::ok;
}

Status decode(const TopkConfig& config, ConstBytes body, float* y, std::size_t n, Bytes workspace,
              Executor* executor) noexcept {
  return scatter(config, body, false, 1, y, n, workspace, executor);
}

Status decode_add(const TopkConfig& config, ConstBytes body, float alpha, float* y, std::size_t n,
                  Bytes workspace, Executor* executor) noexcept {
  return scatter(config, body, true, alpha, y, n, workspace, executor);
}

}  // namespace atomo::cpu
#endif
