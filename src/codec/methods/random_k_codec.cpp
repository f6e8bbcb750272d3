// SPDX-License-Identifier: Apache-2.0
/// randomk: k entries drawn without replacement with a shared seed, scaled by n/k. FORMAT.md
/// ("random-k") has the body and the positions.

#include "cpu/random_k.hpp"

#include "codec/methods/operation_method.hpp"

namespace atomo::codec {
namespace {

struct Format {
  using Config = RandomKConfig;
  static constexpr MethodId kId = MethodId::random_k;
  static constexpr const char* kName = "randomk";

  static std::uint64_t keep_in(ConstBytes body, std::size_t n) noexcept {
    const std::size_t keep = body.size() / 4;
    return keep <= n ? keep : 0;
  }
  static std::size_t workspace_bytes(const Config&, std::size_t) noexcept { return 0; }
  static std::size_t decode_workspace_bytes(std::size_t) noexcept { return 0; }
  static void decode(const Config& config, const LayerOutput& out) noexcept {
    if (out.add) return cpu::decode_add(config, out.bodies, out.alpha, out.y, out.n, out.executor);
    LayerBody& body = out.bodies.front();
    body.status = cpu::decode(config, body.bytes, out.y, out.n, body.key, out.executor);
  }
};

class RandomK final : public KeepMethod<Format> {
 public:
  using KeepMethod::KeepMethod;

  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.unbiased = true;
    // n/k and the product with it round by 2^-24 each; the draws add less than 2^-47: of U at most
    // 2^-48, of the entries 2^-52 (math/subset_sampling.hpp).
    t.bias_bound = 0x1p-22;
    // omega = n/k - 1: every entry is kept with probability k/n. k is at least 2/3 of F n (rounded
    // to nearest, at least 1).
    if (keep_.fraction) t.omega = 1.5 / keep_.value - 1;
    t.linear = true;
    t.fixed_size = true;
    return t;
  }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    return cpu::encode(config(*in.layer.shape), in.layer.x, in.layer.n, in.layer.key,
                       in.layer.executor, body, result.bytes);
  }
};

}  // namespace

const BodyDecoder decoders::random_k = kKeepDecoder<Format>;

std::shared_ptr<const BodyEncoder> make_random_k(SpecArgs& args) {
  return std::make_shared<RandomK>(read_keep(args));
}

}  // namespace atomo::codec
