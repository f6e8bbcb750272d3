// SPDX-License-Identifier: Apache-2.0
/// Several messages added in one call are the messages added one after the other: the same bits, and a
/// status for each.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "atomo/thread_pool.hpp"
#include "support/mutated_messages.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

using Sent = std::vector<std::vector<std::byte>>;

std::vector<ConstBytes> spans(const Sent& sent) { return {sent.begin(), sent.end()}; }

/// Numbers to add to, with what sums must not lose: zeros of both signs, subnormals, infinities.
std::vector<float> start(std::size_t n) {
  std::vector<float> y = test::heavy_tailed(n, 77, 30);
  for (std::size_t i = 0; i < n; i += 13) y[i] = -0.0f;
  for (std::size_t i = 5; i < n; i += 101) y[i] = 1e-41f;
  if (n > 3) y[3] = std::numeric_limits<float>::infinity();
  return y;
}

Sent messages_of(const Codec& codec, const Shape& shape, std::size_t workers) {
  Sent sent;
  for (std::size_t w = 0; w < workers; ++w) {
    const auto x = test::heavy_tailed(shape.elements(), w + 1, 40);
    sent.push_back(
        test::encode(codec, x, shape, {.seed = 9, .worker = static_cast<std::uint16_t>(w)}).bytes);
  }
  return sent;
}

struct Outcome {
  Status status = Status::ok;
  std::vector<Status> each;
  std::vector<float> y;
};

Outcome one_after_another(const Codec& codec, const Sent& sent, const Shape& shape) {
  std::vector<std::byte> room(codec.decode_workspace_bytes(shape));
  Outcome outcome{Status::ok, {}, start(shape.elements())};
  for (const auto& message : sent) {
    outcome.each.push_back(codec.decode_add(
        message, -0.3f, {.data = outcome.y.data(), .shape = shape}, {.workspace = room}));
    if (failed(outcome.status)) continue;
    outcome.status =
        failed(outcome.each.back()) ? outcome.each.back() : outcome.status | outcome.each.back();
  }
  return outcome;
}

Outcome together(const Codec& codec, const Sent& sent, const Shape& shape,
                 Executor* executor = nullptr) {
  std::vector<std::byte> room(codec.decode_workspace_bytes(shape));
  Outcome outcome{Status::ok, std::vector<Status>(sent.size(), Status::wrong_stage),
                  start(shape.elements())};
  Status reported = Status::wrong_stage;
  outcome.status =
      codec.decode_add_all(spans(sent), -0.3f, {.data = outcome.y.data(), .shape = shape},
                           {.workspace = room,
                            .executor = executor,
                            .status = &reported,
                            .statuses = outcome.each.data()});
  EXPECT_EQ(reported, outcome.status);
  return outcome;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

void expect_alike(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.status, b.status);
  EXPECT_EQ(a.each, b.each);
  if (!failed(a.status)) {
    EXPECT_TRUE(same_bits(a.y, b.y));
  }
}

class AddAll : public testing::TestWithParam<std::string> {
 protected:
  const Codec codec = Codec::parse(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Specs, AddAll, testing::ValuesIn(test::all_specs()));

TEST_P(AddAll, IsOneMessageAfterAnother) {
  ThreadPool three(3);
  for (const Shape& shape : {Shape{1}, Shape{31}, Shape{0, 4}, Shape{33, 40}, Shape{61, 131}}) {
    const Sent all = messages_of(codec, shape, 17);
    for (const std::size_t count : {0, 1, 2, 3, 8, 9, 17}) {
      SCOPED_TRACE(shape.to_string() + ", " + std::to_string(count) + " messages");
      const Sent sent(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
      const Outcome expected = one_after_another(codec, sent, shape);
      expect_alike(together(codec, sent, shape), expected);
      expect_alike(together(codec, sent, shape, &three), expected);
    }
  }
}

/// Where a layer is added in stretches.
TEST_P(AddAll, IsOneMessageAfterAnotherInALargeLayer) {
  if (GetParam().find("svd") != std::string::npos) return;  // minutes of LAPACK
  ThreadPool three(3);
  const Shape shape = test::in_turns()   ? Shape{151, 503}
                      : test::kSanitized ? Shape{301, 503}
                                         : Shape{601, 1003};
  const Sent sent = messages_of(codec, shape, 3);
  const Outcome expected = one_after_another(codec, sent, shape);
  expect_alike(together(codec, sent, shape), expected);
  expect_alike(together(codec, sent, shape, &three), expected);
}

/// Layers that choose a form, in messages of other forms, some of them empty; rows that are longer than a stretch.
TEST(AddAllOfForms, IsOneMessageAfterAnother) {
  ThreadPool three(3);
  const std::size_t n = test::kSanitized ? 160'000 : 480'000;
  for (const std::int64_t rows : {2, 400}) {
    const Shape shape{rows, static_cast<std::int64_t>(n) / rows};
    const MatrixShape view{static_cast<std::size_t>(rows), n / static_cast<std::size_t>(rows)};
    const std::array tensors{test::gaussian_matrix(view, 1, 3, 4), test::heavy_tailed(n, 4, 900),
                             test::gaussian_matrix(view, 1, 5, 2), std::vector<float>(n),
                             test::heavy_tailed(n, 6, 256)};
    for (const char* const spec :
         {"atomo:bits=0.5", "atomo:bits=4", "atomo:bits=1,atoms=sketch,rank=9",
          "atomo:bits=20,cap=20,atoms=sketch,rank=9", "atomo:bits=1,atoms=rows"}) {
      SCOPED_TRACE(shape.to_string() + " " + spec);
      const Codec codec = Codec::parse(spec);
      Sent sent;
      for (const std::size_t which : {0, 2, 3, 1, 1, 4, 0, 3, 2, 0})
        sent.push_back(test::encode(codec, tensors[which], shape,
                                    {.worker = static_cast<std::uint16_t>(sent.size())})
                           .bytes);
      const Outcome expected = one_after_another(codec, sent, shape);
      EXPECT_FALSE(failed(expected.status));
      expect_alike(together(codec, sent, shape), expected);
      expect_alike(together(codec, sent, shape, &three), expected);
    }
  }
}

/// Of a message whose damage shows in its checksum nothing is added; the others are.
TEST_P(AddAll, NamesTheMessageThatIsRefused) {
  const Shape shape{33, 40};
  const Sent sound = messages_of(codec, shape, 9);
  for (const std::size_t broken : {std::size_t{0}, std::size_t{4}, std::size_t{8}}) {
    Sent sent = sound;
    sent[broken][sent[broken].size() / 2] ^= std::byte{1};
    const Outcome outcome = together(codec, sent, shape);
    EXPECT_TRUE(failed(outcome.status));
    for (std::size_t m = 0; m < sent.size(); ++m)
      EXPECT_EQ(outcome.each[m], m == broken ? outcome.status : Status::ok) << m;
    sent[broken].resize(sent[broken].size() / 2);
    EXPECT_EQ(together(codec, sent, shape).each[broken], Status::truncated);
  }
}

/// Bytes that pass the checksums: each message is judged as it is alone.
TEST_P(AddAll, JudgesDamagedMessagesAsAlone) {
  ThreadPool three(3);
  const Shape shape{33, 40};
  const Sent sound = messages_of(codec, shape, 3);
  std::size_t refused = 0;
  for (std::uint64_t seed = 0; seed < test::repeats(300); ++seed) {
    SCOPED_TRACE(seed);
    Sent sent = sound;
    sent[seed % 3] = test::mutated_message(sent[seed % 3], seed);
    if (seed % 4 == 0) sent[(seed + 1) % 3] = test::mutated_message(sent[(seed + 1) % 3], seed + 1);
    const Outcome expected = one_after_another(codec, sent, shape);
    refused += failed(expected.status) ? 1 : 0;
    expect_alike(together(codec, sent, shape), expected);
    expect_alike(together(codec, sent, shape, &three), expected);
  }
  EXPECT_GT(refused, 0u);
}

TEST(AddAllOfOneTensor, RefusesOtherCodecsAndShapes) {
  const Shape shape{33, 40};
  const Codec codec = Codec::parse("sign");
  Sent sent = messages_of(codec, shape, 4);
  sent[1] = messages_of(Codec::parse("terngrad"), shape, 1)[0];
  sent[2] = messages_of(codec, Shape{40, 33}, 1)[0];
  const Outcome outcome = together(codec, sent, shape);
  EXPECT_EQ(outcome.each,
            (std::vector{Status::ok, Status::codec_mismatch, Status::shape_mismatch, Status::ok}));
  EXPECT_EQ(outcome.status, Status::codec_mismatch);
}

/// A model of several codecs, whose messages come with layers of their own kind, with one that is not
/// finite, and with entries that were halves.
class AddAllOfAModel : public testing::Test {
 protected:
  static constexpr const char* kPolicy =
      "a*=atomo:bits=1; b*=qsgd:bits=4; c*=sign; d*=topk:keep=0.1; "
      "e*=atomo:bits=1,atoms=coordinate; "
      "*=identity";

  AddAllOfAModel() : model(layers(DType::f32), Policy::parse(kPolicy)) {
    for (const LayerSpec& layer : model.layers()) before.push_back(start(layer.shape.elements()));
    room.resize(model.decode_workspace_bytes());
  }

  static std::vector<LayerSpec> layers(DType dtype) {
    return {{"a", {40, 33}, dtype}, {"b", {1001}, dtype}, {"c", {7, 9}, dtype}, {"d", {500}, dtype},
            {"e", {50, 20}, dtype}, {"f", {0, 3}, dtype}, {"g", {17}, dtype}};
  }

  /// A message of a model of these layers; the layer `broken` has a NaN.
  std::vector<std::byte> message(std::uint16_t worker, std::size_t broken = 99,
                                 const char* policy = kPolicy, DType dtype = DType::f32) const {
    Compressor sender(layers(dtype), Policy::parse(policy));
    std::vector<std::vector<float>> values;
    std::vector<std::vector<std::uint16_t>> halves;
    std::vector<ConstTensorView> views;
    for (const LayerSpec& layer : sender.layers()) {
      auto& x = values.emplace_back(test::heavy_tailed(layer.shape.elements(), worker + 5, 20));
      if (values.size() - 1 == broken) x[x.size() / 2] = std::numeric_limits<float>::quiet_NaN();
      auto& half = halves.emplace_back();
      bool overflow = false;
      for (const float v : x) half.push_back(to_bf16(v, overflow));
      const void* const data =
          dtype == DType::f32 ? static_cast<const void*>(x.data()) : half.data();
      views.push_back({data, dtype, layer.shape});
    }
    std::vector<std::byte> bytes(sender.max_encoded_bytes()), work(sender.encode_workspace_bytes());
    std::uint64_t used = 0;
    EXPECT_FALSE(failed(sender.encode(views, {.seed = 3, .worker = worker},
                                      {bytes.data(), bytes.size(), &used}, {.workspace = work})));
    bytes.resize(used);
    return bytes;
  }

  std::vector<TensorView> views(std::vector<std::vector<float>>& y) const {
    std::vector<TensorView> made;
    for (std::size_t i = 0; i < y.size(); ++i)
      made.push_back({y[i].data(), DType::f32, model.layers()[i].shape});
    return made;
  }

  /// Adds them in one call and one by one; the call's statuses.
  std::vector<Status> expect_alike(const Sent& sent, Executor* executor = nullptr) {
    auto at_once = before, one_by_one = before;
    const auto to = views(at_once), to_one = views(one_by_one);
    std::vector<Status> each(sent.size()), expected;
    const Status status = model.decode_add_all(
        spans(sent), 0.25f, to, {.workspace = room, .executor = executor, .statuses = each.data()});
    Status all = Status::ok;
    for (const auto& m : sent) {
      expected.push_back(model.decode_add(m, 0.25f, to_one, {.workspace = room}));
      if (!failed(all)) all = failed(expected.back()) ? expected.back() : all | expected.back();
    }
    EXPECT_EQ(each, expected);
    EXPECT_EQ(status, all);
    for (std::size_t i = 0; i < at_once.size() && !failed(status); ++i)
      EXPECT_TRUE(same_bits(at_once[i], one_by_one[i])) << "layer " << i;
    return each;
  }

  Compressor model;
  std::vector<std::vector<float>> before;
  std::vector<std::byte> room;
};

TEST_F(AddAllOfAModel, IsOneMessageAfterAnother) {
  ThreadPool three(3);
  Sent sent;
  for (std::uint16_t w = 0; w < 11; ++w) {
    sent.push_back(message(w));
    expect_alike(sent);
    expect_alike(sent, &three);
  }
}

TEST_F(AddAllOfAModel, TakesLayersThatAreNotFinite) {
  for (std::size_t layer = 0; layer < model.layers().size(); ++layer) {
    if (model.layers()[layer].shape.elements() == 0) continue;
    const auto each = expect_alike({message(0), message(1, layer), message(2), message(3, layer)});
    EXPECT_EQ(each, (std::vector{Status::ok, Status::non_finite, Status::ok, Status::non_finite}));
  }
}

/// On the CPU a message says itself what its layers are; those of one kind go together.
TEST_F(AddAllOfAModel, TakesOtherCodecsAndDtypes) {
  expect_alike({message(0), message(1, 99, "*=sign"), message(2), message(3),
                message(4, 99, kPolicy, DType::bf16), message(5, 99, "*=qsgd:bits=2+blosc"),
                message(6, 99, "*=qsgd:bits=2+blosc"), message(7)});
}

TEST_F(AddAllOfAModel, NamesMessagesOfOtherLayers) {
  Compressor other({{"a", {40, 33}}}, Policy::parse("*=sign"));
  const std::vector<float> x(40 * 33, 1.0f);
  const ConstTensorView view{x.data(), DType::f32, {40, 33}};
  std::vector<std::byte> bytes(other.max_encoded_bytes()), work(other.encode_workspace_bytes());
  std::uint64_t used = 0;
  ASSERT_EQ(other.encode({&view, 1}, {}, {bytes.data(), bytes.size(), &used}, {.workspace = work}),
            Status::ok);
  bytes.resize(used);
  EXPECT_EQ(expect_alike({message(0), message(1), bytes, message(2)}),
            (std::vector{Status::ok, Status::ok, Status::shape_mismatch, Status::ok}));
}

TEST_F(AddAllOfAModel, JudgesDamagedMessagesAsAlone) {
  const Sent sound{message(0), message(1), message(2)};
  std::size_t refused = 0;
  for (std::uint64_t seed = 0; seed < test::repeats(400); ++seed) {
    SCOPED_TRACE(seed);
    Sent sent = sound;
    sent[seed % 3] = test::mutated_message(sent[seed % 3], seed);
    const auto each = expect_alike(sent);
    refused += std::any_of(each.begin(), each.end(), [](Status s) { return failed(s); }) ? 1 : 0;
  }
  EXPECT_GT(refused, 0u);
}

/// Without room for the layers of the largest kind nothing is written.
TEST_F(AddAllOfAModel, NeedsItsWorkspace) {
  const Sent sent{message(0), message(1)};
  auto y = before;
  const auto to = views(y);
  EXPECT_EQ(model.decode_add_all(spans(sent), 1, to, {}), Status::workspace_too_small);
}

}  // namespace
}  // namespace atomo
