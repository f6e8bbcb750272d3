// SPDX-License-Identifier: Apache-2.0
/// terngrad: every entry becomes -N, 0 or +N, five of them in a byte (TernGrad, arXiv 1705.07878).
/// FORMAT.md ("ternary") has the body and the draws.

#include <bit>
#include <charconv>
#include <limits>

#include "codec/methods/operation_method.hpp"
#include "cpu/ternary.hpp"

namespace atomo::codec {
namespace {

std::string spec_of(const TernaryConfig& config) {
  if (!(config.clip > 0)) return "terngrad:clip=none";
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, config.clip);
  return "terngrad:clip=" + std::string(text, error == std::errc{} ? end : text);
}

class TernGrad final : public BodyEncoder {
 public:
  explicit TernGrad(TernaryConfig config) : config_(config) {}

  std::string to_string() const override { return spec_of(config_); }
  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.unbiased = !(config_.clip > 0);
    // 1/N, two products and P = |x|/N to 2^-32.
    t.bias_bound = t.unbiased ? 0x1p-21 : std::numeric_limits<double>::infinity();
    t.averages_over_workers = true;
    t.fixed_size = true;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::ternary, dtype, std::bit_cast<std::uint32_t>(config_.clip), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return cpu::max_encoded_bytes(config_, shape.elements());
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    return cpu::workspace_bytes(config_, shape.elements());
  }
  bool finds_non_finite() const noexcept override { return true; }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    return cpu::encode(config_, in.layer.x, in.layer.n, in.layer.key, in.scratch, in.layer.executor,
                       body, result.bytes);
  }

 private:
  TernaryConfig config_;
};

TernaryConfig config_of(const Kind& kind) noexcept { return {std::bit_cast<float>(kind.params)}; }

}  // namespace

const BodyDecoder decoders::ternary = kEveryEntryDecoder<config_of, spec_of>;

std::shared_ptr<const BodyEncoder> make_terngrad(SpecArgs& args) {
  TernaryConfig config;
  const std::string clip = args.text("clip").value_or("none");
  if (clip != "none") {
    if (clip.find_first_of("0123456789") == std::string::npos)
      args.fail("clip",
                "clip=" + clip + ": expected none, or a number of standard deviations such as 2.5");
    config.clip = static_cast<float>(args.number("clip", kMinClip, kMaxClip));
  }
  return std::make_shared<TernGrad>(config);
}

}  // namespace atomo::codec
