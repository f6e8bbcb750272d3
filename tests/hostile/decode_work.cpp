// SPDX-License-Identifier: Apache-2.0
#include "hostile/decode_work.hpp"

namespace atomo::test {

std::uint64_t blocks_entered = 0;

}  // namespace atomo::test

extern "C" void __sanitizer_cov_trace_pc();
extern "C" void __sanitizer_cov_trace_pc() { ++atomo::test::blocks_entered; }

namespace atomo::test {
namespace {

using Buffer = std::vector<std::byte>;

/// Whether singular pairs of this kind are multiplied out.
bool multiplies(const Kind& kind) {
  if (!format::is_matrix(kind.shape)) return false;
  if (kind.method == MethodId::factors) return true;
  if (kind.method == MethodId::automatic) return kind.params != 0;
  if (kind.method != MethodId::atoms) return false;
  const format::Family family = format::family_of(kind.params);
  return family == format::Family::pairs || family == format::Family::sketch;
}

}  // namespace

std::uint64_t most_blocks(const Kind& kind, std::uint64_t received) {
  const std::uint64_t n = kind.shape.elements();
  std::uint64_t linear = kBlocksOfCall + kBlocksOfByte * received + kBlocksOfEntry * n;
  if (kind.method == MethodId::chunk_topk) linear += kTransformsOfEntry * kBlocksOfTransform * n;
  if (!multiplies(kind)) return linear;
  const std::uint64_t shorter = format::matrix_view(kind.shape).shorter();
  return linear + (kProductsOfEntry * n + kProductsOfByte * shorter * received) / kProductsOfBlock;
}

Buffer message_of(const Kind& kind, std::uint8_t flags, const Buffer& body) {
  const std::size_t head = format::one_layer_head_bytes(kind);
  Buffer message(head + format::padded(body.size()));
  std::copy(body.begin(), body.end(), message.begin() + static_cast<std::ptrdiff_t>(head));
  format::write_one_layer_head(message.data(), kind, {0, flags, body.size()}, {.seed = 5}, 1, 1);
  return message;
}

Buffer packed_message(const Kind& kind, std::uint8_t flags, const Buffer& body) {
  const auto stage = codec::parse_spec("identity+blosc:codec=zstd,level=9");
  Buffer frame(body.size());
  frame.resize(codec::pack_body(*stage.lossless, {}, body, frame));
  if (frame.empty()) return message_of(kind, flags, body);
  return message_of(kind, flags | LayerRecord::kLossless, frame);
}

Work decode_counted(const Buffer& message, const Shape& shape) {
  std::vector<float> y(shape.elements());
  Buffer workspace(decode_workspace_bytes(shape));
  const TensorView view{y.data(), DType::f32, shape};
  Work work;
  blocks_entered = 0;
  work.status = decode(message, {&view, 1}, {.workspace = workspace});
  work.blocks = blocks_entered;
  return work;
}

}  // namespace atomo::test
