// SPDX-License-Identifier: Apache-2.0
/// Reads 4 bytes an entry and writes an eighth (twice read with a scale or means): limited by memory.

#include "cpu/sign.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "cpu/reduce.hpp"
#include "math/stochastic_level.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/sign.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/magnitude_marks-inl.hpp"

#ifndef ATOMO_CPU_SIGN_ONCE
#define ATOMO_CPU_SIGN_ONCE
namespace atomo::cpu {
/// What a bit of 0 and a bit of 1 decode to.
struct SignValues {
  float plus, minus;
};
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, 16>;

/// 64 entries to 8 bytes, bit i set where x[i] < 0.
HWY_INLINE std::uint64_t negatives64(const float* x) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 64; i += lanes) {
    word |= bits_of(d, hn::Lt(hn::LoadU(d, x + i), hn::Zero(d))) << i;
  }
  return word;
}

void encode_bits(const float* x, std::size_t n, std::byte* out) {
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    std::uint64_t word = negatives64(x + i);
    for (std::size_t b = 0; b < 8; ++b) out[i / 8 + b] = static_cast<std::byte>(word >> (8 * b));
  }
  if (i == n) return;
  float tail[64] = {};
  std::memcpy(tail, x + i, (n - i) * sizeof(float));
  std::uint64_t word = negatives64(tail);
  for (; i < n; i += 8, word >>= 8) out[i / 8] = static_cast<std::byte>(word);
}

/// 16 entries from 16 bits.
template <bool kAdd>
HWY_INLINE void expand16(std::uint32_t bits, SignValues values, float alpha, float* y) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> du;
  const hn::RebindToSigned<Tag> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto apart = hn::BitCast(du, hn::Xor(hn::Set(d, values.plus), hn::Set(d, values.minus)));
  for (std::size_t i = 0; i < 16; i += lanes) {
    const auto place = hn::Iota(du, static_cast<std::uint32_t>(i));
    const auto to_top = hn::Shl(hn::Set(du, bits), hn::Sub(hn::Set(du, 31u), place));
    const auto mask = hn::BitCast(du, hn::BroadcastSignBit(hn::BitCast(di, to_top)));
    auto v = hn::Xor(hn::Set(d, values.plus), hn::BitCast(d, hn::And(mask, apart)));
    if constexpr (kAdd) v = hn::Add(hn::LoadU(d, y + i), hn::Mul(hn::Set(d, alpha), v));
    hn::StoreU(v, d, y + i);
  }
}

template <bool kAdd>
void decode_bits(const std::byte* in, std::size_t n, SignValues values, float alpha, float* y) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto low = std::to_integer<std::uint32_t>(in[i / 8]);
    const auto high = std::to_integer<std::uint32_t>(in[i / 8 + 1]);
    expand16<kAdd>(low | (high << 8), values, alpha, y + i);
  }
  for (; i < n; ++i) {
    const bool negative = ((std::to_integer<unsigned>(in[i / 8]) >> (i % 8)) & 1u) != 0;
    const float v = negative ? values.minus : values.plus;
    y[i] = kAdd ? y[i] + (alpha * v) : v;
  }
}

void set_bits(const std::byte* in, std::size_t n, SignValues values, float* y) {
  decode_bits<false>(in, n, values, 1, y);
}
void add_bits(const std::byte* in, std::size_t n, SignValues values, float alpha, float* y) {
  decode_bits<true>(in, n, values, alpha, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(encode_bits);
HWY_EXPORT(set_bits);
HWY_EXPORT(add_bits);

namespace {

constexpr std::size_t kGrain = std::size_t{1} << 17;  ///< entries a task; whole buckets
static_assert(kGrain % (std::size_t{1} << SignConfig::kMaxBucketLog) == 0);
static_assert(kStretch % (std::size_t{1} << SignConfig::kMaxBucketLog) == 0);

/// Entries of a bucket: of the whole layer where it is one.
std::size_t bucket_of(const SignConfig& config, std::size_t n) noexcept {
  return config.bucket_log == 0 ? n : std::size_t{1} << config.bucket_log;
}

/// Bytes in front of the bits.
std::size_t scale_bytes(const SignConfig& config, std::size_t n) noexcept {
  if (config.scale == SignScale::one) return 0;
  if (config.scale == SignScale::mean) return 4;
  if (n == 0) return 0;
  const std::size_t bucket = bucket_of(config, n);
  return 8 * (n / bucket + (n % bucket != 0));
}

float load_scale(const std::byte* at) noexcept {
  float scale;
  std::memcpy(&scale, at, 4);
  return scale;
}

/// A body whose sizes were checked.
struct Signs {
  const std::byte* scales = nullptr;
  const std::byte* bits = nullptr;
};

/// Checks everything a body can break.
Status open(const SignConfig& config, ConstBytes body, std::size_t n, Signs& signs) noexcept {
  const std::size_t want = max_encoded_bytes(config, n), scales = scale_bytes(config, n);
  if (body.size() != want) return body.size() < want ? Status::truncated : Status::corrupt;
  signs = {body.data(), body.data() + scales};
  for (std::size_t at = 0; at < scales; at += 4) {
    const float scale = load_scale(body.data() + at);
    if (!std::isfinite(scale) || std::signbit(scale)) return Status::corrupt;
  }
  if (n % 8 != 0 && (std::to_integer<unsigned>(body.back()) >> (n % 8)) != 0)
    return Status::corrupt;
  return Status::ok;
}

/// Calls `each(begin, end, values)` for the stretches of one bucket in [begin, end).
template <typename Each>
void for_buckets(const SignConfig& config, const Signs& signs, std::size_t n, std::size_t begin,
                 std::size_t end, const Each& each) noexcept {
  if (config.scale != SignScale::means) {
    const float scale = config.scale == SignScale::mean ? load_scale(signs.scales) : 1.0f;
    return each(begin, end, SignValues{scale, -scale});
  }
  const std::size_t bucket = bucket_of(config, n);
  for (std::size_t at = begin, to; at < end; at = to) {
    to = std::min(end, (at / bucket + 1) * bucket);
    const std::byte* const means = signs.scales + at / bucket * 8;
    each(at, to, SignValues{load_scale(means), -load_scale(means + 4)});
  }
}

void store_means(const Sides& sides, std::size_t n, std::byte* out) noexcept {
  const float means[2] = {math::mean_magnitude(sides.others, n - sides.negatives),
                          math::mean_magnitude(sides.below, sides.negatives)};
  std::memcpy(out, means, sizeof means);
}

void write_means(const SignConfig& config, const float* x, std::size_t n, std::span<double> scratch,
                 Executor* executor, std::byte* out) noexcept {
  if (config.bucket_log == 0) return store_means(layer_sum_sides(x, n, scratch, executor), n, out);
  const std::size_t bucket = bucket_of(config, n);
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; at += bucket) {
      const std::size_t count = std::min(bucket, end - at);
      store_means(sum_sides(x + at, count), count, out + at / bucket * 8);
    }
  });
}

}  // namespace

std::size_t max_encoded_bytes(const SignConfig& config, std::size_t n) noexcept {
  return scale_bytes(config, n) + n / 8 + (n % 8 != 0);
}

std::size_t workspace_bytes(const SignConfig& config, std::size_t n) noexcept {
  core::Carver carver;
  if (config.scale == SignScale::mean) carver.take<double>(reduce_scratch(n));
  if (config.scale == SignScale::means && config.bucket_log == 0)
    carver.take<double>(2 * reduce_scratch(n));
  return carver.bytes();
}

Status encode(const SignConfig& config, const float* x, std::size_t n, Bytes workspace,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = max_encoded_bytes(config, n);
  if (body.size() < bytes) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  core::Carver carver(workspace);
  if (config.scale == SignScale::mean) {
    const auto scratch = carver.take<double>(reduce_scratch(n));
    if (!carver.fits()) return Status::workspace_too_small;
    const float scale = math::mean_magnitude(layer_sum_abs(x, n, scratch, executor), n);
    std::memcpy(body.data(), &scale, 4);
  }
  if (config.scale == SignScale::means) {
    const auto scratch = carver.take<double>(config.bucket_log == 0 ? 2 * reduce_scratch(n) : 0);
    if (!carver.fits()) return Status::workspace_too_small;
    write_means(config, x, n, scratch, executor, body.data());
  }
  std::byte* out = body.data() + scale_bytes(config, n);
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(encode_bits)(x + begin, end - begin, out + begin / 8);
  });
  return Status::ok;
}

Status decode(const SignConfig& config, ConstBytes body, float* y, std::size_t n,
              Executor* executor) noexcept {
  Signs signs;
  if (const Status status = open(config, body, n, signs); failed(status)) return status;
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    for_buckets(config, signs, n, begin, end, [&](std::size_t at, std::size_t to, SignValues v) {
      HWY_DYNAMIC_DISPATCH(set_bits)(signs.bits + at / 8, to - at, v, y + at);
    });
  });
  return Status::ok;
}

Status sign_bits(const SignConfig& config, ConstBytes body, std::size_t n,
                 const std::byte*& bits) noexcept {
  Signs signs;
  const Status status = open(config, body, n, signs);
  bits = signs.bits;
  return status;
}

void decode_add(const SignConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept {
  add_bodies<Signs>(
      bodies, n, executor,
      [&](const LayerBody& body, Signs& signs) { return open(config, body.bytes, n, signs); },
      [&](const Signs& signs, std::size_t begin, std::size_t end) {
        for_buckets(config, signs, n, begin, end,
                    [&](std::size_t at, std::size_t to, SignValues v) {
                      HWY_DYNAMIC_DISPATCH(add_bits)
                      (signs.bits + at / 8, to - at, v, alpha, y + at);
                    });
      });
}

}  // namespace atomo::cpu
#endif
