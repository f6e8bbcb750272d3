// SPDX-License-Identifier: Apache-2.0
/// topk:chunk=: the k largest magnitudes of each chunk, their places coded near their entropy, their
/// values in a few bits. FORMAT.md ("chunked top-k") has the body.

#include <algorithm>
#include <limits>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "cpu/chunk_topk.hpp"

namespace atomo::codec {
namespace {

const std::vector<std::string> kChunks = {"64", "128", "256", "512", "1024", "2048", "4096"};
const std::vector<std::string> kValues = {"sign", "2", "4", "8", "f16", "f32"};

std::string spec_of(const ChunkConfig& config) {
  return "topk:chunk=" + std::to_string(config.chunk) + ",k=" + std::to_string(config.keep) +
         ",values=" + kValues[static_cast<std::size_t>(config.values)];
}

class ChunkTopk final : public BodyEncoder {
 public:
  explicit ChunkTopk(ChunkConfig config) : config_(config) {}

  std::string to_string() const override { return spec_of(config_); }
  Traits traits() const override {
    Traits t;
    t.cuda = true;
    t.bias_bound = std::numeric_limits<double>::infinity();
    t.omega = 1;
    // A chunk of L entries keeps at least L k / chunk of them, so that share of the energy.
    if (config_.values == ChunkValues::f32)
      t.contraction = static_cast<double>(config_.keep) / config_.chunk;
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::chunk_topk, dtype, format::chunk_params(config_), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return cpu::max_encoded_bytes(config_, shape.elements());
  }
  bool finds_non_finite() const noexcept override { return true; }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    return cpu::encode(config_, in.layer.x, in.layer.n, in.layer.executor, body, result.bytes);
  }

 private:
  using ChunkValues = format::ChunkValues;
  ChunkConfig config_;
};

ChunkConfig config_of(const Kind& kind) noexcept { return format::chunk_config(kind.params); }

}  // namespace

const BodyDecoder decoders::chunk_topk = {
    [](const Kind& kind) { return valid_kind(kind) ? spec_of(config_of(kind)) : std::string(); },
    [](const Kind& kind) noexcept {
      return cpu::max_encoded_bytes(config_of(kind), kind.shape.elements());
    },
    [](const Kind& kind) noexcept {
      return cpu::decode_workspace_bytes(config_of(kind), kind.shape.elements());
    },
    [](const LayerOutput& out) noexcept {
      cpu::decode(config_of(*out.kind), out.bodies, out.add, out.alpha, out.y, out.n, out.workspace,
                  out.executor);
    },
    count_no_atoms};

std::shared_ptr<const BodyEncoder> make_chunk_topk(SpecArgs& args) {
  ChunkConfig config;
  config.chunk = ChunkConfig::kMinChunk << args.choice("chunk", kChunks);
  config.keep = static_cast<std::uint32_t>(args.integer("k", 1, config.chunk));
  config.values = static_cast<format::ChunkValues>(args.choice("values", kValues, 5));
  return std::make_shared<ChunkTopk>(config);
}

}  // namespace atomo::codec
