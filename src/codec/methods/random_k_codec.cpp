// SPDX-License-Identifier: Apache-2.0
/// randomk: k entries, or blocks of 64, drawn without replacement with a shared seed, scaled by n/k.
/// FORMAT.md ("random-k", "random blocks") has the bodies and the positions.

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

RandomKConfig blocks_of(std::uint64_t keep) noexcept { return {.keep = keep, .blocks = true}; }

/// randomk:block=64: blocks in place of entries, drawn in the same way.
class RandomBlocks final : public BodyEncoder {
 public:
  explicit RandomBlocks(Keep keep) : keep_(keep) {}

  std::string to_string() const override {
    return "randomk:keep=" + keep_.to_string() + ",block=64";
  }
  Traits traits() const override {
    Traits t;
    t.cuda = t.unbiased = t.linear = t.fixed_size = true;
    t.bias_bound = 0x1p-22;  // as of single entries
    if (keep_.fraction) t.omega = 1.5 / keep_.value - 1;
    return t;
  }
  void check_shape(const Shape& shape) const override {
    if (blocks_of(1).units(shape.elements()) >= kManyEntries)
      throw Error("randomk:block=64 takes tensors of less than 2^38 entries");
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::random_blocks, dtype, static_cast<std::uint32_t>(config(shape).keep), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return cpu::max_encoded_bytes(config(shape), shape.elements());
  }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    return cpu::encode(config(*in.layer.shape), in.layer.x, in.layer.n, in.layer.key,
                       in.layer.executor, body, result.bytes);
  }

 private:
  /// A share is one of blocks; a count of entries is rounded up to blocks.
  [[nodiscard]] RandomKConfig config(const Shape& shape) const noexcept {
    const std::uint64_t n = shape.elements(), blocks = blocks_of(1).units(n);
    if (n == 0) return blocks_of(0);
    return blocks_of(keep_.fraction ? keep_.of(blocks) : blocks_of(1).units(keep_.of(n)));
  }
  Keep keep_;
};

std::string describe_blocks(const Kind& kind) {
  if (!valid_kind(kind)) return "";
  const std::uint64_t entries = std::uint64_t{kind.params} * RandomKConfig::kBlock;
  return "randomk:keep=" + std::to_string(entries) + ",block=64";
}
std::size_t max_blocks_bytes(const Kind& kind) noexcept {
  return cpu::max_encoded_bytes(blocks_of(kind.params), kind.shape.elements());
}
void decode_blocks(const LayerOutput& out) noexcept {
  Format::decode(blocks_of(out.kind->params), out);
}
Status count_blocks(ConstBytes, const Kind& kind, std::uint8_t, std::uint64_t& atoms,
                    std::uint64_t& kept) noexcept {
  atoms = blocks_of(1).units(kind.shape.elements());
  kept = kind.params;
  return Status::ok;
}

}  // namespace

const BodyDecoder decoders::random_blocks{describe_blocks, max_blocks_bytes,
                                          [](const Kind&) noexcept { return std::size_t{0}; },
                                          decode_blocks, count_blocks};
const BodyDecoder decoders::random_k = kKeepDecoder<Format>;

std::shared_ptr<const BodyEncoder> make_random_k(SpecArgs& args) {
  const Keep keep = read_keep(args);
  if (args.choice("block", {"1", "64"}, 0) == 0) return std::make_shared<RandomK>(keep);
  return std::make_shared<RandomBlocks>(keep);
}

}  // namespace atomo::codec
