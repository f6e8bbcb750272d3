// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <thread>

#include "core/half.hpp"
#include "core/utf8.hpp"
#include "support/support.hpp"

namespace atomo {

using namespace model;
namespace {

/// A small convolutional network's layers; gradients of layers differ in scale by 100.
struct Model {
  std::vector<LayerSpec> specs{{"conv1.weight", {20, 1, 5, 5}},
                               {"conv1.bias", {20}},
                               {"conv2.weight", {50, 20, 5, 5}},
                               {"conv2.bias", {50}},
                               {"fc1.weight", {120, 800}},
                               {"fc1.bias", {120}},
                               {"fc2.weight", {10, 120}},
                               {"fc2.bias", {10}},
                               {"empty", {0, 4}}};
  std::vector<std::vector<float>> values;
  std::vector<ConstTensorView> views;

  explicit Model(std::uint64_t seed = 1, float scale = 1) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      auto x = test::heavy_tailed(specs[i].shape.elements(), seed + i, 50);
      const float layer_scale = scale * (i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.1f : 0.01f);
      for (auto& v : x) v *= layer_scale;
      values.push_back(std::move(x));
    }
    for (std::size_t i = 0; i < specs.size(); ++i)
      views.push_back({values[i].data(), DType::f32, specs[i].shape});
  }
  [[nodiscard]] std::vector<float> joined() const {
    std::vector<float> all;
    for (const auto& v : values) all.insert(all.end(), v.begin(), v.end());
    return all;
  }
};

test::Message encode(Compressor& c, const std::vector<ConstTensorView>& views, const Key& key,
                     Executor* executor = nullptr) {
  std::vector<std::byte> workspace(test::workspace_bytes(c));
  test::Message m;
  m.bytes.resize(c.max_encoded_bytes());
  std::uint64_t bytes = 0;
  Context context;
  context.workspace = workspace;
  context.executor = executor;
  m.status = c.encode(views, key, {m.bytes.data(), m.bytes.size(), &bytes}, context);
  m.bytes.resize(failed(m.status) ? 0 : bytes);
  return m;
}

std::vector<std::byte> encode_layer(Compressor& c, std::size_t i, const ConstTensorView& view) {
  std::vector<std::byte> workspace(test::workspace_bytes(c, i)), bytes(c.max_encoded_bytes(i));
  std::uint64_t used = 0;
  const Status s =
      c.encode_layer(i, view, {bytes.data(), bytes.size(), &used}, {.workspace = workspace});
  EXPECT_FALSE(failed(s)) << describe(s);
  bytes.resize(used);
  return bytes;
}

std::vector<float> decode(const Compressor& c, ConstBytes message) {
  std::vector<std::vector<float>> out;
  std::vector<TensorView> views;
  for (const auto& layer : c.layers()) out.emplace_back(layer.shape.elements());
  for (std::size_t i = 0; i < out.size(); ++i)
    views.push_back({out[i].data(), DType::f32, c.layers()[i].shape});
  std::vector<std::byte> workspace(test::workspace_bytes(c));
  const Status s = c.decode(message, views, {.workspace = workspace});
  EXPECT_FALSE(failed(s)) << describe(s);
  std::vector<float> all;
  for (const auto& v : out) all.insert(all.end(), v.begin(), v.end());
  return all;
}

std::vector<std::byte> join_all(const std::vector<std::vector<std::byte>>& layers) {
  const std::vector<ConstBytes> parts(layers.begin(), layers.end());
  std::vector<std::byte> out(joined_bytes_bound(parts));
  std::uint64_t bytes = 0;
  EXPECT_EQ(join(parts, {out.data(), out.size(), &bytes}), Status::ok);
  out.resize(bytes);
  return out;
}

const char* kPolicies[] = {
    "*=atomo:bits=1",
    "*=atomo:bits=0.25,atoms=blocks",
    "*=atomo:bits=1,atoms=coordinate",
    "*=atomo:bits=1,atoms=sketch",
    "fc*=atomo:bits=0.5,atoms=auto;*=atomo:bits=0.5",
    "*.bias=identity;fc*=qsgd:bits=4;*=atomo:bits=0.5",
    "conv*=atomo:bits=2;fc1*=atomo:bits=1,atoms=coordinate;*=topk:keep=0.1+blosc",
    "fc*=sign;*=sign:scale=mean"};

/// Layers that leave one by one, in any order and from several threads, are the whole model's
/// message at its price.
TEST(Compressor, StreamedLayersJoinToTheWholeMessage) {
  const Model model;
  for (const char* policy : kPolicies) {
    Compressor whole(model.specs, Policy::parse(policy)),
        streamed(model.specs, Policy::parse(policy));
    const Key key{.seed = 4, .step = 9, .worker = 2, .channel = 1};
    const auto reference = encode(whole, model.views, key);
    ASSERT_FALSE(failed(reference.status)) << policy << describe(reference.status);
    std::mt19937 generator(8);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::size_t> order(model.specs.size());
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), generator);
      std::vector<std::vector<std::byte>> parts(order.size());
      ASSERT_EQ(streamed.begin_step(key, whole.prices()), Status::ok);
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          for (std::size_t k = t; k < order.size(); k += 3) {
            parts[order[k]] = encode_layer(streamed, order[k], model.views[order[k]]);
          }
        });
      }
      for (auto& thread : threads) thread.join();
      ASSERT_FALSE(failed(streamed.end_step()));
      ASSERT_TRUE(join_all(parts) == reference.bytes) << policy << " round " << round;
    }
  }
}

TEST(Compressor, BytesDoNotDependOnThreads) {
  const Model model;
  for (const char* policy : kPolicies) {
    Compressor c(model.specs, Policy::parse(policy));
    const auto one = encode(c, model.views, {.seed = 3});
    for (const unsigned threads : {1u, 2u, 5u}) {
      ThreadPool pool(threads);
      EXPECT_TRUE(encode(c, model.views, {.seed = 3}, &pool).bytes == one.bytes) << policy;
    }
  }
}

/// On a real gradient the mean message of rows, blocks and sketches is within 1.5 % of the budget:
/// content that is not Gaussian costs a little less or more than the tables say. Coordinates stay
/// up to 5 % below it here, where a fifth of the entries are zeros in whole rows: their places cost
/// less than those of zeros strewn about, which is what a histogram can know.
TEST(Compressor, BudgetIsMetOnAverage) {
  const test::RealGradient model;
  for (const char* atoms : {"rows", "blocks", "coordinate", "sketch", "auto"}) {
    for (const double bits : {0.25, 0.5, 1.0, 2.0, 4.0}) {
      const std::string spec = "atomo:bits=" + std::to_string(bits) + ",atoms=" + atoms;
      Compressor c(model.specs, Policy(Codec::parse(spec)));
      double mean = 0;
      bool underspent = false;
      const int draws = 20;
      for (int k = 0; k < draws; ++k) {
        const auto m = encode(c, model.views, {.seed = static_cast<std::uint64_t>(k)});
        ASSERT_FALSE(failed(m.status));
        underspent = underspent || m.status == Status::underspent;
        mean +=
            8.0 * static_cast<double>(m.bytes.size()) / static_cast<double>(model.elements) / draws;
      }
      std::printf("[ size     ] %-40s %.4f bits a parameter\n", spec.c_str(), mean);
      EXPECT_LT(mean, 1.015 * bits) << spec;
      // Held up by the lowest price at which every form of every layer can be sent.
      const bool at_floor = spec.find("auto") != std::string::npos && bits == 4;
      EXPECT_EQ(underspent, at_floor) << spec;
      if (underspent) continue;
      EXPECT_GT(mean, (spec.find("coordinate") == std::string::npos ? 0.985 : 0.95) * bits) << spec;
    }
  }
}

/// A form chosen for every layer costs no error at the same budget: less than rows and sketches.
TEST(Compressor, ChosenFormsBeatOneForAll) {
  const test::RealGradient model;
  const auto x = model.joined();
  for (const double bits : {0.25, 1.0}) {
    const auto error_of = [&](const std::string& atoms) {
      Compressor c(model.specs,
                   Policy(Codec::parse("atomo:bits=" + std::to_string(bits) + ",atoms=" + atoms)));
      double error = 0;
      for (std::uint64_t k = 0; k < 20; ++k)
        error += test::nmse(x, decode(c, encode(c, model.views, {.seed = k}).bytes)) / 20;
      return error;
    };
    const double chosen = error_of("auto"), rows = error_of("rows"), blocks = error_of("blocks"),
                 sketches = error_of("sketch");
    std::printf("[ nmse     ] %g bits: chosen %.4f, rows %.4f, blocks %.4f, sketches %.4f\n", bits,
                chosen, rows, blocks, sketches);
    EXPECT_LT(chosen, rows);
    EXPECT_LT(chosen, blocks);
    EXPECT_LT(chosen, 1.01 * sketches);
  }
}

/// One price for the model against the same budget spent layer by layer.
TEST(Compressor, OnePriceBeatsEqualBitsALayer) {
  const test::RealGradient model;
  const auto x = model.joined();
  for (const char* spec :
       {"atomo:bits=1", "atomo:bits=0.5,atoms=blocks", "atomo:bits=1,atoms=coordinate"}) {
    Compressor shared(model.specs, Policy(Codec::parse(spec))),
        alone(model.specs, Policy(Codec::parse(spec)));
    double shared_error = 0, alone_error = 0, shared_bytes = 0, alone_bytes = 0;
    for (std::uint64_t k = 0; k < 20; ++k) {
      const auto m = encode(shared, model.views, {.seed = k});
      shared_error += test::nmse(x, decode(shared, m.bytes));
      shared_bytes += static_cast<double>(m.bytes.size());
      ASSERT_EQ(alone.begin_step({.seed = k}, Prices{}),
                Status::ok);  // each layer solves for its own price
      std::vector<std::vector<std::byte>> parts;
      for (std::size_t i = 0; i < model.views.size(); ++i)
        parts.push_back(encode_layer(alone, i, model.views[i]));
      ASSERT_FALSE(failed(alone.end_step()));
      const auto joined = join_all(parts);
      alone_error += test::nmse(x, decode(alone, joined));
      alone_bytes += static_cast<double>(joined.size());
    }
    EXPECT_LT(shared_bytes, 1.03 * alone_bytes) << spec;
    std::printf("[ nmse     ] %-40s one price %.4f, layer by layer %.4f\n", spec, shared_error / 20,
                alone_error / 20);
    EXPECT_LT(shared_error, alone_error) << spec;
  }
}

/// Streamed on a real gradient that changes a little from step to step and jumps by 100 once:
/// within 2 % of the budget on average, and back within 5 steps.
TEST(Compressor, ControllerHoldsTheBudgetAndRecovers) {
  const test::RealGradient model;
  Compressor c(model.specs, Policy::parse("*=atomo:bits=1"));
  std::mt19937 generator(2);
  std::normal_distribution<float> normal;
  double settled = 0, recovered = 0;
  for (std::uint32_t step = 0; step < 60; ++step) {
    auto values = model.values;
    for (auto& layer : values) {
      const float scale = (step < 40 ? 1.0f : 100.0f) * std::exp(0.1f * normal(generator));
      for (auto& v : layer) v *= scale;
    }
    ASSERT_EQ(c.begin_step({.seed = 1, .step = step}), Status::ok);
    double bytes = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      bytes += static_cast<double>(
          encode_layer(c, i, {values[i].data(), DType::f32, model.specs[i].shape}).size());
    }
    ASSERT_FALSE(failed(c.end_step()));
    if (step >= 3 && step < 40) settled += bytes / 37;
    if (step >= 45) recovered += bytes / 15;
  }
  std::printf("[ size     ] settled at %.4f of the budget, recovered to %.4f\n",
              settled / c.budget_bytes(), recovered / c.budget_bytes());
  EXPECT_NEAR(settled / c.budget_bytes(), 1.0, 0.02);
  EXPECT_NEAR(recovered / c.budget_bytes(), 1.0, 0.05);
}

TEST(Compressor, PredictedPriceBelowALayersLowestStillEncodes) {
  const Model small(1, 1e-6f), large(1, 1e6f);
  Compressor c(small.specs, Policy::parse("*=atomo:bits=4"));
  ASSERT_EQ(c.begin_step({.seed = 1}), Status::ok);
  for (std::size_t i = 0; i < small.views.size(); ++i) (void)encode_layer(c, i, small.views[i]);
  ASSERT_FALSE(failed(c.end_step()));
  ASSERT_EQ(c.begin_step({.seed = 1, .step = 1}), Status::ok);
  std::vector<std::vector<std::byte>> parts;
  for (std::size_t i = 0; i < large.views.size(); ++i)
    parts.push_back(encode_layer(c, i, large.views[i]));
  EXPECT_LT(test::nmse(large.joined(), decode(c, join_all(parts))), 0.01);
}

TEST(Compressor, AllWorkersMessagesAddInRankOrder) {
  const Model model;
  Compressor c(model.specs, Policy::parse("*=atomo:bits=1"));
  std::vector<std::vector<std::byte>> messages;
  for (std::uint16_t w = 0; w < 4; ++w)
    messages.push_back(encode(c, model.views, {.seed = 1, .worker = w}).bytes);
  const std::vector<ConstBytes> spans(messages.begin(), messages.end());
  std::vector<std::byte> workspace(test::workspace_bytes(c));
  std::vector<std::vector<float>> at_once = model.values, one_by_one = model.values;
  std::vector<TensorView> a, b;
  for (std::size_t i = 0; i < at_once.size(); ++i) {
    a.push_back({at_once[i].data(), DType::f32, c.layers()[i].shape});
    b.push_back({one_by_one[i].data(), DType::f32, c.layers()[i].shape});
  }
  ASSERT_EQ(c.decode_add_all(spans, 0.25f, a, {.workspace = workspace}), Status::ok);
  for (const auto& m : spans)
    ASSERT_EQ(c.decode_add(m, 0.25f, b, {.workspace = workspace}), Status::ok);
  EXPECT_TRUE(at_once == one_by_one);
}

/// Half models are added in f32 and rounded once.
TEST(Compressor, HalfModelsAreRoundedOnce) {
  const std::vector<LayerSpec> specs{{"w", {32, 40}, DType::bf16}, {"b", {32}, DType::f32}};
  Compressor c(specs, Policy::parse("*=identity"));
  std::vector<std::uint16_t> w(32 * 40), sum(w.size());
  std::vector<float> b(32, 0.5f), b_sum(32);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] = static_cast<std::uint16_t>(0x3F80 + i % 128);  // 1 .. 2
  const std::vector<ConstTensorView> views{{w.data(), DType::bf16, {32, 40}},
                                           {b.data(), DType::f32, {32}}};
  const auto m = encode(c, views, {.seed = 1});
  ASSERT_EQ(m.status, Status::ok);
  const ConstBytes messages[] = {m.bytes, m.bytes, m.bytes};
  std::vector<std::byte> workspace(test::workspace_bytes(c));
  const std::vector<TensorView> out{{sum.data(), DType::bf16, {32, 40}},
                                    {b_sum.data(), DType::f32, {32}}};
  ASSERT_EQ(c.decode_add_all(messages, 1.0f, out, {.workspace = workspace}), Status::ok);
  for (std::size_t i = 0; i < w.size(); ++i) {
    const float exact = 3 * from_bf16(w[i]), y = from_bf16(sum[i]);
    ASSERT_LE(std::fabs(y - exact), exact / 128) << i;
  }
  for (const float v : b_sum) ASSERT_EQ(v, 1.5f);
}

TEST(Compressor, NonFiniteLayersAreLeftOutOfThePrice) {
  Model model, broken;
  broken.values[4][17] = INFINITY;
  broken.views[4].data = broken.values[4].data();
  Compressor c(model.specs, Policy::parse("*=atomo:bits=1"));
  const auto m = encode(c, broken.views, {.seed = 1});
  EXPECT_EQ(m.status, Status::non_finite);
  EXPECT_GT(c.prices().atoms, 0);
  const auto y = decode(c, m.bytes);
  const auto x = broken.joined();
  std::size_t at = 0;
  for (std::size_t i = 0; i < broken.values.size(); ++i) {
    for (std::size_t k = 0; k < broken.values[i].size(); ++k, ++at)
      ASSERT_EQ(std::isnan(y[at]), i == 4);
  }
}

/// Four steps, the last of them by a model that was loaded as well. `limits` layers are under a cap,
/// and `ranks` sketches learn theirs.
void expect_saved_state_continues(const char* policy, std::size_t limits, std::size_t ranks) {
  const Model model;
  Compressor c(model.specs, Policy::parse(policy)), resumed(model.specs, Policy::parse(policy));
  for (std::uint32_t step = 0; step < 3; ++step) {
    ASSERT_EQ(c.begin_step({.step = step}), Status::ok);
    for (std::size_t i = 0; i < model.views.size(); ++i) (void)encode_layer(c, i, model.views[i]);
    ASSERT_FALSE(failed(c.end_step()));
  }
  const auto state = c.save();
  EXPECT_EQ(state.size(), 80 + 8 * limits + 8 * ((ranks + 3) / 4));
  resumed.load(state);
  ASSERT_EQ(c.begin_step({.step = 3}), Status::ok);
  ASSERT_EQ(resumed.begin_step({.step = 3}), Status::ok);
  EXPECT_GT(c.prices().atoms, 0);
  for (std::size_t i = 0; i < model.views.size(); ++i) {
    EXPECT_TRUE(encode_layer(c, i, model.views[i]) == encode_layer(resumed, i, model.views[i]))
        << i;
  }
  auto damaged = state;
  damaged[0] ^= std::byte{1};
  EXPECT_THROW(resumed.load(damaged), Error);
  EXPECT_THROW(resumed.load(ConstBytes(state).first(state.size() - 1)), Error);
  EXPECT_THROW(resumed.load(ConstBytes(state).first(40)), Error);
  if (limits == 0) return;
  damaged = state;
  damaged[80 + 8 * limits - 1] ^= std::byte{1};  // a layer would take more than all may together
  EXPECT_THROW(resumed.load(damaged), Error);
}

TEST(Compressor, SavedStateContinuesTheSameBytes) {
  expect_saved_state_continues("*=atomo:bits=0.5", 0, 4);
  expect_saved_state_continues("*=atomo:bits=0.5,rank=8", 0, 0);
  expect_saved_state_continues("*=atomo:bits=0.5,atoms=rows", 0, 0);
}

TEST(Compressor, SavedStateContinuesTheSameBytesUnderACap) {
  std::size_t layers = 0;  // those that have something to be capped
  for (const auto& spec : Model().specs) layers += spec.shape.elements() > 0 ? 1 : 0;
  expect_saved_state_continues("*=atomo:bits=4,cap=4", layers, 4);
}

TEST(Compressor, SaysWhatAMessageIsExpectedToTake) {
  const Model model;
  for (const std::string policy :
       {"*=qsgd:bits=3", "*=atomo:bits=1", "*=identity", "a=sign;*=atomo:bits=2"}) {
    Compressor c(model.specs, Policy::parse(policy));
    const auto expected = c.expected_bytes();
    ASSERT_TRUE(expected.has_value()) << policy;
    const auto bytes = encode(c, model.views, {.seed = 1}).bytes.size();
    EXPECT_NEAR(static_cast<double>(*expected) / static_cast<double>(bytes), 1, 0.05) << policy;
  }
  EXPECT_EQ(Compressor(model.specs, Policy::parse("*=qsgd+blosc")).expected_bytes(), std::nullopt);
}

TEST(Compressor, SetUpMistakesAreNamed) {
  EXPECT_THROW(Compressor({}, Policy::parse("*=sign")), Error);
  EXPECT_THROW(Compressor({{"a", {2}}, {"a", {3}}}, Policy::parse("*=sign")), Error);
  EXPECT_THROW(Compressor({{"b", {2}}}, Policy::parse("a=sign")), Error);
}

TEST(Compressor, WrongCallsAreRefused) {
  const Model model;
  Compressor c(model.specs, Policy::parse("*=sign"));
  std::vector<std::byte> workspace(test::workspace_bytes(c)), out(c.max_encoded_bytes());
  std::uint64_t bytes = 0;
  const Payload payload{out.data(), out.size(), &bytes};
  EXPECT_EQ(c.encode_layer(0, model.views[0], payload, {.workspace = workspace}),
            Status::wrong_stage);
  EXPECT_EQ(c.end_step(), Status::wrong_stage);
  EXPECT_EQ(c.begin_step({.tensor = 1}), Status::invalid_argument);
  EXPECT_EQ(c.begin_step({}, {.atoms = 0.1f}),
            Status::invalid_argument);  // 0.1f is no price: its low bits are not zero
  ASSERT_EQ(c.begin_step({}), Status::ok);
  EXPECT_EQ(c.begin_step({}), Status::wrong_stage);
  EXPECT_EQ(c.encode_layer(99, model.views[0], payload, {.workspace = workspace}),
            Status::shape_mismatch);
  EXPECT_EQ(c.encode_layer(1, model.views[0], payload, {.workspace = workspace}),
            Status::shape_mismatch);
  EXPECT_EQ(c.encode(model.views, {}, payload, {.workspace = workspace}), Status::wrong_stage);
  EXPECT_THROW(c.load(c.save()), Error);
  EXPECT_THROW(c.reset_memory(), Error);
  ASSERT_FALSE(failed(c.end_step()));
  auto fewer = model.views;
  fewer.pop_back();
  EXPECT_EQ(c.encode(fewer, {}, payload, {.workspace = workspace}), Status::shape_mismatch);
  EXPECT_EQ(c.encode(model.views, {}, {out.data(), 100, &bytes}, {.workspace = workspace}),
            Status::buffer_too_small);
}

TEST(CompressorSetUp, RefusesNamesThatAreNotUtf8) {
  const auto make = [](const std::string& name) {
    return Compressor({{"a", {3}}, {name, {4}}}, Policy::parse("sign"), {.names_on_wire = true});
  };
  for (const std::string good : {"w\u00e9ight", "\u20ac", "\U0001F600", "a\tb"})
    EXPECT_NO_THROW((void)make(good)) << good;
  for (const auto& [bad, at] :
       std::vector<std::pair<std::string, std::string>>{{"bad\xff.npy", "byte 3"},
                                                        {"\xc0\x80", "byte 0"},
                                                        {"x\xed\xa0\x80", "byte 1"},
                                                        {"ab\xe2\x82", "byte 2"},
                                                        {"\xf4\x90\x80\x80", "byte 0"},
                                                        {"\xe0\x9f\xbf", "byte 0"}}) {
    try {
      (void)make(bad);
      ADD_FAILURE() << at;
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("layer 1"), std::string::npos) << text;
      EXPECT_NE(text.find(at), std::string::npos) << text;
      EXPECT_EQ(core::shown(text), text) << "the message itself is not UTF-8";
    }
  }
}

TEST(CompressorSetUp, SaysWhatIsWrongWithAState) {
  Compressor model({{"a", {30}}}, Policy::parse("atomo:bits=1"));
  const auto good = model.save();
  const auto text_of = [&](const std::vector<std::byte>& state) {
    try {
      model.load(state);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(text_of(good), "");
  EXPECT_NE(text_of(std::vector<std::byte>(71)).find("found 71"), std::string::npos);
  EXPECT_NE(text_of(std::vector<std::byte>(good.size())).find("\\x00"), std::string::npos);
  auto bad = good;
  std::fill(bad.begin() + 8, bad.begin() + 72, std::byte{0xFF});
  EXPECT_NE(text_of(bad).find("price"), std::string::npos) << text_of(bad);
}

}  // namespace
}  // namespace atomo
