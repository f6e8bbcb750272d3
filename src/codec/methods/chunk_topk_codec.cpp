// SPDX-License-Identifier: Apache-2.0
/// topk:chunk=: the k largest magnitudes of each chunk, their places coded near their entropy, their
/// values in a few bits. FORMAT.md ("chunked top-k") has the body. With select=drawn entries are drawn in
/// place of the largest, without bias.

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "cpu/chunk_topk.hpp"
#include "cpu/tile_sequence.hpp"

namespace atomo::codec {
namespace {

using format::ChunkLayout;
using format::ChunkValues;

const std::vector<std::string> kChunks = {"64", "128", "256", "512", "1024", "2048", "4096"};
const std::vector<std::string> kValues = {"sign", "2", "4", "8", "f16", "f32"};
const std::vector<std::string> kSelections = {"largest", "drawn"};

std::string spec_of(const ChunkConfig& config) {
  std::string spec = "topk:chunk=" + std::to_string(config.chunk) +
                     ",k=" + std::to_string(config.keep) +
                     ",values=" + kValues[static_cast<std::size_t>(config.values)];
  if (config.layout != ChunkLayout::entries) {
    spec += config.layout == ChunkLayout::dct ? ",dct=" : ",tile=";
    spec += std::to_string(config.side);
  }
  return config.draws ? spec + ",select=drawn" : spec;
}

math::Tiles tiles_of(const ChunkConfig& config, const Shape& shape) noexcept {
  const auto dim0 = static_cast<std::uint64_t>(shape.rank() > 0 ? shape[0] : 1);
  return math::Tiles::of(shape.rank(), dim0, shape.elements(), config.side);
}

/// Whether the sequence is another than the tensor.
bool has_tiles(const ChunkConfig& config, const Shape& shape) noexcept {
  return config.layout != ChunkLayout::entries && shape.elements() > 0 &&
         tiles_of(config, shape).entries() > 1;
}

/// E||decode - g||^2 <= omega ||g||^2 where entries are drawn. An entry x between two levels a and b errs by
/// (b - x)(x - a) <= b x. Of those that may be dropped b is the scale, about the sum of a chunk's
/// magnitudes over k, of the fullest chunk of a group where all share it; of the others, at most the
/// group's slots, it is the largest.
double drawn_omega(const ChunkConfig& config) {
  const double per_slot = static_cast<double>(config.chunk) / config.keep;
  if (config.values >= ChunkValues::f16) return per_slot * (1 + 0x1p-6);
  const double chunks = format::ChunkBody(config, 1).group_chunks;
  const double slots = config.values == ChunkValues::sign ? config.chunk : config.keep;
  return (per_slot * std::sqrt(chunks) + std::sqrt(slots * chunks)) * (1 + 0x1p-5);
}

class ChunkTopk final : public BodyEncoder {
 public:
  explicit ChunkTopk(ChunkConfig config) : config_(config) {}

  std::string to_string() const override { return spec_of(config_); }
  Traits traits() const override {
    Traits t;
    t.cuda = true;
    if (config_.draws) {
      t.unbiased = t.averages_over_workers = true;
      // Three roundings of a share, and half a unit of it. A transform rounds beside that, by 2^-20 of a
      // tile's norm at most.
      t.bias_bound = config_.layout == ChunkLayout::dct ? 0x1p-16 : 0x1p-22;
      t.omega = drawn_omega(config_);
      // What is drawn arrives at the scale at which the shares of a chunk come to its k slots, a bf16. A
      // transform moves magnitudes.
      if (config_.layout != ChunkLayout::dct)
        t.largest = std::max(1.0, static_cast<double>(config_.chunk) / config_.keep) * (1 + 0x1p-6);
      return t;
    }
    t.bias_bound = std::numeric_limits<double>::infinity();
    // Bins' means and what is dropped leave no more than all of the energy; a transform rounds.
    t.omega = config_.layout == ChunkLayout::dct ? 1 + 0x1p-16 : 1;
    // A chunk of L entries keeps at least L k / chunk of them, so that share of the energy.
    if (config_.values == ChunkValues::f32 && config_.layout != ChunkLayout::dct)
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
    const LayerInput& layer = in.layer;
    const auto write = [&](const cpu::TileReader* tiles) {
      return cpu::encode(config_, tiles, layer.x, layer.n, layer.key, layer.executor, body,
                         result.bytes);
    };
    if (!has_tiles(config_, *layer.shape)) return write(nullptr);
    const cpu::TileReader tiles(tiles_of(config_, *layer.shape), config_.layout == ChunkLayout::dct,
                                layer.x);
    return write(&tiles);
  }

 private:
  ChunkConfig config_;
};

ChunkConfig config_of(const Kind& kind) noexcept { return format::chunk_config(kind.params); }

}  // namespace

const BodyDecoder decoders::chunk_topk = {
    [](const Kind& kind) { return valid_kind(kind) ? spec_of(config_of(kind)) : std::string(); },
    [](const Kind& kind) noexcept {
      return cpu::max_encoded_bytes(config_of(kind), kind.shape.elements());
    },
    [](const Kind&) noexcept { return std::size_t{0}; },
    [](const LayerOutput& out) noexcept {
      const ChunkConfig config = config_of(*out.kind);
      if (!has_tiles(config, out.kind->shape))
        return cpu::decode(config, out.bodies, out.add, out.alpha, out.y, out.n, out.executor);
      const cpu::TileWriter tiles(tiles_of(config, out.kind->shape),
                                  config.layout == ChunkLayout::dct, out.add, out.alpha, out.y);
      cpu::decode(config, out.bodies, tiles, out.executor);
    },
    count_no_atoms};

std::shared_ptr<const BodyEncoder> make_chunk_topk(SpecArgs& args) {
  ChunkConfig config;
  config.chunk = ChunkConfig::kMinChunk << args.choice("chunk", kChunks);
  config.keep = static_cast<std::uint32_t>(args.integer("k", 1, config.chunk));
  config.values = static_cast<format::ChunkValues>(args.choice("values", kValues, 5));
  config.draws = args.choice("select", kSelections, 0) == 1;
  if (args.has("tile") && args.has("dct"))
    args.fail("tile", "tile= and dct= say the same of tiles: give one of them");
  for (const auto& [key, layout] :
       {std::pair{"tile", ChunkLayout::tiles}, {"dct", ChunkLayout::dct}}) {
    if (!args.has(key)) continue;
    config.layout = layout;
    config.side =
        static_cast<std::uint32_t>(args.integer(key, ChunkConfig::kMinSide, ChunkConfig::kMaxSide));
  }
  return std::make_shared<ChunkTopk>(config);
}

std::shared_ptr<const BodyEncoder> make_sparseloco(SpecArgs&) {
  return std::make_shared<ChunkTopk>(
      ChunkConfig{4096, 64, ChunkValues::two, ChunkLayout::tiles, 64});
}

std::shared_ptr<const BodyEncoder> make_demo(SpecArgs&) {
  return std::make_shared<ChunkTopk>(ChunkConfig{4096, 32, ChunkValues::f32, ChunkLayout::dct, 64});
}

std::shared_ptr<const BodyEncoder> make_psyche(SpecArgs&) {
  return std::make_shared<ChunkTopk>(ChunkConfig{4096, 4, ChunkValues::sign, ChunkLayout::dct, 64});
}

}  // namespace atomo::codec
