// SPDX-License-Identifier: Apache-2.0
/// A segment of 4,096 entries at a time: its marks are drawn into a bit map of 64 words, then its
/// entries are gathered or scattered. Half a Philox block a draw, min(k, n - k) draws. Segments need
/// nothing of each other.

#include "cpu/random_k.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/philox.hpp"
#include "core/run_tasks.hpp"
#include "cpu/kept_entries.hpp"
#include "math/subset_sampling.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/random_k.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/philox_tile-inl.hpp"

#ifndef ATOMO_CPU_RANDOM_K_ONCE
#define ATOMO_CPU_RANDOM_K_ONCE
namespace atomo::cpu {
namespace {

/// Marks of a segment, bit i % 64 of word i / 64.
struct SegmentSet {
  std::array<std::uint64_t, kSampleSegment / 64> words;

  [[nodiscard]] bool test(std::uint64_t i) const noexcept {
    return ((words[i / 64] >> (i % 64)) & 1) != 0;
  }
  void mark(std::uint64_t i, bool when) noexcept {
    words[i / 64] |= static_cast<std::uint64_t>(when) << (i % 64);
  }
  /// Marks what was not marked of n entries and the reverse.
  void invert(std::uint64_t n) noexcept {
    for (auto& word : words) word = ~word;
    if (n % 64 != 0) words[n / 64] &= (std::uint64_t{1} << (n % 64)) - 1;
  }
};

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace tile = atomo::cpu::HWY_NAMESPACE;

/// Marks what segment s keeps.
void draw_segment(const Philox& draws, std::uint64_t s, const SampledSegment& segment,
                  SegmentSet* set) {
  const tile::PhiloxTiles tiles(draws);
  alignas(64) std::uint32_t words[tile::kPhiloxTileWords];
  const std::uint64_t first = first_draw_block(s);
  draw_kept(segment.entries, segment.keep, *set, [&](std::uint64_t j, std::uint64_t d) {
    const std::size_t in_tile = d % (2 * tile::kPhiloxTile);
    if (in_tile == 0) tiles(first + d / 2, words);
    std::uint64_t word;
    std::memcpy(&word, words + 2 * in_tile, sizeof word);
    return scale_draw(word, j);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(draw_segment);

namespace {

/// What both ends draw: all workers' keys give the same.
class Sample {
 public:
  Sample(const RandomKConfig& config, std::size_t n, Key key) noexcept
      : draws_(shared(key), Purpose::random_k),
        config_(config),
        n_(n),
        shares_{config.units(n), config.keep, offset(config.units(n)),
                kSampleSegment / config.unit()} {}

  /// Calls `visit(segment, words)` for the segments of the entries [begin, end): entries, whatever
  /// is kept as a whole.
  template <typename Visit>
  void for_each(std::size_t begin, std::size_t end, Visit visit) const noexcept {
    for (std::uint64_t s = begin / kSampleSegment; s * kSampleSegment < end; ++s) {
      SampledSegment segment = shares_(s);
      SegmentSet set{};
      if (segment.keep > 0) HWY_DYNAMIC_DISPATCH(draw_segment)(draws_, s, segment, &set);
      if (config_.blocks) as_entries(segment, set);
      visit(segment, set.words.data());
    }
  }

  /// Whether the last block is kept, and has fewer entries than it takes on the wire.
  [[nodiscard]] bool sends_padding() const noexcept {
    if (!config_.blocks || n_ % RandomKConfig::kBlock == 0) return false;
    bool kept = false;
    for_each(n_ - 1, n_, [&](const SampledSegment& segment, const std::uint64_t* words) {
      kept = words[(segment.entries - 1) / 64] != 0;
    });
    return kept;
  }

  /// The key without its worker, which draws the same.
  static Key shared(Key key) noexcept {
    key.worker = 0;
    return key;
  }

 private:
  [[nodiscard]] std::uint64_t offset(std::size_t n) const noexcept {
    const PhiloxWords w = draws_(0);
    return scale_offset(w[0] | (std::uint64_t{w[1]} << 32), w[2] | (std::uint64_t{w[3]} << 32), n);
  }

  /// A segment of blocks as one of entries: a word of marks a block.
  void as_entries(SampledSegment& segment, SegmentSet& set) const noexcept {
    const std::uint64_t blocks = set.words[0], begin = segment.begin * RandomKConfig::kBlock;
    for (std::size_t b = 0; b < set.words.size(); ++b)
      set.words[b] = ((blocks >> b) & 1) != 0 ? ~std::uint64_t{0} : 0;
    segment = {begin, std::min<std::uint64_t>(kSampleSegment, n_ - begin),
               segment.rank * RandomKConfig::kBlock, segment.keep * RandomKConfig::kBlock};
    if (const std::uint64_t last = segment.entries % 64; last != 0)
      set.words[segment.entries / 64] &= (std::uint64_t{1} << last) - 1;
  }

  Philox draws_;
  RandomKConfig config_;
  std::uint64_t n_;
  SampleShares<Wide> shares_;
};
static_assert(kKeptGrain % kSampleSegment == 0, "a task has whole segments");

/// What a kept value of n entries is multiplied by.
float scale_of(const RandomKConfig& config, std::size_t n) noexcept {
  return static_cast<float>(static_cast<double>(config.units(n)) /
                            static_cast<double>(config.keep));
}

/// Bytes at a body's end of entries that the last block does not have.
std::size_t padding_of(const Sample& sample, std::size_t n) noexcept {
  return sample.sends_padding() ? 4 * (RandomKConfig::kBlock - n % RandomKConfig::kBlock) : 0;
}

/// Checks everything a body can break.
Status check(const RandomKConfig& config, ConstBytes body, std::size_t n, const Key& key) noexcept {
  const std::size_t want = max_encoded_bytes(config, n);
  if (body.size() != want) return body.size() < want ? Status::truncated : Status::corrupt;
  if (n == 0) return Status::ok;
  const ConstBytes padding = body.last(padding_of(Sample(config, n, key), n));
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; }))
    return Status::corrupt;
  return check_values(body.data(), config.keep * config.unit(), scale_of(config, n));
}

/// A body that was checked.
struct Sent {
  const std::byte* values;
  Key key;  ///< that the entries are drawn with
};

}  // namespace

std::size_t max_encoded_bytes(const RandomKConfig& config, std::size_t n) noexcept {
  return n == 0 ? 0 : 4 * config.keep * config.unit();
}

Status encode(const RandomKConfig& config, const float* x, std::size_t n, const Key& key,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = max_encoded_bytes(config, n);
  if (body.size() < bytes) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  const Sample sample(config, n, key);
  const std::size_t padding = padding_of(sample, n);
  std::fill_n(body.data() + bytes - padding, padding, std::byte{0});
  run_ranges(executor, n, kKeptGrain, [&](std::size_t begin, std::size_t end) {
    sample.for_each(begin, end, [&](const SampledSegment& segment, const std::uint64_t* words) {
      gather_marked(x + segment.begin, segment.entries, words, body.data() + 4 * segment.rank);
    });
  });
  return Status::ok;
}

Status decode(const RandomKConfig& config, ConstBytes body, float* y, std::size_t n, const Key& key,
              Executor* executor) noexcept {
  const Status status = check(config, body, n, key);
  if (failed(status) || n == 0) return status;
  const Sample sample(config, n, key);
  run_ranges(executor, n, kKeptGrain, [&](std::size_t begin, std::size_t end) {
    sample.for_each(begin, end, [&](const SampledSegment& segment, const std::uint64_t* words) {
      scatter_marked(body.data() + 4 * segment.rank, words, scale_of(config, n), false, 1,
                     y + segment.begin, segment.entries);
    });
  });
  return status;
}

void decode_add(const RandomKConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept {
  OpenBodies<Sent> sent(bodies, [&](const LayerBody& body, Sent& opened) {
    opened = {body.bytes.data(), Sample::shared(body.key)};
    return check(config, body.bytes, n, body.key);
  });
  const float scale = scale_of(config, n);
  run_ranges(executor, n, kKeptGrain, [&](std::size_t begin, std::size_t end) {
    // Those of one step draw the same entries: once for all of them.
    for (std::span<const Sent> left = sent.all(); !left.empty();) {
      const auto other = std::find_if(
          left.begin(), left.end(), [&](const Sent& body) { return body.key != left.front().key; });
      const auto same = left.first(static_cast<std::size_t>(other - left.begin()));
      const Sample sample(config, n, same.front().key);
      sample.for_each(begin, end, [&](const SampledSegment& segment, const std::uint64_t* words) {
        for (const Sent& body : same) {
          scatter_marked(body.values + 4 * segment.rank, words, scale, true, alpha,
                         y + segment.begin, segment.entries);
        }
      });
      left = left.subspan(same.size());
    }
  });
}

}  // namespace atomo::cpu
#endif
