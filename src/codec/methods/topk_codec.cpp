// SPDX-License-Identifier: Apache-2.0
/// topk: the k entries of largest magnitude, ties by the lowest index. FORMAT.md ("top-k") has the
/// body.

#include <limits>

#include "codec/methods/operation_method.hpp"
#include "coding/marks.hpp"
#include "cpu/topk.hpp"

namespace atomo::codec {
namespace {

struct Format {
  using Config = TopkConfig;
  static constexpr MethodId kId = MethodId::topk;
  static constexpr const char* kName = "topk";

  static std::uint64_t keep_in(ConstBytes body, std::size_t n) noexcept {
    MarksReader reader;
    return reader.open(body, n) ? reader.kept() : 0;
  }
  static std::size_t workspace_bytes(const Config& config, std::size_t n) noexcept {
    return cpu::workspace_bytes(config, n);
  }
  static std::size_t decode_workspace_bytes(std::size_t n) noexcept {
    return cpu::decode_workspace_bytes(Config{}, n);
  }
  static void decode(const Config& config, const LayerOutput& out) noexcept {
    if (out.add) {
      return cpu::decode_add(config, out.bodies, out.alpha, out.y, out.n, out.workspace,
                             out.executor);
    }
    LayerBody& body = out.bodies.front();
    body.status = cpu::decode(config, body.bytes, out.y, out.n, out.workspace, out.executor);
  }
};

class Topk final : public KeepMethod<Format> {
 public:
  using KeepMethod::KeepMethod;

  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.bias_bound = std::numeric_limits<double>::infinity();
    t.omega = 1;
    // The kept share of the energy is at least k/n. k is F n rounded to nearest and at least 1, so
    // at least 2/3 of F n.
    if (keep_.fraction) t.contraction = keep_.value * 2 / 3;
    return t;
  }
  bool finds_non_finite() const noexcept override { return true; }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    return cpu::encode(config(*in.layer.shape), in.layer.x, in.layer.n, in.scratch,
                       in.layer.executor, body, result.bytes);
  }
};

}  // namespace

const BodyDecoder decoders::topk = kKeepDecoder<Format>;

std::shared_ptr<const BodyEncoder> make_topk(SpecArgs& args) {
  if (args.has("chunk") || args.has("k")) return make_chunk_topk(args);
  return std::make_shared<Topk>(read_keep(args));
}

}  // namespace atomo::codec
