// SPDX-License-Identifier: Apache-2.0
/// Blocks of 640 entries, five tiles of 128: tile k gives digit k of the block's 128 bytes, so
/// neither side shuffles. Reads the layer twice when encoding: for the norm, then for the digits.

#include "cpu/ternary.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "cpu/level_tile.hpp"
#include "cpu/reduce.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ternary.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/level_tile-inl.hpp"

#ifndef ATOMO_CPU_TERNARY_ONCE
#define ATOMO_CPU_TERNARY_ONCE
namespace atomo::cpu {
namespace {

constexpr std::size_t kTrits = 5;  ///< digits a byte
constexpr std::size_t kTernaryBlock = kTrits * kLevelTile;

constexpr std::size_t trit_bytes(std::size_t n) noexcept { return n / kTrits + (n % kTrits != 0); }

}  // namespace
}  // namespace atomo::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace level = atomo::cpu::HWY_NAMESPACE;

/// `width` bytes, byte j of the base-3 digits codes[j + k * width]; a code is level | sign << 1, a
/// digit 0, 1 for + or 2.
HWY_INLINE void pack_trits(const std::uint8_t* HWY_RESTRICT codes, std::size_t width,
                           std::uint8_t* HWY_RESTRICT out) {
  const hn::CappedTag<std::uint8_t, 64> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto two = hn::Set(d, std::uint8_t{2});
  std::size_t j = 0;
  for (; j + lanes <= width; j += lanes) {
    auto v = hn::Zero(d);
    for (std::size_t k = kTrits; k-- > 0;) {
      const auto digit = hn::Min(hn::LoadU(d, codes + j + k * width), two);
      v = hn::Add(hn::Add(v, v), hn::Add(v, digit));
    }
    hn::StoreU(v, d, out + j);
  }
  for (; j < width; ++j) {
    unsigned v = 0;
    for (std::size_t k = kTrits; k-- > 0;) v = 3 * v + std::min<unsigned>(codes[j + k * width], 2);
    out[j] = static_cast<std::uint8_t>(v);
  }
}

HWY_INLINE void unpack_trits(const std::uint8_t* HWY_RESTRICT in, std::size_t width,
                             std::uint8_t* HWY_RESTRICT codes) {
  std::uint8_t left[kLevelTile];
  std::memcpy(left, in, width);
  for (std::size_t k = 0; k < kTrits; ++k) {
    std::uint8_t* HWY_RESTRICT digit_codes = codes + k * width;
    for (std::size_t j = 0; j < width; ++j) {
      const auto v = static_cast<std::uint16_t>(left[j]);
      const auto third = static_cast<std::uint16_t>(static_cast<std::uint16_t>(v * 171) >>
                                                    9);  // v / 3 for v < 256
      const auto digit = static_cast<std::uint16_t>(v - 3 * third);
      digit_codes[j] = static_cast<std::uint8_t>(digit + (digit >> 1));
      left[j] = static_cast<std::uint8_t>(third);
    }
  }
}

void encode_blocks(const float* x, const Philox& draws, const Philox& further,
                   const math::LevelScale& scale, std::size_t begin, std::size_t end,
                   std::byte* out) {
  const level::PhiloxTiles tiles(draws);
  LevelTileScales scales;
  scales.set(0, kLevelTile, scale);
  alignas(64) std::uint16_t random[kLevelTile];
  alignas(64) std::uint8_t codes[kTernaryBlock];
  alignas(64) std::uint8_t packed[kLevelTile];
  float padded[kLevelTile];
  for (std::size_t block = begin; block < end; block += kTernaryBlock) {
    const std::size_t length = std::min(kTernaryBlock, end - block);
    if (length < kTernaryBlock) std::memset(codes, 0, sizeof codes);
    for (std::size_t at = 0; at < length; at += kLevelTile) {
      const float* in = x + block + at;
      if (length - at < kLevelTile) {
        std::memset(padded, 0, sizeof padded);
        std::memcpy(padded, in, (length - at) * sizeof(float));
        in = padded;
      }
      tiles((block + at) / 8, random);
      if (level::level_tile<false>(in, scales, 65536.0f, 2, random, codes + at))
        resolve_ties(in, scales, 65536.0f, 2, random, further, block + at, codes + at);
    }
    const std::size_t width = trit_bytes(length);
    pack_trits(codes, width, packed);
    std::memcpy(out + block / kTrits, packed, width);
  }
}

template <bool kAdd>
HWY_INLINE void decode_blocks(const std::byte* in, float norm, std::size_t begin, std::size_t end,
                              float alpha, float* y) {
  alignas(64) float step[kLevelTile];
  std::fill_n(step, kLevelTile, norm);
  alignas(64) std::uint8_t codes[kTernaryBlock];
  std::uint8_t packed[kLevelTile];
  for (std::size_t block = begin; block < end; block += kTernaryBlock) {
    const std::size_t length = std::min(kTernaryBlock, end - block);
    const std::size_t width = trit_bytes(length);
    std::memcpy(packed, in + block / kTrits, width);
    if (length < kTernaryBlock) {
      unpack_trits(packed, width, codes);
    } else {
      unpack_trits(packed, kLevelTile, codes);
    }
    for (std::size_t at = 0; at < length; at += kLevelTile) {
      const std::size_t count = std::min(kLevelTile, length - at);
      float values[kLevelTile] = {};
      float* out = y + block + at;
      if (count < kLevelTile) {
        if constexpr (kAdd) std::memcpy(values, out, count * sizeof(float));
        std::fill(codes + at + count, codes + at + kLevelTile, std::uint8_t{0});
        level::value_tile<kAdd>(codes + at, step, 2, alpha, values);
        std::memcpy(out, values, count * sizeof(float));
      } else {
        level::value_tile<kAdd>(codes + at, step, 2, alpha, out);
      }
    }
  }
}

void set_blocks(const std::byte* in, float norm, std::size_t begin, std::size_t end, float* y) {
  decode_blocks<false>(in, norm, begin, end, 1, y);
}
void add_blocks(const std::byte* in, float norm, std::size_t begin, std::size_t end, float alpha,
                float* y) {
  decode_blocks<true>(in, norm, begin, end, alpha, y);
}

/// Whether every byte holds five digits.
bool bytes_are_trits(const std::byte* in, std::size_t count) {
  std::uint8_t largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::to_integer<std::uint8_t>(in[i]));
  return largest < 243;
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::cpu {
HWY_EXPORT(encode_blocks);
HWY_EXPORT(set_blocks);
HWY_EXPORT(add_blocks);
HWY_EXPORT(bytes_are_trits);

namespace {

constexpr std::size_t kGrain = 64 * kTernaryBlock;  ///< entries a task

/// Digits beyond the last entry are zero. They are the upper digits of the last block's bytes:
/// digit k of byte j is entry j + k * width.
bool padding_is_zero(const std::byte* trits, std::size_t n) noexcept {
  const std::size_t tail = n % kTernaryBlock, width = trit_bytes(tail);
  const std::byte* bytes = trits + (n - tail) / kTrits;
  for (std::size_t j = 0; j < width; ++j) {
    unsigned v = std::to_integer<unsigned>(bytes[j]);
    for (std::size_t e = j; e < tail; e += width) v /= 3;
    if (v != 0) return false;
  }
  return true;
}

Status open(const TernaryConfig& config, ConstBytes body, std::size_t n, float& norm) noexcept {
  const std::size_t want = max_encoded_bytes(config, n);
  if (body.size() != want) return body.size() < want ? Status::truncated : Status::corrupt;
  if (n == 0) return Status::ok;
  std::memcpy(&norm, body.data(), 4);
  if (!std::isfinite(norm) || std::signbit(norm)) return Status::corrupt;
  if (!HWY_DYNAMIC_DISPATCH(bytes_are_trits)(body.data() + 4, want - 4)) return Status::corrupt;
  return padding_is_zero(body.data() + 4, n) ? Status::ok : Status::corrupt;
}

}  // namespace

std::size_t max_encoded_bytes(const TernaryConfig&, std::size_t n) noexcept {
  return n == 0 ? 0 : 4 + trit_bytes(n);
}

std::size_t workspace_bytes(const TernaryConfig&, std::size_t n) noexcept {
  core::Carver carver;
  carver.take<double>(2 * reduce_scratch(n));
  return carver.bytes();
}

Status encode(const TernaryConfig& config, const float* x, std::size_t n, const Key& key,
              Bytes workspace, Executor* executor, Bytes body, std::size_t& bytes) noexcept {
  bytes = max_encoded_bytes(config, n);
  if (body.size() < bytes) return Status::buffer_too_small;
  if (n == 0) return Status::ok;
  core::Carver carver(workspace);
  const auto scratch = carver.take<double>(2 * reduce_scratch(n));
  if (!carver.fits()) return Status::workspace_too_small;
  float norm = 0;
  if (config.clip > 0) {
    const MaxAndSquares found = layer_max_and_squares(x, n, scratch, executor);
    norm = found.max_abs;
    if (std::isfinite(norm)) norm = math::clipped_norm(norm, found.squares, n, config.clip);
  } else {
    norm = layer_max_abs(x, n, scratch, executor);
  }
  if (!std::isfinite(norm)) return Status::non_finite;
  std::memcpy(body.data(), &norm, 4);
  const Philox draws(key, Purpose::ternary), further(key, Purpose::ternary_low);
  const math::LevelScale scale = math::level_scale(math::level_step(norm, 1), 65536.0f);
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(encode_blocks)(x, draws, further, scale, begin, end, body.data() + 4);
  });
  return Status::ok;
}

Status decode(const TernaryConfig& config, ConstBytes body, float* y, std::size_t n,
              Executor* executor) noexcept {
  float norm = 0;
  if (const Status status = open(config, body, n, norm); failed(status)) return status;
  core::run_ranges(executor, n, kGrain, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(set_blocks)(body.data() + 4, norm, begin, end, y);
  });
  return Status::ok;
}

void decode_add(const TernaryConfig& config, std::span<LayerBody> bodies, float alpha, float* y,
                std::size_t n, Executor* executor) noexcept {
  struct Trits {
    const std::byte* bytes;
    float norm;
  };
  add_bodies<Trits>(
      bodies, n, executor,
      [&](const LayerBody& body, Trits& trits) {
        trits.bytes = body.bytes.data() + 4;
        return open(config, body.bytes, n, trits.norm);
      },
      [&](const Trits& trits, std::size_t begin, std::size_t end) {
        HWY_DYNAMIC_DISPATCH(add_blocks)(trits.bytes, trits.norm, begin, end, alpha, y);
      },
      kGrain);
}

}  // namespace atomo::cpu
#endif
