// SPDX-License-Identifier: Apache-2.0
/// The work of decoders is bounded by the bytes they receive and the entries they write: basic
/// blocks are counted, so neither the machine nor its load matters. test_decode_work_search.cpp looks
/// for the messages that cost most.
#include <gtest/gtest.h>

#include <random>

#include "cpu/atoms.hpp"
#include "cpu/pairs.hpp"
#include "hostile/decode_work.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

using test::blocks_entered;
using test::decode_counted;
using test::kBlocksOfByte;
using test::kBlocksOfCall;
using test::kBlocksOfEntry;
using test::kBlocksOfHeadByte;
using test::Kind;
using test::LayerRecord;
using test::message_of;
using test::MethodId;
using test::packed_message;
using test::Work;
using Buffer = std::vector<std::byte>;

Work expect_bounded(const Kind& kind, const Buffer& message) {
  const Work work = decode_counted(message, kind.shape);
  EXPECT_LE(work.blocks, test::most_blocks(kind, message.size()))
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
  const int trials = test::in_brief() ? 10 : 40;
  std::size_t decoded = 0;
  for (const Shape& shape : {Shape{40'000}, Shape{300, 310}, Shape{305, 295}, Shape{2, 16'000}}) {
    const auto x = test::heavy_tailed(shape.elements(), 3, 310);
    const Buffer message = test::encode(codec, x, shape).bytes;
    std::uint8_t flags = 0;
    const Buffer good = body_of(message, flags);
    const Kind kind = codec::Access::stages(codec).body->kind(shape, DType::f32);
    expect_bounded(kind, message);
    const std::size_t most = codec::find_decoder(kind.method)->max_body_bytes(kind);
    for (int trial = 0; trial < trials; ++trial) {
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
  const double step = test::in_brief() ? 6 : 1.5;
  for (double ratio = 1; ratio < 40'000; ratio *= step) {
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
