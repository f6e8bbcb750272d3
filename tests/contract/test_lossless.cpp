// SPDX-License-Identifier: Apache-2.0
/// Lossless stages put behind the bodies of a finished message, and undone: the same bytes as
/// encoding with the stage, and as encoding without it.
#include <gtest/gtest.h>

#include "support/device_model.hpp"
#include "support/mutated_messages.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

using Message = std::vector<std::byte>;

const std::vector<LayerSpec>& layers() {
  static const std::vector<LayerSpec> all{
      {"a.weight", {90, 41}}, {"a.bias", {41}},
      {"none", {0, 3}},       {"b.weight", {16, 300}, DType::bf16},
      {"b.bias", {1}},        {"flat.weight", {60, 60}}};
  return all;
}
const char* const kPolicies[] = {
    "* = topk:keep=0.05+blosc:codec=zstd",
    "* = qsgd:bits=2+blosc:codec=lz4,shuffle=none",
    "*.bias = identity; b.* = sign+blosc:codec=zstd; * = atomo:bits=1,atoms=blocks+blosc",
    "* = atomo:bits=6,cap=40,atoms=rows+blosc:codec=zstd",
    "a.* = atomo:atoms=coordinate,keep=0.1+blosc:codec=zstd; * = "
    "atomo:atoms=blocks,price=0.001+blosc",
    "* = identity"};

class Lossless : public testing::TestWithParam<const char*> {
 protected:
  Lossless() {
    for (const LayerSpec& layer : layers()) {
      auto& x = values.emplace_back(test::heavy_tailed(layer.shape.elements(), 5, 30));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 7 < 5 ? 0 : x[i];
      if (layer.name == "flat.weight") x.assign(x.size(), 0.03f);  // an own price, and shrinks
      if (layer.dtype == DType::bf16) {
        halves.resize(x.size());
        bool overflow = false;
        for (std::size_t i = 0; i < x.size(); ++i) halves[i] = core::to_bf16(x[i], overflow);
      }
    }
    for (const LayerSpec& layer : layers()) policy_codecs.push_back(policy.codec_for(layer.name));
  }
  [[nodiscard]] Message encode(const Policy& with, bool names = false) {
    Compressor model(layers(), with, {.names_on_wire = names});
    std::vector<ConstTensorView> views;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool half = layers()[i].dtype == DType::bf16;
      const void* const data = half ? static_cast<const void*>(halves.data()) : values[i].data();
      views.push_back({data, layers()[i].dtype, layers()[i].shape});
    }
    return test::encode_on_host(model, views, {.seed = 3, .step = 7, .worker = 1}).bytes;
  }

  const Policy policy = Policy::parse(GetParam());
  std::vector<Codec> policy_codecs;  // a layer
  std::vector<std::vector<float>> values;
  std::vector<std::uint16_t> halves;
};
INSTANTIATE_TEST_SUITE_P(Policies, Lossless, testing::ValuesIn(kPolicies),
                         [](const auto& made) { return std::to_string(made.index); });

/// Into exactly `capacity` bytes.
Status rewrite(const Message& message, std::span<const Codec> codecs, std::size_t capacity,
               Message& out) {
  out.reserve(capacity + 1);  // so that no room has an address too
  out.assign(capacity, std::byte{0xEE});
  std::uint64_t bytes = 0;
  const Payload payload{out.data(), capacity, &bytes};
  const Status status =
      codecs.empty() ? unpack_lossless(message, payload) : pack_lossless(message, codecs, payload);
  out.resize(failed(status) ? 0 : bytes);
  return status;
}

TEST_P(Lossless, PacksToTheMessageOfTheStage) {
  for (const bool names : {false, true}) {
    const Message expected = encode(policy, names),
                  plain = encode(policy.without_lossless(), names);
    EXPECT_EQ(expected == plain, std::strstr(GetParam(), "blosc") == nullptr);
    Message packed;
    ASSERT_EQ(rewrite(plain, policy_codecs, plain.size(), packed), Status::ok);
    EXPECT_TRUE(packed == expected);
    Message unpacked;
    ASSERT_EQ(unpacked_bytes(expected), plain.size());
    ASSERT_EQ(rewrite(expected, {}, plain.size(), unpacked), Status::ok);
    EXPECT_TRUE(unpacked == plain);
  }
}

TEST_P(Lossless, RefusesTooLittleRoomAndOtherCodecs) {
  const Message plain = encode(policy.without_lossless()), packed = encode(policy);
  Message out;
  for (const std::size_t room : {std::size_t{0}, std::size_t{60}, packed.size() - 4})
    EXPECT_EQ(rewrite(plain, policy_codecs, room, out), Status::buffer_too_small) << room;
  EXPECT_EQ(rewrite(packed, {}, plain.size() - 4, out), Status::buffer_too_small);
  const Codec other = Codec::parse("qsgd:bits=7+blosc");
  EXPECT_EQ(rewrite(plain, {&other, 1}, plain.size(), out), Status::codec_mismatch);
  auto more = policy_codecs;
  more.push_back(other);
  for (const std::span<const Codec> codecs :
       {std::span<const Codec>(policy_codecs).first(2), std::span<const Codec>(more)})
    EXPECT_EQ(rewrite(plain, codecs, plain.size(), out), Status::shape_mismatch);
  if (packed != plain) {
    EXPECT_EQ(rewrite(packed, policy_codecs, plain.size(), out), Status::codec_mismatch);
  }
}

TEST_P(Lossless, AnyBytesGiveAStatus) {
  const Message packed = encode(policy);
  const std::size_t room = encode(policy.without_lossless()).size();
  Message out;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Message damaged = test::mutated_message(packed, seed);
    static_cast<void>(unpacked_bytes(damaged));
    if (rewrite(damaged, {}, room, out) == Status::ok) {
      ContainerInfo info;
      ASSERT_FALSE(inspect(out, info, true) == Status::bad_checksum);
    }
    static_cast<void>(rewrite(damaged, policy_codecs, room, out));
  }
  for (std::size_t bytes = 0; bytes < packed.size(); bytes += 1 + bytes / 8) {
    const Message cut(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_TRUE(failed(rewrite(cut, {}, room, out))) << bytes;
    EXPECT_EQ(unpacked_bytes(cut), 0u) << bytes;
  }
}

/// All singular pairs of an identity matrix pack to next to nothing: less than pays for multiplying
/// them out. They are sent as they are, and whoever decodes messages decodes these.
TEST(LosslessPairs, ThatAFrameDoesNotPayForAreStored) {
  const Shape shape{512, 512};
  const Codec codec = Codec::parse("atomo:atoms=svd,keep=512,values=f32+blosc:codec=zstd,level=9");
  std::vector<float> identity(shape.elements());
  for (std::size_t i = 0; i < 512; ++i) identity[513 * i] = 3;
  const auto message = test::encode(codec, identity, shape);
  ASSERT_EQ(message.status, Status::ok);
  ContainerInfo info;
  ASSERT_EQ(inspect(message.bytes, info, true), Status::ok);
  EXPECT_EQ(info.layers[0].kept, 512u);
  EXPECT_FALSE(info.layers[0].lossless);
  EXPECT_EQ(test::decode(codec, message.bytes, shape).values, identity);

  std::vector<std::byte> packed(message.bytes.size());
  std::uint64_t bytes = 0;
  ASSERT_EQ(pack_lossless(message.bytes, {&codec, 1}, {packed.data(), packed.size(), &bytes}),
            Status::ok);
  EXPECT_EQ(bytes, message.bytes.size());
}

}  // namespace
}  // namespace atomo
