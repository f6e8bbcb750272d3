// SPDX-License-Identifier: Apache-2.0
/// The work of decoders is bounded by the bytes they receive and the entries they write: basic
/// blocks are counted, so neither the machine nor its load matters. The library that is linked here
/// was compiled without vectors and calls `__sanitizer_cov_trace_pc` in every block it enters.
#include <gtest/gtest.h>

#include <random>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "cpu/atoms.hpp"
#include "cpu/pairs.hpp"
#include "format/container_head.hpp"
#include "format/factors_body.hpp"
#include "format/kind.hpp"
#include "format/matrix.hpp"
#include "format/pair_body.hpp"
#include "support/support.hpp"

namespace {
std::uint64_t blocks_entered = 0;
}

extern "C" void __sanitizer_cov_trace_pc();
extern "C" void __sanitizer_cov_trace_pc() { ++blocks_entered; }

namespace atomo {

using namespace model;
namespace {

using format::Kind;
using format::LayerRecord;
using format::MethodId;
using Buffer = std::vector<std::byte>;

/// Blocks of linear work: of a byte received, of an entry written, and of every call.
constexpr std::uint64_t kBlocksOfByte = 32, kBlocksOfEntry = 32, kBlocksOfCall = 40'000;
/// A row of 8 bytes can make its reader go through 16 kinds of 8 dimensions.
constexpr std::uint64_t kBlocksOfHeadByte = 512;
/// Multiply-adds of singular pairs in a block: 4 rows of 2 columns.
constexpr std::uint64_t kProductsOfBlock = 8;
/// SECURITY.md: of an entry, and of a byte and an entry of the shorter side.
constexpr std::uint64_t kProductsOfEntry = 256, kProductsOfByte = 16;
/// SECURITY.md: those of a tile that is transformed, at most two products with a basis of 64 x 64. Without
/// vectors each one is a block.
constexpr std::uint64_t kTransformsOfEntry = 128;

/// Blocks that decoding a layer of this kind, of so many bytes, may enter.
std::uint64_t most_blocks(const Kind& kind, std::uint64_t received) {
  const std::uint64_t n = kind.shape.elements();
  std::uint64_t linear = kBlocksOfCall + kBlocksOfByte * received + kBlocksOfEntry * n;
  if (kind.method == MethodId::chunk_topk) linear += kTransformsOfEntry * n;
  if (!format::is_matrix(kind.shape)) return linear;
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

/// The smallest message that has this body: behind the lossless stage where it shrinks, whether the
/// frame pays for it or not.
Buffer packed_message(const Kind& kind, std::uint8_t flags, const Buffer& body) {
  const auto stage = codec::parse_spec("identity+blosc:codec=zstd,level=9");
  Buffer frame(body.size());
  frame.resize(codec::pack_body(*stage.lossless, {}, body, frame));
  if (frame.empty()) return message_of(kind, flags, body);
  return message_of(kind, flags | LayerRecord::kLossless, frame);
}

struct Work {
  Status status = Status::ok;
  std::uint64_t blocks = 0;
};

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

Work expect_bounded(const Kind& kind, const Buffer& message) {
  const Work work = decode_counted(message, kind.shape);
  EXPECT_LE(work.blocks, most_blocks(kind, message.size()))
      << codec::find_decoder(kind.method)->describe(kind) << ", " << kind.shape.to_string() << ", "
      << message.size() << " bytes: " << describe(work.status);
  return work;
}

Buffer repeated(std::size_t bytes, const Buffer& pattern) {
  Buffer all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = pattern[i % pattern.size()];
  return all;
}

/// The body proper of a message of one layer, without its own price.
Buffer body_of(const Buffer& message, std::uint8_t& flags) {
  format::Head head;
  EXPECT_EQ(format::Head::parse(message, true, head), Status::ok);
  format::LayerCursor layer(head);
  Status status = Status::ok;
  EXPECT_TRUE(layer.next(status));
  flags = layer.row.flags & static_cast<std::uint8_t>(~LayerRecord::kOwnPrice);
  const std::size_t skip = flags == layer.row.flags ? 0 : format::kPriceBytes;
  return {layer.body.begin() + static_cast<std::ptrdiff_t>(skip), layer.body.end()};
}

TEST(DecodeWork, IsCountedAndGrowsWithTheEntries) {
  const auto blocks = [](std::int64_t n) {
    const Kind kind{MethodId::natural, DType::f32, 0, {n}};
    const std::size_t bytes = codec::find_decoder(kind.method)->max_body_bytes(kind);
    const Work work = expect_bounded(kind, message_of(kind, 0, Buffer(bytes)));
    EXPECT_EQ(work.status, Status::ok);
    return work.blocks;
  };
  EXPECT_GT(blocks(3000), 300u);
  EXPECT_GT(blocks(30000), 5 * blocks(3000));
}

class DecodeWork : public testing::TestWithParam<std::string> {
 protected:
  /// A front of a message that stands, then a few bytes again and again, up to any size that the
  /// kind allows.
  [[nodiscard]] Buffer hostile_body(const Buffer& good, std::size_t most) {
    Buffer pattern(1 + draw_() % 4);
    for (auto& b : pattern) b = static_cast<std::byte>(draw_() % 3 == 0 ? draw_() : 0);
    const std::size_t sizes[] = {good.size(), most, 1 + draw_() % most};
    Buffer body = repeated(sizes[draw_() % 3], pattern);
    const std::size_t fronts[] = {0, 4, 8, 16, draw_() % (good.size() + 1)};
    const std::size_t front = std::min({fronts[draw_() % 5], good.size(), body.size()});
    std::copy_n(good.begin(), front, body.begin());
    return body;
  }
  std::mt19937_64 draw_{11};
};

INSTANTIATE_TEST_SUITE_P(Specs, DecodeWork, testing::ValuesIn(test::all_specs()),
                         [](const auto& spec) {
                           std::string name;
                           for (const char c : spec.param)
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name + "_" + std::to_string(spec.index);
                         });

TEST_P(DecodeWork, OfHostileBodiesIsBounded) {
  const Codec codec = Codec::parse(GetParam()).without_lossless();
  std::size_t decoded = 0;
  for (const Shape& shape : {Shape{40'000}, Shape{300, 310}, Shape{2, 16'000}}) {
    const auto x = test::heavy_tailed(shape.elements(), 3, 310);
    const Buffer message = test::encode(codec, x, shape).bytes;
    std::uint8_t flags = 0;
    const Buffer good = body_of(message, flags);
    const Kind kind = codec::Access::stages(codec).body->kind(shape, DType::f32);
    expect_bounded(kind, message);
    const std::size_t most = codec::find_decoder(kind.method)->max_body_bytes(kind);
    for (int trial = 0; trial < 40; ++trial) {
      if (kind.method == MethodId::automatic)
        flags = static_cast<std::uint8_t>(draw_() % 4 << LayerRecord::kFormShift);
      const Work work = expect_bounded(kind, packed_message(kind, flags, hostile_body(good, most)));
      decoded += failed(work.status) ? 0 : 1;
    }
  }
  RecordProperty("decoded", static_cast<int>(decoded));
}

/// Pairs of f32 that pack to nothing: all of them, and the numbers round those that are free.
TEST(DecodeWorkOfPairs, PackedFactorsAreBounded) {
  for (const Shape& shape : {Shape{300, 400}, Shape{768, 768}, Shape{900, 600}}) {
    const Kind kind{MethodId::factors, DType::f32, 0, shape};
    const MatrixShape view = format::matrix_view(shape);
    for (const std::size_t kept : {std::size_t{256}, std::size_t{257}, view.shorter()}) {
      for (const float entry : {0.0f, 1.0f}) {
        Buffer body(format::factors_bytes(view, kept));
        for (std::size_t at = format::kFactorsHeadBytes; at < body.size(); at += 4)
          std::memcpy(body.data() + at, &entry, 4);
        const std::uint32_t head[2] = {static_cast<std::uint32_t>(kept), 0};
        std::memcpy(body.data(), head, sizeof head);
        const Buffer message = packed_message(kind, 0, body);
        ASSERT_LT(message.size(), body.size() / 200);
        const Work work = expect_bounded(kind, message);
        EXPECT_EQ(work.status, kept <= 257 ? Status::ok : Status::corrupt) << shape.to_string();
      }
    }
  }
}

/// Dithered pairs of zeros at every ratio to the price, all certain: a class a step of the ratio.
TEST(DecodeWorkOfPairs, PackedDitheredPairsAreBounded) {
  const Shape shape{600, 640};
  const Kind kind{MethodId::atoms, DType::f32, format::params_of(format::Family::pairs), shape};
  const MatrixShape view = format::matrix_view(shape);
  const auto layer = format::PairLayer::all_of(view);
  std::vector<float> zeros(view.shorter() * view.longer());
  std::vector<double> sigma(view.shorter());
  const SingularPairs pairs{zeros, zeros, sigma};
  Buffer workspace(cpu::encode_workspace_bytes(layer.count) + 64);
  Buffer body(format::max_pairs_body_bytes(layer));
  for (double ratio = 1; ratio < 40'000; ratio *= 1.5) {
    const std::vector<double> amplitudes(view.shorter(), ratio);
    std::size_t bytes = 0;
    const Status status = cpu::encode_pairs(pairs, layer, amplitudes, 1, {.seed = 5}, nullptr, body,
                                            workspace, bytes);
    ASSERT_EQ(status, Status::ok);
    const Buffer proper(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(expect_bounded(kind, message_of(kind, 0, proper)).status, Status::ok);
    expect_bounded(kind, packed_message(kind, 0, proper));
  }
}

/// A head of rank 8 kinds, and rows that go to and fro among them as far as a cursor walks.
TEST(DecodeWorkOfHeads, ManyKindsAreBounded) {
  std::vector<Kind> kinds;
  for (std::int64_t i = 0; i < 1024; ++i)
    kinds.push_back({MethodId::sign, DType::f32, 0, {0, 1 << 20, 1 << 20, 1, 1, 1, 1, i}});
  std::vector<Kind> layers = kinds;
  for (std::size_t i = 0; layers.size() < format::kMaxLayers; ++i)
    layers.push_back(kinds[i % 2 == 0 ? 1023 : 255]);
  const format::HeadLayout layout(layers, {});
  Buffer message(layout.bytes());
  for (std::size_t i = 0; i < layers.size(); ++i)
    format::write_record(message.data(), i, {layout.kind_of(i), 0, 0});
  layout.write_tables(message.data());
  layout.seal(message.data(), {}, 0, 0, message.size());
  ContainerInfo info;
  blocks_entered = 0;
  ASSERT_EQ(inspect(message, info, true), Status::ok);
  EXPECT_LE(blocks_entered, kBlocksOfCall + kBlocksOfHeadByte * message.size());
}

/// Messages are added into halves in one pass each, however many layers they have.
TEST(DecodeWorkOfModels, AddingIntoHalvesReadsAMessageOnce) {
  constexpr std::size_t kElements = 1 << 16;
  for (const std::size_t count : {std::size_t{16}, std::size_t{2048}}) {
    const Shape shape{static_cast<std::int64_t>(kElements / count)};
    std::vector<LayerSpec> layers;
    for (std::size_t i = 0; i < count; ++i)
      layers.push_back({"layer" + std::to_string(i), shape, DType::f16});
    Compressor model(layers, Policy::parse("*=identity:dtype=f16"));
    std::vector<std::uint16_t> values(kElements, 0x3C00);
    std::vector<ConstTensorView> from;
    std::vector<TensorView> to;
    for (std::size_t i = 0; i < count; ++i) {
      from.push_back({&values[i * shape.elements()], DType::f16, shape});
      to.push_back({&values[i * shape.elements()], DType::f16, shape});
    }
    Buffer workspace(test::workspace_bytes(model)), message(model.max_encoded_bytes());
    std::uint64_t bytes = 0;
    const Context context{.workspace = workspace};
    ASSERT_EQ(model.encode(from, {}, {message.data(), message.size(), &bytes}, context),
              Status::ok);
    const ConstBytes messages[] = {ConstBytes(message).first(bytes),
                                   ConstBytes(message).first(bytes)};
    blocks_entered = 0;
    ASSERT_EQ(model.decode_add_all(messages, 1, to, context), Status::ok);
    EXPECT_LE(blocks_entered,
              kBlocksOfCall + 2 * (kBlocksOfByte * bytes + kBlocksOfEntry * kElements));
    RecordProperty("blocks", static_cast<int>(blocks_entered / 1000));
  }
}

}  // namespace
}  // namespace atomo
