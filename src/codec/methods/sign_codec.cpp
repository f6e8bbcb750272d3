// SPDX-License-Identifier: Apache-2.0
/// sign: one bit an entry, 1 where x < 0 (a zero of either sign is +). FORMAT.md ("sign") has the
/// body.

#include <limits>

#include "codec/methods/operation_method.hpp"
#include "cpu/sign.hpp"

namespace atomo::codec {
namespace {

const std::vector<std::string> kScales = {"none", "mean"};

std::string spec_of(const SignConfig& config) {
  return config.scale == SignScale::mean ? "sign:scale=mean" : "sign";
}
SignConfig config_of(const Kind& kind) noexcept { return {static_cast<SignScale>(kind.params)}; }

class Sign final : public BodyEncoder {
 public:
  explicit Sign(SignConfig config) : config_(config) {}

  std::string to_string() const override { return spec_of(config_); }
  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.bias_bound = std::numeric_limits<double>::infinity();
    // ||x - s sign(x)||^2 = ||x||^2 - ||x||_1^2 / n at s = ||x||_1 / n. The contraction is at least
    // 1/n, so no constant.
    if (config_.scale == SignScale::mean) t.omega = 1;
    t.fixed_size = true;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::sign, dtype, static_cast<std::uint32_t>(config_.scale), shape};
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
  const auto scale = static_cast<SignScale>(args.choice("scale", kScales, 0));
  return std::make_shared<Sign>(SignConfig{scale});
}

}  // namespace atomo::codec
