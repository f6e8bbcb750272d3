// SPDX-License-Identifier: Apache-2.0
/// qsgd: stochastic rounding to L levels a side of each bucket's norm.
///
/// Params: bits - 1 in bits 0-2, norm (0 max, 1 l2) in bit 3, bucket - 1 in bits 4-27; bits 28-31
/// are 0. Body of n entries, buckets of `bucket` consecutive entries (the last may be shorter),
/// exactly this long:
///   norms: 4 bytes a bucket, f32 little-endian, finite, sign bit 0; 0 for a bucket of zeros
///   codes: ceil(n * bits / 8) bytes, one bit stream: entry i at bits [i * bits, (i + 1) * bits),
///   bit 0 of a code first,
///          bit 0 of a byte first; the bits from n * bits on are 0
/// At bits >= 2, L = 2^(bits-1) - 1: a code is level | sign << (bits - 1), sign 1 for negative,
/// level 0 ... L. It decodes to +-level * step, one rounded f32 product (an encoder writes level 0
/// with sign 0). step is the least f32 with L * step >= norm in real arithmetic; the f32 below it
/// where the f32 product L * step overflows; 0 for norm 0. At bits = 1 a code is 0 for +norm, 1 for
/// -norm; an encoder writes 0 throughout a bucket of norm 0.
///
/// Encoder: norm is max|x|, or for l2 the f64 square root of the f64 sum of squares (order:
/// cpu/reduce.hpp), rounded up to f32 and at most the largest f32. z = (|x| * pre) * inv, two
/// rounded f32 products, pre = 2^64 for step < 2^-60, 2^-64 for step > 2^60, else 1, inv = 65536 /
/// (step * pre); at most 65536 L. With t = floor(z), r the entry's draw of 16 bits: level = t >>
/// 16, plus one if r < t mod 65536, or if r equals it and the entry's further 16 bits are below
/// floor((z - t) * 65536 + 0.5). At one bit z = (x * pre) * inv with inv = 32768 / (step * pre),
/// limited to +-32768, t = floor(z) + 32768, and r < t, or r = t and further bits below the same
/// bound, is +. Draws: r is half h (0 low) of word w of block 16 (i / 128) + l of purpose
/// qsgd, i mod 128 = 32 w + 16 h + l; the further bits are half i mod 2 of word (i / 2) mod 4 of
/// block i / 8 of purpose qsgd_low.

#include "cpu/qsgd.hpp"

#include <algorithm>
#include <cmath>

#include "codec/methods/operation_method.hpp"
#include "format/method_configs.hpp"

namespace atomo::codec {
namespace {

const std::vector<std::string> kNorms = {"max", "l2"};

std::string spec_of(const QsgdConfig& config) {
  return "qsgd:bits=" + std::to_string(config.bits) + ",bucket=" + std::to_string(config.bucket) +
         ",norm=" + kNorms[static_cast<std::size_t>(config.norm)];
}

QsgdConfig config_of(const Kind& kind) noexcept { return qsgd_config(kind.params); }

/// Variance of an entry of y steps: step^2 f (1 - f) <= step^2 min(1/4, y). Summed over a bucket of
/// d entries with step <= ||x|| / L: at most min(d / (4 L^2), sqrt(d) / L) ||x||^2. At one bit N^2
/// - x^2, summed at most (d - 1) ||x||^2. A hair more for the rounding of step and norm.
double omega_of(const QsgdConfig& config) noexcept {
  constexpr double kRounding = 1 + 0x1p-20;
  const double d = config.bucket;
  if (config.bits == 1) return d * kRounding - 1;
  const double levels = (1 << (config.bits - 1)) - 1;
  return std::min(d / (4 * levels * levels), std::sqrt(d) / levels) * kRounding;
}

class Qsgd final : public BodyEncoder {
 public:
  explicit Qsgd(QsgdConfig config) : config_(config) {}

  std::string to_string() const override { return spec_of(config_); }
  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.unbiased = true;
    // 1/step, the product with it and the product on decode round by 2^-24 each, a step one f32
    // short by 2^-23, P by 2^-33 of a step.
    t.bias_bound = 0x1p-21;
    t.omega = omega_of(config_);
    t.averages_over_workers = true;
    t.fixed_size = true;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::qsgd, dtype, qsgd_params(config_), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return cpu::max_encoded_bytes(config_, shape.elements());
  }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    return cpu::encode(config_, in.layer.x, in.layer.n, in.layer.key, in.layer.executor, body,
                       result.bytes);
  }

 private:
  QsgdConfig config_;
};

}  // namespace

const BodyDecoder decoders::qsgd = kEveryEntryDecoder<config_of, spec_of>;

std::shared_ptr<const BodyEncoder> make_qsgd(SpecArgs& args) {
  QsgdConfig config;
  config.bits = static_cast<int>(args.integer("bits", 1, 8, 4));
  config.bucket =
      static_cast<std::uint32_t>(args.integer("bucket", 1, QsgdConfig::kMaxBucket, 512));
  config.norm = static_cast<QsgdNorm>(args.choice("norm", kNorms, 0));
  return std::make_shared<Qsgd>(config);
}

}  // namespace atomo::codec
