// SPDX-License-Identifier: Apache-2.0
/// sign: one bit an entry, 1 where x < 0 (a zero of either sign is +). FORMAT.md ("sign") has the
/// body, cpu/sign.hpp the papers.

#include <limits>

#include "codec/methods/operation_method.hpp"
#include "cpu/sign.hpp"
#include "format/method_configs.hpp"

namespace atomo::codec {
namespace {

const std::vector<std::string> kScales = {"none", "mean", "means"};
const std::vector<std::string> kBuckets = {"layer", "128",  "256",   "512",   "1024", "2048",
                                           "4096",  "8192", "16384", "32768", "65536"};

std::string spec_of(const SignConfig& config) {
  if (config.scale == SignScale::one) return "sign";
  std::string spec = "sign:scale=" + kScales[static_cast<std::size_t>(config.scale)];
  if (config.bucket_log != 0) spec += ",bucket=" + std::to_string(1u << config.bucket_log);
  return spec;
}
SignConfig config_of(const Kind& kind) noexcept { return sign_config(kind.params); }

class Sign final : public BodyEncoder {
 public:
  explicit Sign(SignConfig config) : config_(config) {}

  std::string to_string() const override { return spec_of(config_); }
  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.bias_bound = std::numeric_limits<double>::infinity();
    // ||x - s sign(x)||^2 = ||x||^2 - ||x||_1^2 / n at s = ||x||_1 / n. The contraction is at least
    // 1/n, so no constant. Two means leave no more than one.
    if (config_.scale != SignScale::one) t.omega = 1;
    t.fixed_size = t.votes = true;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::sign, dtype, sign_params(config_), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return cpu::max_encoded_bytes(config_, shape.elements());
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    return cpu::workspace_bytes(config_, shape.elements());
  }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    return cpu::encode(config_, in.layer.x, in.layer.n, in.scratch, in.layer.executor, body,
                       result.bytes);
  }

 private:
  SignConfig config_;
};

}  // namespace

const BodyDecoder decoders::sign = kEveryEntryDecoder<config_of, spec_of>;

std::shared_ptr<const BodyEncoder> make_sign(SpecArgs& args) {
  SignConfig config{.scale = static_cast<SignScale>(args.choice("scale", kScales, 0))};
  if (config.scale == SignScale::means) {
    const std::size_t bucket = args.choice("bucket", kBuckets, 0);
    if (bucket != 0) config.bucket_log = SignConfig::kMinBucketLog - 1 + static_cast<int>(bucket);
  }
  return std::make_shared<Sign>(config);
}

}  // namespace atomo::codec
