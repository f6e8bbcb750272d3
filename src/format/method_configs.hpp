// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What codecs are set to, and their parameters on the wire where these are fields (FORMAT.md).

#include <cstdint>

#include "core/host_device.hpp"
#include "core/namespaces.hpp"

namespace atomo::format {

/// The norm that the levels of a bucket divide.
enum class QsgdNorm : std::uint8_t {
  max = 0,  ///< max|x|: the least error
  l2 = 1,   ///< the Euclidean norm, as in the paper: more zeros; rounded up in f32, at most the
            ///< largest f32
};

/// How QSGD rounds.
struct QsgdConfig {
  static constexpr std::uint32_t kMaxBucket = 1u << 24;  ///< largest bucket

  int bits = 4;  ///< of an entry, sign included: 1 to 8
  std::uint32_t bucket =
      512;  ///< entries that share a norm: 1 to kMaxBucket; the last bucket may be shorter
  QsgdNorm norm = QsgdNorm::max;  ///< what the levels divide
};

/// The value that a sign decodes to.
enum class SignScale : std::uint8_t {
  one = 0,    ///< +-1
  mean = 1,   ///< +-mean|x| of the layer
  means = 2,  ///< the mean of the entries of that sign, of the layer or of a bucket
};

/// How signs decode.
struct SignConfig {
  static constexpr int kMinBucketLog = 7, kMaxBucketLog = 16;  ///< of buckets

  SignScale scale = SignScale::one;  ///< what a sign decodes to
  /// With `means`: the binary logarithm of a bucket's entries, kMinBucketLog to kMaxBucketLog; 0:
  /// the layer is one bucket. The last bucket may be shorter.
  int bucket_log = 0;
};

/// How TernGrad limits its entries.
struct TernaryConfig {
  float clip = 0;  ///< entries are limited to clip * sigma; 0: no clip
};

/// How many entries random-k sends, or blocks of 64 consecutive ones.
struct RandomKConfig {
  static constexpr std::uint64_t kBlock = 64;  ///< entries of a block; the last may have fewer

  std::uint64_t keep = 1;  ///< entries to keep, 1 to n, or blocks
  bool blocks = false;     ///< blocks are kept, not single entries

  /// What is kept or left out as a whole, of n entries.
  [[nodiscard]] constexpr std::uint64_t units(std::uint64_t n) const noexcept {
    return blocks ? n / kBlock + (n % kBlock != 0 ? 1 : 0) : n;
  }
  /// Entries that a unit takes on the wire.
  [[nodiscard]] constexpr std::uint64_t unit() const noexcept { return blocks ? kBlock : 1; }
};

/// How minmax rounds.
struct MinmaxConfig {
  static constexpr int kMinBucketLog = 7, kMaxBucketLog = 10;  ///< of buckets

  int bits = 8;        ///< of an entry: 8 or 4
  int bucket_log = 9;  ///< binary logarithm of a bucket's entries; the last may be shorter
};

/// How many entries top-k sends.
struct TopkConfig {
  std::uint64_t keep = 1;  ///< entries to keep, 1 to n
};

/// The number that both ends of a coordinate message agree on.
struct CoordinateConfig {
  float step = 0;  ///< the grid step, finite and positive
};

[[nodiscard]] inline std::uint32_t sign_params(const SignConfig& config) noexcept {
  return static_cast<std::uint32_t>(config.scale) |
         (static_cast<std::uint32_t>(config.bucket_log) << 2);
}
[[nodiscard]] inline SignConfig sign_config(std::uint32_t params) noexcept {
  return {static_cast<SignScale>(params & 3u), static_cast<int>(params >> 2)};
}

[[nodiscard]] ATOMO_HD constexpr std::uint32_t minmax_params(const MinmaxConfig& config) noexcept {
  return (config.bits == 4 ? 1u : 0u) | (static_cast<std::uint32_t>(config.bucket_log) << 1);
}
[[nodiscard]] ATOMO_HD constexpr MinmaxConfig minmax_config(std::uint32_t params) noexcept {
  return {(params & 1u) != 0 ? 4 : 8, static_cast<int>(params >> 1)};
}

[[nodiscard]] inline std::uint32_t qsgd_params(const QsgdConfig& config) noexcept {
  return static_cast<std::uint32_t>(config.bits - 1) |
         (static_cast<std::uint32_t>(config.norm) << 3) | ((config.bucket - 1) << 4);
}

[[nodiscard]] inline QsgdConfig qsgd_config(std::uint32_t params) noexcept {
  QsgdConfig config;
  config.bits = static_cast<int>(params & 7u) + 1;
  config.norm = static_cast<QsgdNorm>((params >> 3) & 1u);
  config.bucket = ((params >> 4) & 0xFFFFFFu) + 1;
  return config;
}

}  // namespace atomo::format
