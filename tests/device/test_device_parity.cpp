// SPDX-License-Identifier: Apache-2.0
/// The device's messages are the CPU's, byte for byte, and mean the same on both: every codec, over
/// sizes, dtypes, alignments and block sizes.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>

#include "cuda/tuning.hpp"
#include "format/chunk_body.hpp"
#include "support/mutated_messages.hpp"
#include "support/on_cpu.hpp"

namespace atomo {

using namespace model;
namespace {

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      Shape{0},       Shape{},         Shape{31},      Shape{33},     Shape{257},
      Shape{17, 16},  Shape{40, 25},   Shape{1023},    Shape{9, 513}, Shape{300, 16},
      Shape{3, 2051}, Shape{64, 3, 3}, Shape{2, 16411}};
  return all;
}
constexpr std::array<DType, 3> kDTypes = {DType::f32, DType::f16, DType::bf16};
constexpr std::array<unsigned, 3> kWarps = {1, 4, 8};
constexpr std::size_t kShifts = 4;
constexpr std::size_t kShiftsAShape = test::kSanitized ? 1 : kShifts;

std::size_t compared = 0;  ///< whole messages, over all codecs

class Parity : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { cuda::warps_per_block = 4; }
  Codec codec = Codec::parse(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Specs, Parity, testing::ValuesIn(test::specs_with_the_cpus_bytes()),
                         test::spec_name);

/// Every alignment with every dtype and shape (under a sanitizer they take turns); numbers of warps
/// take turns, so that each meets every alignment with every dtype. On a commit the dtypes of larger
/// shapes take turns too.
TEST_P(Parity, MessagesAndValuesAreTheCpus) {
  constexpr std::size_t kLarger = 2000;
  std::size_t count = 0, turn = 0;
  for (const Shape& shape : shapes()) {
    const auto x = test::heavy_tailed(shape.elements(), 3 + shape.elements(), 47);
    for (const DType dtype : kDTypes) {
      if (test::in_turns() && shape.elements() > kLarger &&
          dtype != kDTypes[(turn + GetParam().size()) % kDTypes.size()])
        continue;
      const auto entries = test::entries_of(x, dtype);
      const Key key{.seed = 77, .step = 5, .tensor = 6, .worker = 7, .channel = 8};
      const auto expected = test::encode_on_cpu(codec, entries, dtype, shape, key);
      ASSERT_FALSE(failed(expected.status)) << describe(expected.status);
      const auto before = test::entries_of(test::heavy_tailed(shape.elements(), 9, 20), dtype);
      const auto decoded = test::decode_on_cpu(codec, expected.bytes, before, dtype, shape);
      const auto added =
          test::decode_on_cpu(codec, expected.bytes, before, dtype, shape, true, -0.7f);
      for (std::size_t k = 0; k < kShiftsAShape; ++k, ++count) {
        const std::size_t shift = (turn + k) % kShifts;
        const unsigned warps = kWarps[(turn + k) % kWarps.size()];
        cuda::warps_per_block = warps;
        const auto where = shape.to_string() + " " + std::string(name_of(dtype)) + " shift " +
                           std::to_string(shift) + " warps " + std::to_string(warps);
        const auto m = test::encode_bytes(codec, entries, dtype, shape, key, nullptr, shift);
        ASSERT_EQ(m.status, expected.status) << where << ": " << describe(m.status);
        ASSERT_EQ(m.bytes.size(), expected.bytes.size()) << where;
        ASSERT_TRUE(m.bytes == expected.bytes) << where;
        const auto d =
            test::decode_bytes(codec, expected.bytes, before, dtype, shape, false, 1, shift);
        ASSERT_EQ(d.status, decoded.status) << where << ": " << describe(d.status);
        ASSERT_TRUE(d.values == decoded.values) << where;
        const auto a =
            test::decode_bytes(codec, expected.bytes, before, dtype, shape, true, -0.7f, shift);
        ASSERT_EQ(a.status, added.status) << where << ": " << describe(a.status);
        if (!failed(a.status)) {
          ASSERT_TRUE(a.values == added.values) << where;
        }
      }
    }
    ++turn;
  }
  EXPECT_GE(count, shapes().size() * kShiftsAShape);
  if (!test::in_turns()) {
    EXPECT_EQ(count, shapes().size() * kDTypes.size() * kShiftsAShape);
  }
  compared += count;
  std::cout << "[ messages ] " << compared << " compared so far\n";
}

/// Budgets that pay for nothing: the device's prices end where the CPU's do, and it says so too.
TEST(TinyTensors, AreTheCpus) {
  int overspent = 0;
  for (const char* atoms : {"rows", "blocks", "sketch", "svd", "auto", "coordinate"}) {
    for (const char* bits : {"0.125", "0.5", "1"}) {
      if (test::kSanitized && bits != std::string("0.5")) continue;
      const Codec codec = Codec::parse(std::string("atomo:atoms=") + atoms + ",bits=" + bits);
      for (const std::int64_t n : {1, 2, 3, 8, 40, 300}) {
        const Shape shape{n};
        const auto x = test::heavy_tailed(shape.elements(), 8, 30);
        const auto expected = test::encode_on_cpu(codec, x, shape, {.seed = 6});
        const auto m = test::encode(codec, x, shape, {.seed = 6});
        ASSERT_EQ(m.status, expected.status) << atoms << " " << bits << " " << n;
        ASSERT_TRUE(m.bytes == expected.bytes) << atoms << " " << bits << " " << n;
        overspent += m.status == Status::overspent ? 1 : 0;
      }
    }
  }
  EXPECT_GE(overspent, 6 * 4);
}

/// Chunks of coordinates whose largest entries have no level above them in f32, beside others.
TEST(CoordinatesAtTheTop, AreTheCpus) {
  const Shape shape{3 * 4096 + 50};
  for (const char* how : {"bits=0.5", "bits=1", "bits=5", "keep=0.1"}) {
    const Codec codec = Codec::parse(std::string("atomo:atoms=coordinate,") + how);
    auto x = test::heavy_tailed(shape.elements(), 8, 30);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i / 4096 == 1 || i % 40 != 3) continue;
      const float part = 1 - static_cast<float>(i % 7) * (i % 3 == 0 ? 0x1p-20f : 0.03f);
      x[i] = std::copysign(std::numeric_limits<float>::max() * part, x[i]);
    }
    const auto expected = test::encode_on_cpu(codec, x, shape, {.seed = 3});
    const auto m = test::encode(codec, x, shape, {.seed = 3});
    ASSERT_EQ(m.status, expected.status) << how;
    ASSERT_TRUE(m.bytes == expected.bytes) << how;
  }
}

/// Tensors of several tiles of 16,384 entries, of which a device lists the candidates of top-k: up to an
/// eighth of a tile, all of it, and tiles of both kinds; ties within a tile and across tiles.
TEST(TopKTiles, AreTheCpus) {
  constexpr std::size_t kTile = 16384, kEntries = 3 * kTile + 100;
  const auto bell = test::heavy_tailed(kEntries, 12, 50);
  using Pattern = float (*)(std::size_t, float);
  const std::initializer_list<Pattern> patterns = {
      [](std::size_t i, float) { return 1 + static_cast<float>(i % 7) * 0x1p-20f; },
      [](std::size_t, float x) { return x; },
      [](std::size_t i, float x) { return i < kTile ? -1.0f : x; },
      [](std::size_t i, float) { return i % 4099 == 0 ? 2.0f : 0.0f; },
      [](std::size_t i, float) { return i % kTile < 2048 ? 1.0f : 0x1p-9f; },
      [](std::size_t i, float) { return i % kTile < 2049 ? 1.0f : 0x1p-9f; },
      [](std::size_t i, float) { return i / kTile == 1 || i % 32 == 0 ? 1.5f : 0x1p-9f; }};
  for (const Pattern pattern : patterns) {
    std::vector<float> x(kEntries);
    for (std::size_t i = 0; i < kEntries; ++i) x[i] = pattern(i, bell[i]);
    for (const std::size_t keep :
         {std::size_t{1}, std::size_t{13}, kEntries / 32, kEntries / 32 + 1, std::size_t{2049},
          std::size_t{6000}, kTile + 1, kEntries - 1}) {
      const Codec codec = Codec::parse("topk:keep=" + std::to_string(keep));
      const Shape shape{static_cast<std::int64_t>(kEntries)};
      const auto expected = test::encode_on_cpu(codec, x, shape, {.seed = 2});
      const auto m = test::encode(codec, x, shape, {.seed = 2});
      ASSERT_EQ(m.status, expected.status) << keep;
      ASSERT_TRUE(m.bytes == expected.bytes) << keep << " entries, x[0] " << x[0];
    }
  }
}

/// Lengths that add up to those of a sound message, where one group has the gaps of all: more than a device
/// makes room for.
TEST(ChunkTopkGroups, LengthsAboveAnyAreRefused) {
  constexpr std::size_t kGroups = 3, kGroup = 256 * 64;
  const Codec codec = Codec::parse("topk:chunk=64,k=4,values=2");
  const Shape shape{static_cast<std::int64_t>(kGroups * kGroup)};
  const auto x = test::heavy_tailed(shape.elements(), 12, 50);
  const auto before = test::entries_of(x, DType::f32);
  const auto sound = test::encode_on_cpu(codec, x, shape, {.seed = 2}).bytes;
  ContainerInfo info;
  ASSERT_EQ(inspect(sound, info, true), Status::ok);
  std::uint16_t lengths[kGroups], sum = 0;
  std::memcpy(lengths, sound.data() + info.head_bytes, sizeof lengths);
  for (const std::uint16_t length : lengths) sum = static_cast<std::uint16_t>(sum + length);
  const format::ChunkConfig config{.chunk = 64, .keep = 4};
  ASSERT_GT(sum, format::ChunkBody(config, shape.elements()).max_gap_bytes());
  for (std::size_t whole = 0; whole < kGroups; ++whole) {
    auto bytes = sound;
    for (std::size_t g = 0; g < kGroups; ++g) lengths[g] = g == whole ? sum : 0;
    std::memcpy(bytes.data() + info.head_bytes, lengths, sizeof lengths);
    format::write_checksums(bytes, info.head_bytes);
    ASSERT_EQ(test::decode_on_cpu(codec, bytes, before, DType::f32, shape).status, Status::corrupt);
    ASSERT_EQ(test::decode_bytes(codec, bytes, before, DType::f32, shape).status, Status::corrupt);
  }
}

/// Codes of every width, of which four neighbours stand in one word or in two, under steps that they
/// share and that they do not.
TEST(QsgdWidths, AreTheCpus) {
  const Shape shape{2 * 1024 + 77};
  const auto x = test::heavy_tailed(shape.elements(), 4, 40);
  const std::vector<float> before(x.size(), 0.0f);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const char* bucket : {"512", "250", "30"}) {
      const Codec codec = Codec::parse("qsgd:bits=" + std::to_string(bits) + ",bucket=" + bucket);
      const auto expected = test::encode_on_cpu(codec, x, shape, {.seed = 8});
      const auto m = test::encode(codec, x, shape, {.seed = 8});
      ASSERT_TRUE(m.bytes == expected.bytes) << bits << " bits, buckets of " << bucket;
      const auto entries = test::entries_of(before, DType::f32);
      const auto decoded = test::decode_on_cpu(codec, m.bytes, entries, DType::f32, shape);
      for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
        const auto d =
            test::decode_bytes(codec, m.bytes, entries, DType::f32, shape, false, 1, shift);
        ASSERT_TRUE(d.values == decoded.values) << bits << " bits, buckets of " << bucket;
      }
    }
  }
}

/// Larger than any tile, segment or chunk, and at several scales of the data (under a sanitizer one
/// each). On a commit a spec has one shape, and specs of a codec have several.
TEST_P(Parity, LargeTensors) {
  const std::vector<Shape> large = {Shape{70001}, Shape{130, 1025}, Shape{5000, 20}};
  const std::vector<float> scales = {1.0f, 0x1p-130f, 0x1p100f};
  for (std::size_t i = 0; i < large.size(); ++i) {
    if (test::in_brief() && i != GetParam().size() % large.size()) continue;
    const Shape& shape = large[i];
    for (std::size_t k = 0; k < scales.size(); ++k) {
      if ((test::kSanitized || test::in_brief()) && k != i) continue;
      const float scale = scales[k];
      auto x = test::heavy_tailed(shape.elements(), 5, 900);
      for (float& v : x) v *= scale;
      const auto expected = test::encode_on_cpu(codec, x, shape, {.seed = 2});
      const auto m = test::encode(codec, x, shape, {.seed = 2});
      ASSERT_EQ(m.status, expected.status) << shape.to_string() << " " << scale;
      ASSERT_TRUE(m.bytes == expected.bytes) << shape.to_string() << " " << scale;
      const auto before = test::entries_of(test::heavy_tailed(shape.elements(), 9, 20), DType::f32);
      const auto d = test::decode_bytes(codec, m.bytes, before, DType::f32, shape);
      const auto on_cpu = test::decode_on_cpu(codec, m.bytes, before, DType::f32, shape);
      ASSERT_EQ(d.status, on_cpu.status);
      ASSERT_TRUE(d.values == on_cpu.values) << shape.to_string() << " " << scale;
    }
  }
}

TEST_P(Parity, RefusesDTypesThatAreNone) {
  const Shape shape{30};
  const auto none = static_cast<DType>(7);
  const test::Memory x(4 * shape.elements()), message(codec.max_encoded_bytes(shape)),
      workspace(test::workspace_bytes(codec, shape));
  const test::Word<std::uint64_t> bytes;
  const test::StreamOwner stream;
  Context context;
  context.stream = stream.get();
  context.workspace = workspace.bytes();
  EXPECT_EQ(codec.encode({x.data(), none, shape, test::kDevice}, {},
                         {message.data(), message.bytes().size(), bytes.data()}, context),
            Status::unsupported);
  EXPECT_EQ(codec.decode(message.bytes(), {x.data(), none, shape, test::kDevice}, context),
            Status::unsupported);
}

/// Whatever the bytes, the device accepts what the CPU accepts and refuses the rest for the same
/// reason: damage that the checksums see, and damage behind them.
TEST_P(Parity, DamagedMessages) {
  const Shape shape{23, 45};
  const auto x = test::heavy_tailed(shape.elements(), 4, 45);
  const auto sound = test::encode_on_cpu(codec, x, shape, {.seed = 3}).bytes;
  const auto before = test::entries_of(x, DType::f32);
  std::mt19937_64 generator(11);
  int accepted = 0;
  const int trials = test::in_brief() ? 100 : 400;
  for (std::uint64_t trial = 0; trial < static_cast<std::uint64_t>(trials); ++trial) {
    auto bytes = sound;
    if (trial % 8 == 0) {
      bytes.resize(generator() % (sound.size() + 1));
    } else if (trial % 8 == 1) {
      bytes[generator() % bytes.size()] ^= static_cast<std::byte>(1u << (generator() % 8));
    } else {
      bytes = test::mutated_message(sound, trial);
    }
    const auto on_cpu = test::decode_on_cpu(codec, bytes, before, DType::f32, shape);
    const auto d = test::decode_bytes(codec, bytes, before, DType::f32, shape);
    ASSERT_EQ(d.status, on_cpu.status)
        << trial << ": " << describe(d.status) << ", on the CPU " << describe(on_cpu.status);
    if (failed(d.status)) continue;
    ++accepted;
    ASSERT_TRUE(d.values == on_cpu.values) << trial;
  }
  EXPECT_LT(accepted, trials);
}

}  // namespace
}  // namespace atomo
