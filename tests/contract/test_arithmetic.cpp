// SPDX-License-Identifier: Apache-2.0
/// Adding messages of coordinates: exact, in any grouping, up to the largest level, and safe.
#include "atomo/arithmetic.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support/grid_messages.hpp"
#include "support/mutated_messages.hpp"

namespace atomo::test {
namespace {

constexpr std::int64_t kLargestLevel = (std::int64_t{1} << 53) - 1;

/// Random levels of which `share` are not zero, up to 2^bits - 1, exact in f32.
Levels random_levels(std::size_t n, double share, unsigned bits, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> kept(0, 1);
  Levels levels(n);
  for (auto& level : levels) {
    if (kept(generator) >= share) continue;
    const auto width = 1 + static_cast<unsigned>(generator() % bits);
    auto magnitude = static_cast<std::int64_t>(generator() >> (64 - width));
    if (width > 24) magnitude &= ~((std::int64_t{1} << (width - 24)) - 1);
    level = generator() % 2 == 0 ? magnitude : -magnitude;
  }
  return levels;
}

Levels plus(const Levels& a, const Levels& b) {
  Levels sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

std::vector<float> decoded(ConstBytes message, std::size_t n) {
  std::vector<float> y(n, 7);
  const Shape shape{static_cast<std::int64_t>(n)};
  Buffer workspace(decode_workspace_bytes(shape));
  const TensorView view{y.data(), DType::f32, shape};
  EXPECT_EQ(atomo::decode(message, {&view, 1}, {.workspace = workspace}), Status::ok);
  return y;
}

struct Content {
  double share;
  unsigned bits;
};
constexpr Content kContents[] = {{0, 1}, {0.001, 1}, {0.02, 2}, {0.3, 3},
                                 {1, 5}, {0.01, 28}, {0.5, 28}, {1, 28}};

TEST(Arithmetic, SumsAreExact) {
  for (const std::size_t n : {1, 2, 31, 4096, 32767, 32768, 32769, 70001}) {
    for (const Content& content : kContents) {
      Levels sum(n);
      std::vector<Buffer> messages;
      for (std::uint64_t w = 0; w < 5; ++w) {
        const Levels levels = random_levels(n, content.share, content.bits, 100 * n + w);
        messages.push_back(message_of(levels, 0.25f));
        sum = plus(sum, levels);
        const Sum all = sum_of(messages);
        ASSERT_EQ(all.status, Status::ok);
        ASSERT_EQ(levels_of(all.bytes), sum);
      }
      const auto y = decoded(sum_of(messages).bytes, n);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(y[i], static_cast<float>(sum[i]) * 0.25f);
    }
  }
}

TEST(Arithmetic, ASumIsWhatAnEncoderWritesOfItsLevels) {
  for (const Content& content : kContents) {
    if (content.bits == 28) continue;  // sums that are not all exact in f32
    const Levels a = random_levels(70001, content.share, content.bits, 1),
                 b = random_levels(70001, content.share, content.bits, 2);
    EXPECT_EQ(sum_of({message_of(a), message_of(b)}).bytes, message_of(plus(a, b)));
  }
}

TEST(Arithmetic, TheSumOfOneMessageIsThatMessage) {
  for (const char* spec : {"atomo:bits=1,atoms=coordinate", "atomo:atoms=coordinate,keep=0.1",
                           "atomo:atoms=coordinate,delta=0.01"}) {
    for (const std::size_t n : {1, 100, 70001}) {
      const auto x = heavy_tailed(n, n);
      const Message message =
          encode(Codec::parse(spec), x, {static_cast<std::int64_t>(n)},
                 {.seed = 5, .step = 6, .tensor = 7, .worker = 8, .channel = 9});
      EXPECT_EQ(sum_of({message.bytes}).bytes, message.bytes) << spec;
    }
  }
}

TEST(Arithmetic, GroupingChangesNoByte) {
  for (const Content& content : kContents) {
    std::vector<Buffer> m;
    for (std::uint16_t w = 0; w < 6; ++w)
      m.push_back(message_of(random_levels(40000, content.share, content.bits, w), 0.5f,
                             {.seed = 1, .worker = w}));
    const Buffer all = sum_of(m).bytes;
    const auto two = [&](const Buffer& a, const Buffer& b) { return sum_of({a, b}).bytes; };
    EXPECT_EQ(two(two(two(m[0], m[1]), two(m[2], m[3])), two(m[4], m[5])), all);
    EXPECT_EQ(two(m[0], two(m[1], two(m[2], two(m[3], two(m[4], m[5]))))), all);
    EXPECT_EQ(sum_of({sum_of({m[0], m[1], m[2]}).bytes, m[3], sum_of({m[4], m[5]}).bytes}).bytes,
              all);
  }
}

TEST(Arithmetic, LevelsWidenAt29BitsAndNarrowAgain) {
  constexpr std::int64_t kEdge = std::int64_t{1} << 29;
  for (const std::int64_t sign : {1, -1}) {
    const Buffer below =
        sum_of({message_of({sign * (kEdge - 32), 5}), message_of({sign * 31, 0})}).bytes;
    EXPECT_FALSE(word_of(below, 0).wide());
    EXPECT_EQ(levels_of(below), (Levels{sign * (kEdge - 1), 5}));
    const Buffer at = sum_of({below, message_of({sign, 0})}).bytes;
    EXPECT_EQ(word_of(at, 0).level_bits, 30u);
    EXPECT_EQ(levels_of(at), (Levels{sign * kEdge, 5}));
    EXPECT_EQ(decoded(at, 2), (std::vector<float>{static_cast<float>(sign) * 0x1p29f, 5}));
    EXPECT_EQ(sum_of({at, message_of({-sign, 0})}).bytes, below);
  }
}

/// 1, 3, 7, ... 2^53 - 1 by doubling, in a segment of its own beside narrow ones.
TEST(Arithmetic, LevelsGoUpTo53Bits) {
  constexpr std::size_t kAt = 40000;
  Levels one(100000), minus(100000), other(100000);
  one[kAt] = 1, minus[kAt] = -1, other[3] = -9;
  const Buffer up = message_of(one), down = message_of(minus), back = message_of(other);
  other[3] = 9;
  Buffer sum = sum_of({up, message_of(other)}).bytes;
  for (int bits = 2; bits <= 53; ++bits) {
    const Sum next = sum_of({sum, sum, up, back});
    ASSERT_EQ(next.status, Status::ok) << bits;
    sum = next.bytes;
    const std::int64_t level = (std::int64_t{1} << bits) - 1;
    ASSERT_EQ(levels_of(sum)[kAt], level);
    ASSERT_EQ(word_of(sum, 1).level_bits, static_cast<unsigned>(std::max(bits, 29)));
    ASSERT_FALSE(word_of(sum, 0).wide());
    ASSERT_EQ(levels_of(sum)[3], 9);
    ASSERT_EQ(decoded(sum, one.size())[kAt], static_cast<float>(level));
  }
  EXPECT_EQ(levels_of(sum)[kAt], kLargestLevel);
  EXPECT_EQ(sum_of({sum, up}).status, Status::too_large);
  EXPECT_EQ(sum_of({sum, sum}).status, Status::too_large);
  EXPECT_EQ(sum_of({sum, up, down}).status, Status::too_large);  // on the way
  EXPECT_EQ(sum_of({sum, down, up}).bytes, sum);
  EXPECT_EQ(sum_of(std::vector<Buffer>(5000, sum)).status, Status::too_large);
}

/// Levels of every width, in every mode.
TEST(Arithmetic, WideSegmentsAreExactInEveryMode) {
  bool seen[4] = {};
  for (const Content& content : kContents) {
    if (content.share == 0) continue;
    Levels levels(33000);
    Buffer sum = message_of(levels);
    for (std::uint64_t round = 0; round < 60; ++round) {
      const Levels more = random_levels(levels.size(), content.share, content.bits, round);
      const bool doubles = round % 2 == 0 && std::all_of(levels.begin(), levels.end(), [](auto v) {
                             return std::abs(v) < std::int64_t{1} << 51;
                           });
      if (doubles) levels = plus(levels, levels);
      levels = plus(levels, more);
      const Buffer part = message_of(more);
      sum = doubles ? sum_of({sum, sum, part}).bytes : sum_of({sum, part}).bytes;
      ASSERT_EQ(levels_of(sum), levels);
      if (word_of(sum, 0).wide()) seen[static_cast<int>(word_of(sum, 0).mode)] = true;
    }
    const Buffer twice = sum_of({sum, sum}).bytes;  // no level of 1: one list may be shorter
    ASSERT_EQ(levels_of(twice), plus(levels, levels));
    if (word_of(twice, 0).wide()) seen[static_cast<int>(word_of(twice, 0).mode)] = true;
    const Levels ones = random_levels(levels.size(), 0.3, 1, 1);
    levels = plus(levels, ones);
    sum = sum_of({sum, message_of(ones)}).bytes;
    ASSERT_EQ(levels_of(sum), levels);
    if (word_of(sum, 0).wide()) seen[static_cast<int>(word_of(sum, 0).mode)] = true;
    const auto y = decoded(sum, levels.size());
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], static_cast<float>(levels[i]));
  }
  for (int mode = 1; mode < 4; ++mode) EXPECT_TRUE(seen[mode]) << mode;
}

/// What the header promises of f32: the sum's values are those of decode_add, to the bit, where
/// nothing there is rounded.
TEST(Arithmetic, ValuesAreThoseOfDecodeAddWhereItIsExact) {
  const std::size_t n = 50000;
  const Codec codec = Codec::parse("atomo:atoms=coordinate,delta=0.00390625");
  const Shape shape{static_cast<std::int64_t>(n)};
  std::vector<Buffer> messages;
  std::vector<float> expected(n);
  Buffer workspace(decode_workspace_bytes(shape));
  const TensorView view{expected.data(), DType::f32, shape};
  for (std::uint16_t w = 0; w < 8; ++w) {
    messages.push_back(encode(codec, heavy_tailed(n, w), shape, {.worker = w}).bytes);
    ASSERT_EQ(decode_add(messages.back(), 0.125f, {&view, 1}, {.workspace = workspace}),
              Status::ok);
  }
  std::vector<float> y(n);
  const TensorView sum{y.data(), DType::f32, shape};
  ASSERT_EQ(decode_add(sum_of(messages).bytes, 0.125f, {&sum, 1}, {.workspace = workspace}),
            Status::ok);
  EXPECT_EQ(y, expected);
}

TEST(Arithmetic, ValuesBeyondF32AreCut) {
  const Buffer large =
      encode(Codec::parse("atomo:atoms=coordinate,delta=1e38"), {3e38f, -1e38f}, {2}).bytes;
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(decoded(sum_of({large, large}).bytes, 2), (std::vector<float>{most, -2e38f}));
}

// ---- models, keys, steps

struct Model {
  std::vector<LayerSpec> specs{
      {"a", {300, 40}}, {"b", {7}}, {"c", {70000}, DType::bf16}, {"d", {0}}};
  Compressor compressor;

  explicit Model(const char* policy, bool names = false)
      : compressor(specs, Policy::parse(policy), {.names_on_wire = names}) {}

  Buffer encode(const Key& key, float scale = 1, std::size_t broken = 99) {
    std::vector<std::vector<std::byte>> data;
    std::vector<ConstTensorView> views;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      std::vector<float> x = heavy_tailed(specs[i].shape.elements(), key.worker + 10 * i);
      for (float& v : x) v *= scale;
      if (i == broken) x[1] = std::numeric_limits<float>::quiet_NaN();
      std::vector<std::byte>& bytes = data.emplace_back(x.size() * size_of(specs[i].dtype));
      for (std::size_t k = 0; k < x.size(); ++k) {
        const auto half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x[k]) >> 16);
        if (specs[i].dtype == DType::f32)
          std::memcpy(&bytes[4 * k], &x[k], 4);
        else
          std::memcpy(&bytes[2 * k], &half, 2);
      }
      views.push_back({bytes.data(), specs[i].dtype, specs[i].shape});
    }
    Buffer payload(compressor.max_encoded_bytes()), workspace(test::workspace_bytes(compressor));
    std::uint64_t bytes = 0;
    const Status status = compressor.encode(views, key, {payload.data(), payload.size(), &bytes},
                                            {.workspace = workspace});
    EXPECT_FALSE(failed(status));
    payload.resize(bytes);
    return payload;
  }
};

TEST(Arithmetic, WholeModelsAdd) {
  for (const bool names : {false, true}) {
    Model model("*=atomo:atoms=coordinate,delta=0.015625", names);
    std::vector<Buffer> messages;
    Levels expected;
    for (std::uint16_t w = 0; w < 4; ++w) {
      messages.push_back(model.encode({.seed = 3, .step = 8, .worker = w}));
      const Levels levels = levels_of(messages.back());
      expected = w == 0 ? levels : plus(expected, levels);
    }
    const Sum sum = sum_of(messages);
    ASSERT_EQ(sum.status, Status::ok);
    EXPECT_EQ(levels_of(sum.bytes), expected);
    ContainerInfo info;
    ASSERT_EQ(inspect(sum.bytes, info, true), Status::ok);
    EXPECT_EQ(info.key, (Key{.seed = 3, .step = 8, .worker = 0}));
    EXPECT_EQ(info.layers.at(2).name, names ? "c" : "");
    EXPECT_EQ(info.layers.at(2).dtype, DType::bf16);
  }
}

/// One worker has a shared step in the header, another an own one of the same size in the layer.
TEST(Arithmetic, StepsMayStandInTheHeaderOrInTheLayer) {
  const Shape shape{200};
  std::vector<float> x(200, 3.0f);
  Compressor model({{"a", shape}}, Policy::parse("*=atomo:bits=3,atoms=coordinate"));
  Buffer shared(model.max_encoded_bytes(0)), workspace(test::workspace_bytes(model, 0));
  std::uint64_t bytes = 0;
  ASSERT_EQ(model.begin_step({}, {.grid = 1.0f}), Status::ok);
  ASSERT_FALSE(
      failed(model.encode_layer(0, {x.data(), DType::f32, shape},
                                {shared.data(), shared.size(), &bytes}, {.workspace = workspace})));
  shared.resize(bytes);
  Buffer own = message_of(Levels(200, 2));
  const Buffer both = sum_of({shared, own}).bytes;
  EXPECT_EQ(levels_of(both), Levels(200, 5));
  EXPECT_EQ(sum_of({own, shared}).bytes, both);  // the keys are the same
  EXPECT_EQ(sum_of({own, own}).bytes, message_of(Levels(200, 4)));
}

TEST(Arithmetic, WorkersWithABudgetAgreeOnAStep) {
  std::vector<Compressor> workers;
  const Shape shape{60000};
  for (int w = 0; w < 3; ++w)
    workers.emplace_back(std::vector<LayerSpec>{{"a", shape}},
                         Policy::parse("*=atomo:bits=2,atoms=coordinate"));
  for (std::uint32_t step = 0; step < 3; ++step) {
    float agreed = 0;
    for (const Compressor& worker : workers)
      agreed = std::max(agreed, worker.predicted_prices().grid);
    EXPECT_EQ(agreed > 0, step > 0);
    std::vector<Buffer> messages;
    for (std::uint16_t w = 0; w < 3; ++w) {
      Compressor& worker = workers[w];
      const auto x = heavy_tailed(shape.elements(), 10 * w + step);
      Buffer& payload = messages.emplace_back(worker.max_encoded_bytes(0));
      Buffer workspace(test::workspace_bytes(worker, 0));
      std::uint64_t bytes = 0;
      ASSERT_EQ(
          worker.begin_step({.step = step, .worker = w}, {worker.predicted_prices().atoms, agreed}),
          Status::ok);
      ASSERT_FALSE(failed(worker.encode_layer(0, {x.data(), DType::f32, shape},
                                              {payload.data(), payload.size(), &bytes},
                                              {.workspace = workspace})));
      ASSERT_FALSE(failed(worker.end_step()));
      payload.resize(bytes);
    }
    EXPECT_EQ(sum_of(messages).status, step == 0 ? Status::price_mismatch : Status::ok);
  }
}

TEST(Arithmetic, EmptyBodiesAreZerosOfAnyStep) {
  const Buffer zeros = message_of(Levels(100), 4.0f),
               some = message_of(random_levels(100, 0.5, 4, 1));
  EXPECT_EQ(sum_of({zeros, some, zeros}).bytes, some);
  EXPECT_EQ(sum_of({zeros, zeros}).bytes, zeros);
  Levels minus = levels_of(some);
  for (auto& level : minus) level = -level;
  EXPECT_EQ(sum_of({some, message_of(minus)}).bytes, zeros);
}

TEST(Arithmetic, OneNonFiniteLayerMakesTheSumNonFinite) {
  Model model("*=atomo:atoms=coordinate,delta=0.015625");
  const Buffer good = model.encode({.worker = 1}), bad = model.encode({.worker = 2}, 1, 0);
  for (const Sum& sum : {sum_of({good, bad}), sum_of({bad, good}), sum_of({bad, bad})}) {
    ASSERT_EQ(sum.status, Status::non_finite);
    ContainerInfo info;
    ASSERT_EQ(inspect(sum.bytes, info, true), Status::ok);
    EXPECT_TRUE(info.layers[0].non_finite);
    EXPECT_FALSE(info.layers[2].non_finite);
    EXPECT_GT(info.layers[2].kept, 0u);
  }
}

// ---- refusals

TEST(Arithmetic, WhatDoesNotBelongTogetherIsRefused) {
  const Levels levels = random_levels(100, 0.5, 4, 1);
  const Buffer message = message_of(levels);
  EXPECT_EQ(sum_of({message, message_of(levels, 2)}).status, Status::price_mismatch);
  EXPECT_EQ(sum_of({message, message_of(random_levels(101, 0.5, 4, 1))}).status,
            Status::shape_mismatch);
  EXPECT_EQ(sum_of({message, message_of(levels, 1, {.tensor = 1})}).status, Status::shape_mismatch);
  EXPECT_EQ(sum_of({}).status, Status::invalid_argument);
  const std::vector<float> x(100, 0.5f);
  const Buffer other = encode(Codec::parse("qsgd:bits=4"), x, {100}).bytes;
  EXPECT_EQ(sum_of({message, other}).status, Status::shape_mismatch);
  EXPECT_EQ(sum_of({other, other}).status, Status::unsupported);
  EXPECT_EQ(added_bytes_bound(std::vector<ConstBytes>{other}), 0u);
  Model named("*=atomo:atoms=coordinate,delta=0.015625", true),
      unnamed("*=atomo:atoms=coordinate,delta=0.015625");
  EXPECT_EQ(sum_of({named.encode({}), unnamed.encode({})}).status, Status::shape_mismatch);
  Model budget("*=atomo:bits=1,atoms=coordinate");
  EXPECT_EQ(sum_of({budget.encode({}), budget.encode({}, 8)}).status, Status::price_mismatch);
  Buffer flagged = message;
  for (const auto& [flag, status] :
       {std::pair{format::LayerRecord::kThinned, Status::corrupt},
        std::pair{format::LayerRecord::kCentred, Status::corrupt},
        std::pair{format::LayerRecord::kLossless, Status::unsupported}}) {
    flagged[66] = message[66] | static_cast<std::byte>(flag);
    ContainerInfo info;
    ASSERT_EQ(inspect(message, info), Status::ok);
    format::write_checksums(flagged, info.head_bytes);
    EXPECT_EQ(sum_of({message, flagged}).status, status);
  }
}

TEST(Arithmetic, MemoryIsGuarded) {
  std::vector<Buffer> m;
  for (std::uint64_t w = 0; w < 3; ++w) m.push_back(message_of(random_levels(40000, 0.3, 28, w)));
  const std::vector<ConstBytes> views(m.begin(), m.end());
  const Buffer expected = sum_of(m).bytes;
  const std::size_t work = add_workspace_bytes(3);
  Buffer workspace(work + 65, std::byte{0x5A}), payload(expected.size() + 64, std::byte{0xA5});
  std::uint64_t bytes = 77;
  for (std::size_t shift = 0; shift < 2; ++shift) {
    const Bytes room(workspace.data() + shift, work);
    EXPECT_EQ(add(views, room.first(work / 2), {payload.data(), payload.size(), &bytes}),
              Status::workspace_too_small);
    for (const std::size_t capacity : {std::size_t{0}, std::size_t{63}, std::size_t{90},
                                       expected.size() / 2, expected.size() - 1}) {
      std::fill(payload.begin(), payload.end(), std::byte{0xA5});
      EXPECT_EQ(add(views, room, {payload.data() + shift, capacity, &bytes}),
                Status::buffer_too_small);
      EXPECT_EQ(payload[shift + capacity], std::byte{0xA5});
      EXPECT_EQ(bytes, 77u);
    }
  }
  ASSERT_EQ(add(views, Bytes(workspace).first(work), {payload.data(), expected.size(), &bytes}),
            Status::ok);
  payload.resize(bytes);
  EXPECT_EQ(payload, expected);
  EXPECT_EQ(workspace[work + 1], std::byte{0x5A});
}

/// A narrow message, a wide one, and one with an own price in a model, to be damaged.
std::vector<Buffer> victims() {
  const Levels levels = random_levels(150, 0.6, 4, 3);
  const Buffer narrow = message_of(levels);
  Buffer wide = message_of(random_levels(150, 0.4, 28, 4));
  for (int i = 0; i < 6; ++i) wide = sum_of({wide, wide, narrow}).bytes;
  Buffer dense = message_of(random_levels(150, 1, 28, 5));
  for (int i = 0; i < 22; ++i) dense = sum_of({dense, dense}).bytes;
  return {narrow, wide, dense};
}

TEST(Arithmetic, TruncatedMessagesAreRefused) {
  for (const Buffer& victim : victims()) {
    for (std::size_t size = 0; size < victim.size(); ++size) {
      const Buffer cut(victim.begin(), victim.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_TRUE(failed(sum_of({victim, cut}).status));
      EXPECT_TRUE(failed(sum_of({cut, victim}).status));
    }
  }
}

/// Every bit flip, with checksums that hold: what decodes adds and gives a message that decodes;
/// what does not is refused.
TEST(Arithmetic, DamagedMessagesDoNoHarm) {
  std::size_t refused = 0, added = 0;
  const std::size_t step = sweep_step(5);
  for (const Buffer& victim : victims()) {
    ContainerInfo info;
    ASSERT_EQ(inspect(victim, info, true), Status::ok);
    for (std::size_t bit = 0; bit < 8 * victim.size(); bit += step) {
      Buffer damaged = victim;
      damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      if (bit / 8 >= info.head_bytes || (bit / 8 >= 64 && bit % 3 == 0))
        format::write_checksums(damaged, info.head_bytes);
      const Sum sum = sum_of({victim, damaged});
      (failed(sum.status) ? refused : added) += 1;
      if (failed(sum.status) || sum.status == Status::non_finite) continue;
      EXPECT_EQ(levels_of(sum.bytes), plus(levels_of(victim), levels_of(damaged)));
    }
    for (std::uint64_t seed = 0; seed < repeats(4000); ++seed) {
      const Buffer damaged = mutated_message(victim, seed);
      ContainerInfo changed;
      const Sum sum = sum_of({damaged, damaged});
      if (!failed(sum.status)) {
        EXPECT_FALSE(failed(inspect(damaged, changed, true)));
        EXPECT_FALSE(failed(inspect(sum.bytes, changed, true)));
      }
    }
  }
  EXPECT_GT(refused, 1000 / step);
  EXPECT_GT(added, 1000 / step);
}

}  // namespace
}  // namespace atomo::test
