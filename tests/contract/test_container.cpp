// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "format/container_head.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

const Shape kShape{4, 40};

test::Message sample(const char* spec = "identity") {
  return test::encode(
      Codec::parse(spec), test::heavy_tailed(160, 1, 40), kShape,
      {.seed = 0x0123456789abcdef, .step = 77, .tensor = 5, .worker = 3, .channel = 9});
}

TEST(Container, HeaderIsLaidOutAsTheFormatSays) {
  const auto m = sample();
  ASSERT_EQ(m.status, Status::ok);
  const std::vector<std::pair<std::size_t, std::vector<int>>> fields{
      {0, {'A', 'T', 'M', 'O', 2, 0, 0, 0}},
      {8, {0xD4, 2, 0, 0, 0, 0, 0, 0}},  // 84 bytes of head, 640 of body
      {16, {0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01}},
      {24, {77, 0, 0, 0, 5, 0, 3, 0, 9, 0, 1, 0, 1, 0, 0, 0}},
      {64, {0, 0, 0, 0x80, 2, 0, 0, 0}},  // row: kind 0, flags 0, 640 bytes
      {72,
       {0, 0, 0, 0, 0, 0, 2, 4, 40, 0, 0,
        0}}};  // kind: identity, f32, params 0, rank 2, 4, 40; padding
  for (const auto& [at, bytes] : fields) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_EQ(static_cast<int>(m.bytes[at + i]), bytes[i]) << "byte " << at + i;
    }
  }
}

TEST(Container, InspectSaysWhatWasWritten) {
  const auto m = sample();
  ContainerInfo info;
  ASSERT_EQ(inspect(m.bytes, info, true), Status::ok);
  EXPECT_EQ(info.key, (Key{0x0123456789abcdef, 77, 5, 3, 9}));
  EXPECT_EQ(info.bytes, m.bytes.size());
  ASSERT_EQ(info.layers.size(), 1u);
  EXPECT_EQ(info.layers[0].shape, kShape);
  EXPECT_EQ(info.layers[0].codec, "identity:dtype=f32");
  EXPECT_EQ(info.elements(), 160u);
}

TEST(Container, TrailingBytesAreFineInTheLibraryAndRefusedWhenExact) {
  auto m = sample();
  m.bytes.resize(m.bytes.size() + 13);
  ContainerInfo info;
  EXPECT_EQ(inspect(m.bytes, info), Status::ok);
  EXPECT_EQ(inspect(m.bytes, info, true), Status::corrupt);
  EXPECT_EQ(test::decode(Codec::parse("identity"), m.bytes, kShape).status, Status::ok);
}

TEST(Container, RefusalsSayWhy) {
  const Codec codec = Codec::parse("identity");
  const auto m = sample();
  EXPECT_EQ(test::decode(codec, {}, kShape).status, Status::truncated);
  EXPECT_EQ(test::decode(codec, ConstBytes(m.bytes).first(100), kShape).status, Status::truncated);
  EXPECT_EQ(test::decode(codec, m.bytes, {40, 4}).status, Status::shape_mismatch);
  EXPECT_EQ(test::decode(Codec::parse("identity:dtype=f16"), m.bytes, kShape).status,
            Status::codec_mismatch);
  auto changed = m.bytes;
  changed[0] = std::byte{'Z'};
  EXPECT_EQ(test::decode(codec, changed, kShape).status, Status::bad_magic);
  changed = m.bytes;
  changed[4] = std::byte{9};
  EXPECT_EQ(test::decode(codec, changed, kShape).status, Status::bad_version);
  changed = m.bytes;
  changed.back() ^= std::byte{1};
  EXPECT_EQ(test::decode(codec, changed, kShape).status, Status::bad_checksum);
}

TEST(Container, EveryBitFlipIsRefused) {
  const Codec codec = Codec::parse("identity");
  const auto m = test::encode(codec, {1, 2, 3}, {3});
  for (std::size_t bit = 0; bit < 8 * m.bytes.size(); ++bit) {
    auto changed = m.bytes;
    changed[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const Status s = test::decode(codec, changed, {3}).status;
    // The minor version is free to change, but the head's checksum covers it.
    EXPECT_TRUE(failed(s)) << "bit " << bit;
  }
}

/// Bodies of several checksum blocks: a change anywhere is seen, and so are two blocks that change
/// places.
TEST(Container, ChecksumCoversLongBodiesAndTheirOrder) {
  const Codec codec = Codec::parse("identity");
  const Shape shape{4096};
  const auto m = test::encode(codec, test::heavy_tailed(4096, 3), shape);
  const std::size_t head = m.bytes.size() - 4 * 4096;
  for (const std::size_t at : {head, head + 4095, head + 4096, m.bytes.size() - 1}) {
    auto changed = m.bytes;
    changed[at] ^= std::byte{0x10};
    EXPECT_EQ(test::decode(codec, changed, shape).status, Status::bad_checksum);
  }
  auto swapped = m.bytes;
  std::swap_ranges(swapped.begin() + static_cast<long>(head),
                   swapped.begin() + static_cast<long>(head) + 4096,
                   swapped.begin() + static_cast<long>(head) + 4096);
  EXPECT_EQ(test::decode(codec, swapped, shape).status, Status::bad_checksum);
}

/// A lossless stage can shrink a message a thousand times; it is still inspected and decoded.
TEST(Container, VeryCompressibleMessagesAreInspected) {
  const Shape shape{1000, 1000};
  const std::vector<float> x(shape.elements(), 1.0f);
  for (const char* spec : {"identity+blosc:codec=zstd,level=9", "qsgd:bits=4+blosc:codec=zstd"}) {
    const Codec codec = Codec::parse(spec);
    const auto m = test::encode(codec, x, shape);
    ASSERT_EQ(m.status, Status::ok);
    ASSERT_LT(m.bytes.size(), std::size_t{2000}) << spec;
    ContainerInfo info;
    EXPECT_EQ(inspect(m.bytes, info, true), Status::ok) << spec;
    const auto d = test::decode(codec, m.bytes, shape);
    EXPECT_EQ(d.status, Status::ok) << spec;
    EXPECT_TRUE(d.values == x) << spec;
  }
}

TEST(Container, JoinRefusesPartsThatDoNotBelongTogether) {
  const Codec codec = Codec::parse("identity");
  const auto part = [&](std::uint32_t step, std::uint16_t tensor) {
    return test::encode(codec, {1, 2}, {2}, {.seed = 1, .step = step, .tensor = tensor}).bytes;
  };
  const auto a = part(1, 0), b = part(1, 1), gap = part(1, 2), other = part(2, 1);
  std::vector<std::byte> out(1000);
  std::uint64_t bytes = 0;
  const Payload payload{out.data(), out.size(), &bytes};
  const auto joined = [&](const std::vector<std::byte>& x, const std::vector<std::byte>& y) {
    const ConstBytes parts[] = {x, y};
    return join(parts, payload);
  };
  EXPECT_EQ(joined(a, b), Status::ok);
  EXPECT_EQ(joined(a, gap), Status::shape_mismatch);
  EXPECT_EQ(joined(a, other), Status::shape_mismatch);
  EXPECT_EQ(joined(b, a), Status::shape_mismatch);
  const ConstBytes parts[] = {a, b};
  EXPECT_EQ(join(parts, {out.data(), 100, &bytes}), Status::buffer_too_small);
}

TEST(Container, JoinRefusesPartsOfDifferentPrices) {
  const std::vector<float> x = test::heavy_tailed(400, 1, 400);
  const auto part = [&](std::size_t layer, float price) {
    Compressor c({{"a", {400}}, {"b", {400}}}, Policy(Codec::parse("atomo:atoms=blocks,bits=1")));
    std::vector<std::byte> bytes(c.max_encoded_bytes(layer)),
        workspace(c.encode_workspace_bytes(layer));
    std::uint64_t written = 0;
    EXPECT_EQ(c.begin_step({}, {.atoms = price}), Status::ok);
    EXPECT_EQ(c.encode_layer(layer, {x.data(), DType::f32, {400}},
                             {bytes.data(), bytes.size(), &written}, {.workspace = workspace}),
              Status::ok);
    bytes.resize(written);
    return bytes;
  };
  std::vector<std::byte> out(10000);
  std::uint64_t bytes = 0;
  const Payload payload{out.data(), out.size(), &bytes};
  const auto a = part(0, 0.5f), b = part(1, 0.5f), dearer = part(1, 1);
  const ConstBytes alike[] = {a, b}, different[] = {a, dearer};
  EXPECT_EQ(join(alike, payload), Status::ok);
  EXPECT_EQ(join(different, payload), Status::price_mismatch);
}

/// Thousands of kinds, used forth and back: a walk through the layers takes no longer for it.
TEST(Container, ManyKindsInAnyOrder) {
  std::vector<LayerSpec> specs;
  std::vector<ConstTensorView> views;
  const std::int64_t kinds = 3000;
  for (std::int64_t i = 0; i < 2 * kinds; ++i) {
    const std::int64_t n = i < kinds ? i + 1 : (i % 2 == 0 ? i - kinds + 1 : 2 * kinds - i);
    specs.push_back({"layer" + std::to_string(i), {n, 0}});
    views.push_back({nullptr, DType::f32, specs.back().shape});
  }
  Compressor c(specs, Policy(Codec::parse("identity")));
  std::vector<std::byte> bytes(c.max_encoded_bytes()), workspace(test::workspace_bytes(c));
  std::uint64_t used = 0;
  ASSERT_EQ(c.encode(views, {}, {bytes.data(), bytes.size(), &used}, {.workspace = workspace}),
            Status::ok);
  ContainerInfo info;
  ASSERT_EQ(inspect(ConstBytes(bytes).first(used), info, true), Status::ok);
  ASSERT_EQ(info.layers.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) ASSERT_EQ(info.layers[i].shape, specs[i].shape);
}

TEST(Container, MaxRankZeroRankAndEmptyTensors) {
  for (const auto& spec : test::all_specs()) {
    const Codec codec = Codec::parse(spec);
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{0}, Shape{3, 0, 2},
                               Shape{1, 2, 1, 2, 1, 2, 1, 2}, Shape{2, 1, 3, 1, 2, 1, 1, 40}}) {
      const auto x = test::heavy_tailed(shape.elements(), 4, 7);
      const auto m = test::encode(codec, x, shape, {.seed = 3});
      ASSERT_FALSE(failed(m.status))
          << spec << " " << shape.to_string() << ": " << describe(m.status);
      ASSERT_LE(m.bytes.size(), codec.max_encoded_bytes(shape)) << spec << shape.to_string();
      const auto d = test::decode(codec, m.bytes, shape);
      EXPECT_EQ(d.status, Status::ok) << spec << " " << shape.to_string();
      ContainerInfo info;
      EXPECT_EQ(inspect(m.bytes, info, true), Status::ok) << spec << " " << shape.to_string();
    }
  }
}

}  // namespace
}  // namespace atomo
