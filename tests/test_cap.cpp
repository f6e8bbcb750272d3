// SPDX-License-Identifier: Apache-2.0
/// `cap=`: no message exceeds it, and the estimate stays unbiased while it binds.
#include <gtest/gtest.h>

#include "head.hpp"
#include "sketch_support.hpp"
#include "support.hpp"
#include "thinning.hpp"

namespace atomo {
namespace {

const Shape kShape{1024, 64};

/// K / (K - d) of a message of one layer, 1 when it is not thinned.
double gain_of(ConstBytes message) {
  detail::Head head;
  EXPECT_EQ(detail::Head::parse(message, true, head), Status::ok);
  detail::LayerCursor layer(head);
  Status status = Status::ok;
  EXPECT_TRUE(layer.next(status));
  if ((layer.row.flags & detail::Row::kThinned) == 0) return 1;
  std::uint32_t word = 0;
  std::memcpy(&word, layer.body.data(), sizeof word);
  detail::Thinning thinning;
  EXPECT_TRUE(detail::Thinning::read(word, thinning));
  return thinning.gain();
}

TEST(Cap, NoMessageExceedsIt) {
  const auto x = test::heavy_tailed(kShape.elements(), 5, 64);
  const auto cap_of = [](const char* spec) { return std::atof(std::strstr(spec, "cap=") + 4); };
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"atomo:bits=1,cap=1,atoms=rows", 10000},
      {"atomo:bits=1.5,cap=1.5,atoms=blocks", 1000},
      {"atomo:bits=1,cap=1,atoms=rows+blosc", 300},
      {"atomo:bits=1,cap=1,atoms=auto", 300}};
  for (const auto& [spec, messages] : cases) {
    const Codec codec = Codec::parse(spec);
    const auto limit =
        static_cast<std::size_t>(cap_of(spec) * static_cast<double>(kShape.elements()) / 8);
    int thinned = 0;
    for (std::uint64_t seed = 0; seed < messages; ++seed) {
      const auto m = test::encode(codec, x, kShape, {.seed = seed});
      ASSERT_FALSE(failed(m.status)) << describe(m.status);
      ASSERT_LE(m.bytes.size(), limit) << spec << " seed " << seed;
      if (seed % 8 != 0) continue;
      ContainerInfo info;
      ASSERT_EQ(inspect(m.bytes, info, true), Status::ok);
      thinned += info.layers[0].thinned ? 1 : 0;
      ASSERT_EQ(test::decode(codec, m.bytes, kShape).status, Status::ok);
    }
    EXPECT_GT(thinned, 5) << spec << ": the cap must bind for this test to say anything";
  }
}

/// Messages under a cap that binds, against their input.
struct Capped {
  std::vector<double> sum, square;  ///< of errors, an entry
  double projection = 0, projection_square = 0, ungained = 0;
  int bound = 0;

  Capped(const Codec& codec, const std::vector<float>& x, const Shape& shape, std::uint32_t draws)
      : sum(x.size()), square(x.size()) {
    const double energy = test::squared_norm(x);
    for (std::uint32_t step = 0; step < draws; ++step) {
      const auto m = test::encode(codec, x, shape, {.seed = 77, .step = step});
      const auto d = test::decode(codec, m.bytes, shape);
      EXPECT_EQ(d.status, Status::ok);
      const double gain = gain_of(m.bytes);
      bound += gain > 1 ? 1 : 0;
      double dot = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double e = double{d.values[i]} - x[i];
        sum[i] += e;
        square[i] += e * e;
        dot += e * x[i] / energy;
      }
      projection += dot;
      projection_square += dot * dot;
      ungained += (1 + dot) / gain - 1;  // what a decoder that forgets the gain would see
    }
  }
};

/// Every entry's mean over draws against its input, the cap binding in most messages: the largest
/// of the z-values stays below what as many normals reach with probability 1e-9, and a decoder
/// without the gain is far above.
void expect_unbiased(const char* spec, const std::vector<float>& x, const Shape& shape,
                     std::uint32_t draws) {
  const Capped capped(Codec::parse(spec), x, shape, draws);
  EXPECT_GT(capped.bound, static_cast<int>(draws / 4));
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (capped.square[i] > 0)
      largest = std::max(largest, std::fabs(capped.sum[i]) / std::sqrt(capped.square[i]));
  }
  const double error = std::sqrt(capped.projection_square);
  std::printf(
      "[ bias     ] %s: cap bound in %d of %u, largest z of %zu entries %.2f; along the "
      "gradient %.2f, without the gain %.2f\n",
      spec, capped.bound, draws, x.size(), largest, capped.projection / error,
      capped.ungained / error);
  EXPECT_LT(largest, 8.1);
  EXPECT_LT(std::fabs(capped.projection) / error, 6.2);
  EXPECT_GT(std::fabs(capped.ungained) / error, 6.2) << "the mutant without the gain must be seen";
}

TEST(Cap, UnbiasedWhileItBinds) {
  expect_unbiased("atomo:bits=1,cap=1,atoms=rows", test::heavy_tailed(kShape.elements(), 6, 64),
                  kShape, 1500);
}

/// A few outer products, and noise that rows are kept for.
std::vector<float> low_rank(const MatrixShape& shape) {
  auto x = test::gaussian_matrix(shape, 1, 4, 3);
  const auto noise = test::gaussian_matrix(shape, 0.1, 3);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += noise[i];
  return x;
}

/// Of a sketch pairs and rows are left out alike.
TEST(Cap, SketchesAreUnbiasedWhileItBinds) {
  expect_unbiased("atomo:bits=2,cap=2,atoms=sketch", low_rank({256, 100}), Shape{256, 100}, 3000);
}

TEST(Cap, SketchesNeverExceedIt) {
  const Shape shape{256, 100};
  const auto x = low_rank({256, 100});
  const Codec codec = Codec::parse("atomo:bits=2,cap=2,atoms=sketch");
  int thinned = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const auto m = test::encode(codec, x, shape, {.seed = seed});
    ASSERT_FALSE(failed(m.status));
    ASSERT_LE(m.bytes.size(), 2 * shape.elements() / 8) << seed;
    thinned += gain_of(m.bytes) > 1 ? 1 : 0;
  }
  EXPECT_GT(thinned, 100);
}

/// Thinned bodies take any bytes too.
void expect_statuses(const char* spec, const std::vector<float>& x, const Shape& shape) {
  const Codec codec = Codec::parse(spec);
  test::Message m;
  for (std::uint64_t seed = 0; seed < 1000 && (m.bytes.empty() || gain_of(m.bytes) == 1); ++seed)
    m = test::encode(codec, x, shape, {.seed = seed});
  ASSERT_GT(gain_of(m.bytes), 1);
  detail::Head head;
  ASSERT_EQ(detail::Head::parse(m.bytes, true, head), Status::ok);
  std::mt19937_64 generator(4);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    auto changed = m.bytes;
    const std::size_t at =
        head.head_bytes() +
        (i % 2 == 0 ? generator() % 12 : generator() % (m.bytes.size() - head.head_bytes()));
    changed[at] ^= static_cast<std::byte>(1 + generator() % 255);
    detail::write_checksums(changed, head.head_bytes());
    refused += failed(test::decode(codec, changed, shape).status) ? 1 : 0;
  }
  EXPECT_GT(refused, 1000);
}

TEST(Cap, MutatedThinnedMessagesGiveAStatus) {
  expect_statuses("atomo:bits=1,cap=1,atoms=rows", test::heavy_tailed(kShape.elements(), 6, 64),
                  kShape);
  expect_statuses("atomo:bits=2,cap=2,atoms=sketch", low_rank({256, 100}), Shape{256, 100});
}

TEST(Cap, ModelsKeepItWholeAndStreamed) {
  const test::RealGradient model;
  Compressor whole(model.specs, Policy::parse("*=atomo:bits=0.5,cap=0.505,atoms=rows")),
      streamed(model.specs, Policy::parse("*=atomo:bits=0.5,cap=0.505,atoms=rows"));
  const auto limit = static_cast<std::size_t>(0.505 * static_cast<double>(model.elements) / 8);
  std::vector<std::byte> bytes(whole.max_encoded_bytes()), workspace(whole.workspace_bytes());
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
  detail::Thinning t;
  EXPECT_TRUE(detail::Thinning::read(detail::Thinning{3, 7, 7}.word(), t));
  EXPECT_EQ(t.gain(), 8.0f);
  EXPECT_FALSE(detail::Thinning::read(detail::Thinning{3, 8, 0}.word(), t));
  EXPECT_FALSE(detail::Thinning::read(detail::Thinning{3, 1, 8}.word(), t));
  EXPECT_FALSE(detail::Thinning::read(detail::Thinning{3, 0, 0}.word(), t));
  EXPECT_FALSE(detail::Thinning::read(detail::Thinning{12, 1, 0}.word(), t));
}

}  // namespace
}  // namespace atomo
