// SPDX-License-Identifier: Apache-2.0
/// `cap=`: no message exceeds it, and thinned ones take any bytes.
#include <gtest/gtest.h>

#include "support/cap_support.hpp"

namespace atomo {
namespace {

using test::gain_of;
using test::kCapShape;
using test::low_rank;

TEST(Cap, NoMessageExceedsIt) {
  const auto x = test::heavy_tailed(kCapShape.elements(), 5, 64);
  const auto cap_of = [](const char* spec) { return std::atof(std::strstr(spec, "cap=") + 4); };
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"atomo:bits=1,cap=1,atoms=rows", test::repeats(10000)},
      {"atomo:bits=1.5,cap=1.5,atoms=blocks", test::repeats(1000)},
      {"atomo:bits=1,cap=1,atoms=rows+blosc", 300},
      {"atomo:bits=1,cap=1,atoms=auto", 300}};
  for (const auto& [spec, messages] : cases) {
    const Codec codec = Codec::parse(spec);
    const auto limit =
        static_cast<std::size_t>(cap_of(spec) * static_cast<double>(kCapShape.elements()) / 8);
    int thinned = 0;
    for (std::uint64_t seed = 0; seed < messages; ++seed) {
      const auto m = test::encode(codec, x, kCapShape, {.seed = seed});
      ASSERT_FALSE(failed(m.status)) << describe(m.status);
      ASSERT_LE(m.bytes.size(), limit) << spec << " seed " << seed;
      if (seed % 8 != 0) continue;
      ContainerInfo info;
      ASSERT_EQ(inspect(m.bytes, info, true), Status::ok);
      thinned += info.layers[0].thinned ? 1 : 0;
      ASSERT_EQ(test::decode(codec, m.bytes, kCapShape).status, Status::ok);
    }
    EXPECT_GT(thinned, 5) << spec << ": the cap must bind for this test to say anything";
  }
}

TEST(Cap, SketchesNeverExceedIt) {
  const Shape shape{256, 100};
  const auto x = low_rank({256, 100});
  const Codec codec = Codec::parse("atomo:bits=2,cap=2,atoms=sketch");
  int thinned = 0;
  for (std::uint64_t seed = 0; seed < test::repeats(1000); ++seed) {
    const auto m = test::encode(codec, x, shape, {.seed = seed});
    ASSERT_FALSE(failed(m.status));
    ASSERT_LE(m.bytes.size(), 2 * shape.elements() / 8) << seed;
    thinned += gain_of(m.bytes) > 1 ? 1 : 0;
  }
  EXPECT_GT(thinned, static_cast<int>(test::repeats(1000) / 10));
}

/// Thinned bodies take any bytes too.
void expect_statuses(const char* spec, const std::vector<float>& x, const Shape& shape) {
  const Codec codec = Codec::parse(spec);
  test::Message m;
  for (std::uint64_t seed = 0; seed < 1000 && (m.bytes.empty() || gain_of(m.bytes) == 1); ++seed)
    m = test::encode(codec, x, shape, {.seed = seed});
  ASSERT_GT(gain_of(m.bytes), 1);
  format::Head head;
  ASSERT_EQ(format::Head::parse(m.bytes, true, head), Status::ok);
  std::mt19937_64 generator(4);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    auto changed = m.bytes;
    const std::size_t at =
        head.head_bytes() +
        (i % 2 == 0 ? generator() % 12 : generator() % (m.bytes.size() - head.head_bytes()));
    changed[at] ^= static_cast<std::byte>(1 + generator() % 255);
    format::write_checksums(changed, head.head_bytes());
    refused += failed(test::decode(codec, changed, shape).status) ? 1 : 0;
  }
  EXPECT_GT(refused, 1000);
}

TEST(Cap, MutatedThinnedMessagesGiveAStatus) {
  expect_statuses("atomo:bits=1,cap=1,atoms=rows", test::heavy_tailed(kCapShape.elements(), 6, 64),
                  kCapShape);
  expect_statuses("atomo:bits=2,cap=2,atoms=sketch", low_rank({256, 100}), Shape{256, 100});
}

TEST(Cap, ModelsKeepItWholeAndStreamed) {
  const test::RealGradient model;
  Compressor whole(model.specs, Policy::parse("*=atomo:bits=0.5,cap=0.505,atoms=rows")),
      streamed(model.specs, Policy::parse("*=atomo:bits=0.5,cap=0.505,atoms=rows"));
  const auto limit = static_cast<std::size_t>(0.505 * static_cast<double>(model.elements) / 8);
  std::vector<std::byte> bytes(whole.max_encoded_bytes()), workspace(test::workspace_bytes(whole));
  std::uint64_t used = 0;
  int bound = 0;
  for (std::uint32_t step = 0; step < 300; ++step) {
    ASSERT_FALSE(
        failed(whole.encode(model.views, {.step = step}, {bytes.data(), bytes.size(), &used},
                            {.workspace = workspace})));
    ASSERT_LE(used, limit);
    ContainerInfo info;
    ASSERT_EQ(inspect(ConstBytes(bytes).first(used), info, true), Status::ok);
    for (const auto& layer : info.layers) bound += layer.thinned ? 1 : 0;
    ASSERT_EQ(streamed.begin_step({.step = step}), Status::ok);
    std::size_t sum = 0;
    for (std::size_t i = 0; i < model.views.size(); ++i) {
      ASSERT_FALSE(failed(streamed.encode_layer(
          i, model.views[i], {bytes.data(), bytes.size(), &used}, {.workspace = workspace})));
      sum += used;
    }
    ASSERT_FALSE(failed(streamed.end_step()));
    ASSERT_LE(sum, limit) << "step " << step;
  }
  EXPECT_GT(bound, 50);
}

TEST(Cap, TooTightIsRefusedAtSetUp) {
  EXPECT_THROW((void)Codec::parse("atomo:bits=1,cap=0.5,atoms=rows"), Error);
  EXPECT_THROW((void)Codec::parse("atomo:bits=1,cap=1.2,atoms=rows").max_encoded_bytes({100}),
               Error);
  EXPECT_THROW(Compressor({{"a", {100}}}, Policy::parse("*=atomo:bits=1,cap=1.2,atoms=rows")),
               Error);
  EXPECT_NO_THROW(
      (void)Codec::parse("atomo:bits=1,cap=1.2,atoms=rows").max_encoded_bytes({1000, 1000}));
}

TEST(Thinning, WordsThatNoEncoderWritesAreRefused) {
  format::Thinning t;
  EXPECT_TRUE(format::Thinning::read(format::Thinning{3, 7, 7}.word(), t));
  EXPECT_EQ(t.gain(), 8.0f);
  EXPECT_FALSE(format::Thinning::read(format::Thinning{3, 8, 0}.word(), t));
  EXPECT_FALSE(format::Thinning::read(format::Thinning{3, 1, 8}.word(), t));
  EXPECT_FALSE(format::Thinning::read(format::Thinning{3, 0, 0}.word(), t));
  EXPECT_FALSE(format::Thinning::read(format::Thinning{12, 1, 0}.word(), t));
}

}  // namespace
}  // namespace atomo
