// SPDX-License-Identifier: Apache-2.0
/// Reads 4 bytes an entry and writes an eighth (twice read with a scale): limited by memory.

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
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(d, hn::Lt(hn::LoadU(d, x + i), hn::Zero(d)), bits);
    const std::uint32_t group = std::uint32_t{bits[0]} | (std::uint32_t{bits[1]} << 8);
    word |= std::uint64_t{group} << i;
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

/// 16 entries of +-scale from 16 bits.
template <bool kAdd>
HWY_INLINE void expand16(std::uint32_t bits, float scale, float alpha, float* y) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(du, 1u);
  for (std::size_t i = 0; i < 16; i += lanes) {
    const auto place = hn::Iota(du, static_cast<std::uint32_t>(i));
    const auto negative = hn::And(hn::Shr(hn::Set(du, bits), place), one);
    auto v = hn::Xor(hn::Set(d, scale), hn::BitCast(d, hn::ShiftLeft<31>(negative)));
    if constexpr (kAdd) v = hn::Add(hn::LoadU(d, y + i), hn::Mul(hn::Set(d, alpha), v));
    hn::StoreU(v, d, y + i);
  }
}

template <bool kAdd>
void decode_bits(const std::byte* in, std::size_t n, float scale, float alpha, float* y) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto low = std::to_integer<std::uint32_t>(in[i / 8]);
    const auto high = std::to_integer<std::uint32_t>(in[i / 8 + 1]);
    expand16<kAdd>(low | (high << 8), scale, alpha, y + i);
  }
  for (; i < n; ++i) {
    const bool negative = ((std::to_integer<unsigned>(in[i / 8]) >> (i % 8)) & 1u) != 0;
    const float v = negative ? -scale : scale;
    y[i] = kAdd ? y[i] + (alpha * v) : v;
  }
}

void set_bits(const std::byte* in, std::size_t n, float scale, float* y) {
  decode_bits<false>(in, n, scale, 1, y);
}
void add_bits(const std::byte* in, std::size_t n, float scale, float alpha, float* y) {
  decode_bits<true>(in, n, scale, alpha, y);
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

constexpr std::size_t kGrain = std::size_t{1} << 17;  ///< entries a task; a multiple of 64

std::size_t scale_bytes(const SignConfig& config) noexcept {
  return config.scale == SignScale::mean ? 4 : 0;
}

/// Checks everything a body can break and reads its scale.
Status open(const SignConfig& config, ConstBytes body, std::size_t n, float& scale) noexcept {
  const std::size_t want = max_encoded_bytes(config, n);
  if (body.size() != want) return body.size() < want ? Status::truncated : Status::corrupt;
  scale = 1;
  if (config.scale == SignScale::mean) {
    std::memcpy(&scale, body.data(), 4);
    if (!std::isfinite(scale) || std::signbit(scale)) return Status::corrupt;
  }
  if (n % 8 != 0 && (std::to_integer<unsigned>(body.back()) >> (n % 8)) != 0)
    return Status::corrupt;
  return Status::ok;
}

}  // namespace

std::size_t max_encoded_bytes(const SignConfig& config, std::size_t n) noexcept {
  return scale_bytes(config) + n / 8 + (n % 8 != 0);
}

std::size_t workspace_bytes(const SignConfig& config, std::size_t n) noexcept {
  core::Carver carver;
  if (config.scale == SignScale::mean) carver.take<double>(reduce_scratch(n));
  return carver.bytes();
}

Status encode(const SignConfig& config, const float* x, std::size_t n, Bytes workspace,
              Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = max_encoded_bytes(config, n);
  if (body.size() < bytes) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  if (config.scale == SignScale::mean) {
    core::Carver carver(workspace);
    const auto scratch = carver.take<double>(reduce_scratch(n));
    if (!carver.fits()) return Status::workspace_too_small;
    const float scale = math::mean_magnitude(layer_sum_abs(x, n, scratch, executor), n);
    std::memcpy(body.data(), &scale, 4);
  }
  std::byte* out = body.data() + scale_bytes(config);
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(encode_bits)(x + begin, end - begin, out + begin / 8);
  });
  return Status::ok;
}

Status decode(const SignConfig& config, ConstBytes body, float* y, std::size_t n,
              Executor* executor) noexcept {
  float scale = 1;
  if (const Status status = open(config, body, n, scale); failed(status)) return status;
  const std::byte* in = body.data() + scale_bytes(config);
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(set_bits)(in + begin / 8, end - begin, scale, y + begin);
  });
  return Status::ok;
}

void decode_add(const SignConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept {
  struct Signs {
    const std::byte* bits;
    float scale;
  };
  add_bodies<Signs>(
      bodies, n, executor,
      [&](const LayerBody& body, Signs& signs) {
        signs.bits = body.bytes.data() + scale_bytes(config);
        return open(config, body.bytes, n, signs.scale);
      },
      [&](const Signs& signs, std::size_t begin, std::size_t end) {
        HWY_DYNAMIC_DISPATCH(add_bits)
        (signs.bits + begin / 8, end - begin, signs.scale, alpha, y + begin);
      });
}

}  // namespace atomo::cpu
#endif
