// SPDX-License-Identifier: Apache-2.0
/// Majority votes of signs: counts are those of decoded messages, whatever their number, and hostile
/// bytes are refused as decoding refuses them.
#include <gtest/gtest.h>

#include <cmath>

#include "atomo/arithmetic.hpp"
#include "atomo/compressor.hpp"
#include "atomo/container.hpp"
#include "atomo/thread_pool.hpp"
#include "support/support.hpp"

namespace atomo::test {
namespace {

using Buffer = std::vector<std::byte>;

struct Voters {
  std::vector<Buffer> messages;
  std::vector<std::vector<float>> decoded;  ///< a message each

  [[nodiscard]] std::vector<ConstBytes> spans() const { return {messages.begin(), messages.end()}; }
};

/// Messages of entries that agree more in some places than in others; zeros are among them.
Voters voters(const char* spec, std::size_t n, std::size_t count) {
  Voters all;
  const auto common = heavy_tailed(n, 1);
  const Shape shape{static_cast<std::int64_t>(n)};
  Buffer workspace(decode_workspace_bytes(shape));
  for (std::size_t w = 0; w < count; ++w) {
    auto x = heavy_tailed(n, 100 * n + w);
    for (std::size_t i = 0; i < n; ++i) x[i] = i % 7 == 0 ? 0 : x[i] + common[i];
    all.messages.push_back(encode(Codec::parse(spec), x, shape, {.seed = 1}).bytes);
    std::vector<float> y(n);
    const TensorView view{y.data(), DType::f32, shape};
    EXPECT_EQ(atomo::decode(all.messages.back(), {&view, 1}, {.workspace = workspace}), Status::ok);
    all.decoded.push_back(std::move(y));
  }
  return all;
}

Status voted(const std::vector<ConstBytes>& messages, std::vector<float>& y,
             Executor* executor = nullptr) {
  Buffer workspace(vote_workspace_bytes(messages.size()));
  const TensorView view{y.data(), DType::f32, {static_cast<std::int64_t>(y.size())}};
  return vote(messages, {&view, 1}, {.workspace = workspace, .executor = executor});
}

TEST(Votes, AreTheSignsOfTheSums) {
  ThreadPool pool(2);
  for (const char* const spec : {"sign", "sign:scale=mean", "sign:scale=means,bucket=128"}) {
    for (const std::size_t n : {1u, 64u, 511u, 513u, 70'001u}) {
      for (const std::size_t count : {1u, 2u, 3u, 4u, 7u, 8u, 9u, 40u}) {
        if (n > 1000 && count != 8 && count != 9) continue;
        const Voters all = voters(spec, n, count);
        std::vector<float> y(n, 7), shared(n, 7);
        ASSERT_EQ(voted(all.spans(), y), Status::ok);
        ASSERT_EQ(voted(all.spans(), shared, &pool), Status::ok);
        ASSERT_EQ(y, shared);
        for (std::size_t i = 0; i < n; ++i) {
          int sum = 0;
          for (const auto& one : all.decoded) sum += std::signbit(one[i]) ? -1 : 1;
          ASSERT_EQ(y[i], static_cast<float>((sum > 0) - (sum < 0)))
              << spec << " " << n << " " << i;
        }
      }
    }
  }
}

TEST(Votes, OfAModelAreThoseOfItsLayers) {
  const std::vector<LayerSpec> layers{{"a", {5, 70}}, {"empty", {0}}, {"b", {129}}};
  Compressor model(layers, Policy::parse("b=sign:scale=mean;*=sign"));
  std::vector<Buffer> messages;
  std::vector<std::vector<float>> sums{std::vector<float>(350), {}, std::vector<float>(129)};
  std::vector<std::vector<float>> y = sums;
  for (std::uint16_t w = 0; w < 4; ++w) {
    std::vector<std::vector<float>> x{heavy_tailed(350, w + 1), {}, heavy_tailed(129, w + 9)};
    if (w == 3) x[2][5] = NAN;
    std::vector<ConstTensorView> views;
    for (std::size_t i = 0; i < 3; ++i) views.push_back({x[i].data(), DType::f32, layers[i].shape});
    Buffer payload(model.max_encoded_bytes()), room(model.encode_workspace_bytes());
    std::uint64_t bytes = 0;
    const Status status =
        model.encode(views, {.seed = 1, .worker = w}, {payload.data(), payload.size(), &bytes},
                     {.workspace = room});
    ASSERT_FALSE(failed(status));
    payload.resize(bytes);
    messages.push_back(payload);
    for (std::size_t i = 0; i < 350; ++i) sums[0][i] += x[0][i] < 0 ? -1.0f : 1.0f;
  }
  std::vector<TensorView> out;
  for (std::size_t i = 0; i < 3; ++i) out.push_back({y[i].data(), DType::f32, layers[i].shape});
  Buffer workspace(vote_workspace_bytes(4));
  const std::vector<ConstBytes> spans(messages.begin(), messages.end());
  ASSERT_EQ(vote(spans, out, {.workspace = workspace}), Status::non_finite);
  for (std::size_t i = 0; i < 350; ++i)
    ASSERT_EQ(y[0][i], static_cast<float>((sums[0][i] > 0) - (sums[0][i] < 0)));
  for (const float v : y[2]) ASSERT_TRUE(std::isnan(v));
  out.pop_back();
  EXPECT_EQ(vote(spans, out, {.workspace = workspace}), Status::shape_mismatch);
}

TEST(Votes, RefuseOtherMessagesAndViews) {
  const Voters all = voters("sign", 100, 3), other = voters("sign", 101, 1),
               scaled = voters("sign:scale=mean", 100, 1), levels = voters("qsgd:bits=2", 100, 1);
  std::vector<float> y(100);
  EXPECT_EQ(voted({}, y), Status::invalid_argument);
  EXPECT_EQ(voted(levels.spans(), y), Status::unsupported);
  std::vector<float> equal(5000, 1);  // which a lossless stage shrinks
  const Buffer packed = encode(Codec::parse("sign+blosc"), equal, {5000}).bytes;
  EXPECT_EQ(voted({packed, packed}, equal), Status::unsupported);
  EXPECT_EQ(voted({all.messages[0], other.messages[0]}, y), Status::shape_mismatch);
  EXPECT_EQ(voted({all.messages[0], scaled.messages[0]}, y), Status::shape_mismatch);
  std::vector<float> longer(101);
  EXPECT_EQ(voted(all.spans(), longer), Status::shape_mismatch);
  Buffer room(vote_workspace_bytes(3));
  const auto with = [&](const TensorView& view, std::size_t bytes) {
    return vote(all.spans(), {&view, 1}, {.workspace = Bytes(room).first(bytes)});
  };
  const Shape shape{100};
  EXPECT_EQ(with({y.data(), DType::f16, shape}, room.size()), Status::unsupported);
  EXPECT_EQ(with({y.data(), DType::f32, shape, Device::cuda}, room.size()), Status::unsupported);
  EXPECT_EQ(with({nullptr, DType::f32, shape}, room.size()), Status::invalid_argument);
  EXPECT_EQ(with({y.data(), DType::f32, shape}, 10), Status::workspace_too_small);
}

/// Every byte of one of three messages, changed and cut off: what decoding refuses a vote refuses alike.
TEST(Votes, HostileBytesAreRefusedAsByDecoding) {
  const Voters all = voters("sign:scale=means,bucket=128", 203, 3);
  const Shape shape{203};
  Buffer workspace(decode_workspace_bytes(shape));
  std::vector<float> y(203), decoded(203);
  const TensorView view{decoded.data(), DType::f32, shape};
  for (std::size_t at = 0; at < all.messages[1].size(); ++at) {
    for (const bool cut : {false, true}) {
      Buffer bad = all.messages[1];
      if (cut) {
        bad.resize(at);
      } else {
        bad[at] ^= std::byte{0x41};
      }
      const Status expected = atomo::decode(bad, {&view, 1}, {.workspace = workspace});
      const Status found = voted({all.messages[0], bad, all.messages[2]}, y);
      ASSERT_TRUE(failed(expected)) << at;
      ASSERT_EQ(found, expected) << at;
    }
  }
}

}  // namespace
}  // namespace atomo::test
