// SPDX-License-Identifier: Apache-2.0
/// Work is split into runs: whole buckets and whole tiles of 128 entries, so runs share neither a
/// norm nor a byte. A run is read twice, for its norms and for its levels; one of the default bucket
/// stays in the L1 cache, and the next one is fetched while it is coded. A task is several runs.

#include "cpu/qsgd.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/run_tasks.hpp"
#include "cpu/level_tile.hpp"
#include "cpu/reduce.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/qsgd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/level_tile-inl.hpp"

#ifndef ATOMO_CPU_QSGD_ONCE
#define ATOMO_CPU_QSGD_ONCE
namespace atomo::cpu {
namespace {

constexpr std::size_t kRun = 2048, kTask = 32768;  ///< entries, at least
static_assert(kStretch % kLevelTile == 0, "decoding takes whole tiles");

/// A body of n entries, cut into its parts.
struct QsgdShape {
  std::size_t n, bucket, buckets, code_bytes;
  int bits;

  QsgdShape(const QsgdConfig& config, std::size_t entries) noexcept
      : n(entries),
        bucket(config.bucket),
        buckets(n / bucket + (n % bucket != 0)),
        code_bytes(n / 8 * static_cast<std::size_t>(config.bits) +
                   (n % 8 * static_cast<std::size_t>(config.bits) + 7) / 8),
        bits(config.bits) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return 4 * buckets + code_bytes; }
  [[nodiscard]] int levels() const noexcept { return bits == 1 ? 1 : (1 << (bits - 1)) - 1; }
  [[nodiscard]] std::size_t code_at(std::size_t tile_begin) const noexcept {
    return tile_begin / 8 * static_cast<std::size_t>(bits);
  }
  /// Bytes of the codes of the tile from an entry on: fewer in the last.
  [[nodiscard]] std::size_t tile_bytes(std::size_t tile_begin) const noexcept {
    return std::min(code_at(kLevelTile), code_bytes - code_at(tile_begin));
  }
  /// The least number of entries from `least` on that are whole buckets and tiles.
  [[nodiscard]] std::size_t run_from(std::size_t least) const noexcept {
    const std::size_t unit = std::lcm(bucket, kLevelTile);
    return (least + unit - 1) / unit * unit;
  }
};

float load_norm(const std::byte* norms, std::size_t bucket) noexcept {
  float norm;
  std::memcpy(&norm, norms + 4 * bucket, 4);
  return norm;
}

/// Calls `set(begin, end, norm)` for the stretches of one bucket in the tile from entry `first` on,
/// the entries beyond n counted to the last bucket.
template <typename Set>
void for_buckets(const QsgdShape& shape, const std::byte* norms, std::size_t first,
                 Set&& set) noexcept {
  std::size_t bucket = first / shape.bucket, end = (bucket + 1) * shape.bucket - first;
  for (std::size_t at = 0; at < kLevelTile; at = end, end += shape.bucket, ++bucket) {
    if (bucket + 1 == shape.buckets) end = kLevelTile;
    set(at, std::min(kLevelTile, end), load_norm(norms, bucket));
  }
}

/// Whether a tile's scales are those of the tile before it, in the same run.
bool same_bucket(const QsgdShape& shape, std::size_t first, std::size_t run_begin) noexcept {
  if (first == run_begin) return false;
  const std::size_t before = first - kLevelTile, last = first + kLevelTile - 1;
  return before / shape.bucket == last / shape.bucket;
}

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {

namespace level = atomo::cpu::HWY_NAMESPACE;

/// Codes of [begin, end), from norms already written.
template <bool kOneBit>
HWY_INLINE void encode_tiles(const QsgdShape& shape, const float* x, const std::byte* norms,
                             const Philox& draws, const Philox& further, std::size_t begin,
                             std::size_t end, std::byte* codes_out) {
  const level::PhiloxTiles tiles(draws);
  LevelTileScales scales;
  alignas(64) std::uint16_t random[kLevelTile];
  alignas(64) std::uint8_t codes[kLevelTile];
  std::byte packed[kLevelTile + 8];
  float padded[kLevelTile];
  const float limit = 65536.0f * static_cast<float>(shape.levels());
  bool zero_bucket = false;
  for (std::size_t first = begin; first < end; first += kLevelTile) {
    if (!same_bucket(shape, first, begin)) {
      zero_bucket = false;
      for_buckets(shape, norms, first, [&](std::size_t from, std::size_t to, float norm) {
        zero_bucket = zero_bucket || norm == 0;
        scales.set(from, to,
                   math::level_scale(math::level_step(norm, shape.levels()),
                                     kOneBit ? 32768.0f : 65536.0f));
      });
    }
    const std::size_t count = std::min(kLevelTile, end - first);
    const float* in = x + first;
    if (count < kLevelTile) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, in, count * sizeof(float));
      in = padded;
    }
    for (std::size_t e = 0; e < kLevelTile; e += 16) hwy::Prefetch(x + first + kRun + e);
    tiles(first / 8, random);
    if (level::level_tile<kOneBit>(in, scales, limit, shape.bits, random, codes))
      resolve_ties(in, scales, limit, shape.bits, random, further, first, codes);
    if (kOneBit && zero_bucket) {
      for (std::size_t e = 0; e < count; ++e) codes[e] = scales.inv[e] == 0 ? 0 : codes[e];
    }
    if (count < kLevelTile) std::memset(codes + count, 0, kLevelTile - count);
    level::pack_tile(codes, shape.bits, packed);
    std::memcpy(codes_out + shape.code_at(first), packed, shape.tile_bytes(first));
  }
}

void encode_run(const QsgdShape& shape, const float* x, const std::byte* norms, const Philox& draws,
                const Philox& further, std::size_t begin, std::size_t end, std::byte* codes_out) {
  if (shape.bits == 1) {
    encode_tiles<true>(shape, x, norms, draws, further, begin, end, codes_out);
  } else {
    encode_tiles<false>(shape, x, norms, draws, further, begin, end, codes_out);
  }
}

template <bool kAdd>
HWY_INLINE void decode_tiles(const QsgdShape& shape, const std::byte* norms,
                             const std::byte* codes_in, std::size_t begin, std::size_t end,
                             float alpha, float* y) {
  alignas(64) float step[kLevelTile];
  alignas(64) std::uint8_t codes[kLevelTile];
  std::byte packed[kLevelTile + 8] = {};
  for (std::size_t first = begin; first < end; first += kLevelTile) {
    if (!same_bucket(shape, first, begin)) {
      for_buckets(shape, norms, first, [&](std::size_t from, std::size_t to, float norm) {
        std::fill(step + from, step + to, math::level_step(norm, shape.levels()));
      });
    }
    const std::size_t count = std::min(kLevelTile, end - first);
    std::memcpy(packed, codes_in + shape.code_at(first), shape.tile_bytes(first));
    level::unpack_tile(packed, shape.bits, codes);
    if (count == kLevelTile) {
      level::value_tile<kAdd>(codes, step, shape.bits, alpha, y + first);
      continue;
    }
    float values[kLevelTile] = {};
    if constexpr (kAdd) std::memcpy(values, y + first, count * sizeof(float));
    level::value_tile<kAdd>(codes, step, shape.bits, alpha, values);
    std::memcpy(y + first, values, count * sizeof(float));
  }
}

void set_run(const QsgdShape& shape, const std::byte* norms, const std::byte* codes,
             std::size_t begin, std::size_t end, float* y) {
  decode_tiles<false>(shape, norms, codes, begin, end, 1, y);
}
void add_run(const QsgdShape& shape, const std::byte* norms, const std::byte* codes,
             std::size_t begin, std::size_t end, float alpha, float* y) {
  decode_tiles<true>(shape, norms, codes, begin, end, alpha, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(encode_run);
HWY_EXPORT(set_run);
HWY_EXPORT(add_run);

namespace {

struct BucketNorm {
  float value;
  bool finite;  ///< every entry is
};

BucketNorm bucket_norm(QsgdNorm norm, const float* x, std::size_t n) noexcept {
  if (norm == QsgdNorm::l2) {
    const double squares = sum_squares(x, n);
    return {math::norm_from_squares(squares), std::isfinite(squares)};
  }
  if (n >= 16) {
    const float largest = max_abs(x, n);
    return {largest, std::isfinite(largest)};
  }
  BucketNorm found{0, true};  // without the call into the SIMD loops, for buckets of few entries
  for (std::size_t i = 0; i < n; ++i) {
    found.value = std::max(found.value, std::abs(x[i]));
    found.finite &= std::isfinite(x[i]);
  }
  return found;
}

/// False when an entry is not finite.
bool write_norms(const QsgdConfig& config, const float* x, std::size_t begin, std::size_t end,
                 std::byte* norms) noexcept {
  std::byte* out = norms + begin / config.bucket * 4;
  bool finite = true;
  for (std::size_t at = begin; at < end; at += config.bucket, out += 4) {
    const std::size_t count = std::min<std::size_t>(config.bucket, end - at);
    const BucketNorm norm = bucket_norm(config.norm, x + at, count);
    finite &= norm.finite;
    std::memcpy(out, &norm.value, 4);
  }
  return finite;
}

/// Checks everything a body can break.
Status check(const QsgdShape& shape, ConstBytes body) noexcept {
  if (body.size() != shape.bytes())
    return body.size() < shape.bytes() ? Status::truncated : Status::corrupt;
  for (std::size_t b = 0; b < shape.buckets; ++b) {
    const float norm = load_norm(body.data(), b);
    if (!std::isfinite(norm) || std::signbit(norm)) return Status::corrupt;
  }
  const std::size_t used = shape.n % 8 * static_cast<std::size_t>(shape.bits) % 8;
  if (used != 0 && (std::to_integer<unsigned>(body.back()) >> used) != 0) return Status::corrupt;
  return Status::ok;
}

}  // namespace

std::size_t max_encoded_bytes(const QsgdConfig& config, std::size_t n) noexcept {
  return QsgdShape(config, n).bytes();
}

std::size_t workspace_bytes(const QsgdConfig&, std::size_t) noexcept { return 0; }

Status encode(const QsgdConfig& config, const float* x, std::size_t n, const Key& key,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  const QsgdShape shape(config, n);
  bytes = shape.bytes();
  if (body.size() < bytes) return Status::buffer_too_small;
  const Philox draws(key, Purpose::qsgd), further(key, Purpose::qsgd_low);
  std::byte* codes = body.data() + 4 * shape.buckets;
  const std::size_t run = shape.run_from(kRun);
  std::atomic<bool> finite{true};
  core::run_ranges(executor, n, shape.run_from(kTask), [&](std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end && finite.load(std::memory_order_relaxed); at += run) {
      const std::size_t to = std::min(end, at + run);
      if (write_norms(config, x, at, to, body.data())) {
        HWY_DYNAMIC_DISPATCH(encode_run)(shape, x, body.data(), draws, further, at, to, codes);
      } else {
        finite = false;
      }
    }
  });
  return finite ? Status::ok : Status::non_finite;
}

Status decode(const QsgdConfig& config, ConstBytes body, float* y, std::size_t n,
              Executor* executor) noexcept {
  const QsgdShape shape(config, n);
  if (const Status status = check(shape, body); failed(status)) return status;
  const std::byte* codes = body.data() + 4 * shape.buckets;
  core::run_ranges(executor, n, shape.run_from(kTask), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(set_run)(shape, body.data(), codes, begin, end, y);
  });
  return Status::ok;
}

void decode_add(const QsgdConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept {
  const QsgdShape shape(config, n);
  add_bodies<const std::byte*>(
      bodies, n, executor,
      [&](const LayerBody& body, const std::byte*& norms) {
        norms = body.bytes.data();
        return check(shape, body.bytes);
      },
      [&](const std::byte* norms, std::size_t begin, std::size_t end) {
        HWY_DYNAMIC_DISPATCH(add_run)
        (shape, norms, norms + 4 * shape.buckets, begin, end, alpha, y);
      });
}

}  // namespace atomo::cpu
#endif
