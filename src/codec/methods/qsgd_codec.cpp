// SPDX-License-Identifier: Apache-2.0
/// qsgd: stochastic rounding to L levels a side of each bucket's norm (QSGD, arXiv 1610.02132).
/// FORMAT.md ("qsgd") has the body and the draws.

#include <algorithm>
#include <cmath>

#include "codec/methods/operation_method.hpp"
#include "cpu/qsgd.hpp"
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
  bool finds_non_finite() const noexcept override { return true; }
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
