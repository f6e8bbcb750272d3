// SPDX-License-Identifier: Apache-2.0
/// Whole models through the C interface, beside a Compressor that does the same.
#include "c_support.hpp"

namespace atomo {
namespace {

using test::Buffer;
using test::CContext;

const char* const kPolicies[] = {"*=atomo:bits=1",
                                 "*.bias=identity;fc*=qsgd:bits=4;*=atomo:bits=0.5",
                                 "fc1*=atomo:bits=1,atoms=coordinate;*=topk:keep=0.1+blosc"};

/// A model in C and in C++, gradients, and room for what is decoded in C.
struct Twins {
  explicit Twins(const char* text, CompressorOptions options = {})
      : model(gradient.specs, Policy::parse(text), options) {
    std::vector<atomo_layer> layers;
    for (const LayerSpec& s : gradient.specs) {
      layers.push_back({s.name.c_str(), s.shape.dims().data(), s.shape.rank(),
                        static_cast<atomo_dtype>(s.dtype), 0});
    }
    atomo_compressor_options chosen{};
    chosen.names_on_wire = options.names_on_wire ? 1 : 0;
    atomo_compressor* made = nullptr;
    EXPECT_EQ(atomo_compressor_create(layers.data(), layers.size(), text, &chosen, &made), ATOMO_OK)
        << atomo_last_error();
    handle.reset(made);
    for (std::size_t i = 0; i < gradient.specs.size(); ++i) {
      inputs.push_back(test::c_tensor(static_cast<const void*>(gradient.values[i].data()),
                                      gradient.specs[i].shape));
      values.emplace_back(gradient.values[i].size(), 0.5f);
      outputs.push_back(
          test::c_tensor(static_cast<void*>(values[i].data()), gradient.specs[i].shape));
      expected.emplace_back(gradient.values[i].size(), 0.5f);
      views.push_back({expected[i].data(), DType::f32, gradient.specs[i].shape});
    }
    workspace.resize(test::workspace_bytes(model));
  }
  [[nodiscard]] std::size_t count() const { return inputs.size(); }
  [[nodiscard]] Context cpp() { return {.workspace = workspace}; }
  /// By the C interface.
  Buffer encode(const Key& key, atomo_threads* threads = nullptr) {
    const CContext context(test::workspace_bytes(model), threads);
    Buffer message(model.max_encoded_bytes());
    std::uint64_t bytes = 0;
    const auto k = test::c_key(key);
    const auto status =
        atomo_compressor_encode(handle.get(), inputs.data(), count(), &k, message.data(),
                                message.size(), &bytes, context.get());
    EXPECT_EQ(atomo_failed(status), 0) << atomo_last_error();
    message.resize(bytes);
    return message;
  }
  /// By C++.
  Buffer encode_twin(const Key& key) {
    Buffer message(model.max_encoded_bytes());
    std::uint64_t bytes = 0;
    EXPECT_FALSE(
        failed(model.encode(gradient.views, key, {message.data(), message.size(), &bytes}, cpp())));
    message.resize(bytes);
    return message;
  }

  test::RealGradient gradient;
  Compressor model;
  test::Owned<atomo_compressor> handle;
  std::vector<atomo_const_tensor> inputs;
  std::vector<std::vector<float>> values, expected;
  std::vector<atomo_tensor> outputs;
  std::vector<TensorView> views;
  Buffer workspace;
};

TEST(CModel, SizesAndLayersAreThoseOfCpp) {
  Twins t(kPolicies[1]);
  atomo_compressor* const c = t.handle.get();
  std::size_t layers = 0, bytes = 0;
  ASSERT_EQ(atomo_compressor_layers(c, &layers), ATOMO_OK);
  ASSERT_EQ(layers, t.model.layers().size());
  EXPECT_EQ(atomo_compressor_max_encoded_bytes(c, &bytes), ATOMO_OK);
  EXPECT_EQ(bytes, t.model.max_encoded_bytes());
  EXPECT_EQ(atomo_compressor_encode_workspace_bytes(c, &bytes), ATOMO_OK);
  EXPECT_EQ(bytes, t.model.encode_workspace_bytes());
  EXPECT_EQ(atomo_compressor_decode_workspace_bytes(c, &bytes), ATOMO_OK);
  EXPECT_EQ(bytes, t.model.decode_workspace_bytes());
  std::uint64_t expected = 0;
  EXPECT_EQ(atomo_compressor_expected_bytes(c, &expected), ATOMO_OK);
  EXPECT_EQ(expected, t.model.expected_bytes().value_or(0));
  EXPECT_EQ(atomo_compressor_wire_bytes(c, &bytes), ATOMO_OK);
  EXPECT_EQ(bytes, 0);  // a budget without a cap
  const Twins fixed("*=qsgd");
  EXPECT_EQ(atomo_compressor_wire_bytes(fixed.handle.get(), &bytes), ATOMO_OK);
  EXPECT_EQ(bytes, fixed.model.wire_bytes().value_or(0));
  EXPECT_GT(bytes, 0);
  std::uint64_t elements = 0;
  EXPECT_EQ(atomo_compressor_elements(c, &elements), ATOMO_OK);
  EXPECT_EQ(elements, t.model.elements());
  double budget = 0;
  EXPECT_EQ(atomo_compressor_budget_bytes(c, &budget), ATOMO_OK);
  EXPECT_EQ(budget, t.model.budget_bytes());
  EXPECT_EQ(atomo_compressor_set_budget_share(c, 0.5), ATOMO_OK);
  double half = 0;
  EXPECT_EQ(atomo_compressor_budget_bytes(c, &half), ATOMO_OK);
  EXPECT_EQ(half, 0.5 * budget);
  EXPECT_EQ(atomo_compressor_set_budget_share(c, 1), ATOMO_OK);
  EXPECT_NE(atomo_compressor_set_budget_share(c, 0), ATOMO_OK);
  EXPECT_EQ(std::string(atomo_last_error()),
            "the share of the budget is 0; expected from 1/1024 to 1024");
  EXPECT_NE(atomo_compressor_set_budget_share(nullptr, 1), ATOMO_OK);
  EXPECT_NE(atomo_budget_shares(nullptr, 3, 1, 0.25, 0.5, nullptr), ATOMO_OK);
  double shares[3] = {0, 1, 0.5};
  EXPECT_EQ(atomo_budget_shares(shares, 3, 1, 0.25, 0.5, shares), ATOMO_OK);
  EXPECT_EQ(std::vector<double>(shares, shares + 3),
            budget_shares(std::vector<double>{0, 1, 0.5}, 1, 0.25, 0.5));
  EXPECT_GT(budget, 0);
  for (std::size_t i = 0; i < layers; ++i) {
    atomo_layer layer;
    ASSERT_EQ(atomo_compressor_layer(c, i, &layer), ATOMO_OK);
    const LayerSpec& spec = t.model.layers()[i];
    EXPECT_EQ(layer.name, spec.name);
    EXPECT_EQ(Shape(std::span(layer.dims, static_cast<std::size_t>(layer.rank))), spec.shape);
    EXPECT_EQ(layer.dtype, ATOMO_F32);
    EXPECT_EQ(atomo_compressor_layer_max_encoded_bytes(c, i, &bytes), ATOMO_OK);
    EXPECT_EQ(bytes, t.model.max_encoded_bytes(i));
    EXPECT_EQ(atomo_compressor_layer_encode_workspace_bytes(c, i, &bytes), ATOMO_OK);
    EXPECT_EQ(bytes, t.model.encode_workspace_bytes(i));
    EXPECT_EQ(atomo_compressor_layer_decode_workspace_bytes(c, i, &bytes), ATOMO_OK);
    EXPECT_EQ(bytes, t.model.decode_workspace_bytes(i));
    atomo_codec* codec = nullptr;
    ASSERT_EQ(atomo_compressor_codec(c, i, &codec), ATOMO_OK);
    const test::Owned<atomo_codec> owned(codec);
    char text[128];
    ASSERT_EQ(atomo_codec_spec(codec, text, sizeof text, nullptr), ATOMO_OK);
    EXPECT_EQ(text, t.model.codec(i).to_string());
  }
}

TEST(CModel, WholeMessagesAreTheSame) {
  for (const char* const policy : kPolicies) {
    SCOPED_TRACE(policy);
    for (const bool names : {false, true}) {
      Twins t(policy, {.names_on_wire = names});
      const Key key{.seed = 3, .step = 8, .worker = 5, .channel = 1};
      const Buffer message = t.encode(key);
      ASSERT_EQ(message, t.encode_twin(key));
      const CContext context(test::workspace_bytes(t.model));
      EXPECT_EQ(atomo_compressor_decode(t.handle.get(), message.data(), message.size(),
                                        t.outputs.data(), t.count(), context.get()),
                ATOMO_OK);
      EXPECT_EQ(t.model.decode(message, t.views, t.cpp()), Status::ok);
      EXPECT_EQ(t.values, t.expected);
    }
  }
}

TEST(CModel, MessagesOfLayersOneByOneAreTheSame) {
  for (const char* const policy : kPolicies) {
    SCOPED_TRACE(policy);
    Twins t(policy);
    const Key key{.seed = 3, .step = 8, .worker = 5, .channel = 1};
    const auto k = test::c_key(key);
    const CContext context(test::workspace_bytes(t.model));
    Buffer message(t.model.max_encoded_bytes());
    std::uint64_t bytes = 0;
    EXPECT_EQ(atomo_compressor_add_layer(t.handle.get(), 0, &t.inputs[0], nullptr),
              ATOMO_WRONG_STAGE);
    EXPECT_EQ(atomo_compressor_end_message(t.handle.get(), nullptr), ATOMO_WRONG_STAGE);
    const auto begin = [&] {
      return atomo_compressor_begin_message(t.handle.get(), &k, message.data(), message.size(),
                                            &bytes, context.get());
    };
    ASSERT_EQ(begin(), ATOMO_OK) << atomo_last_error();
    EXPECT_EQ(begin(), ATOMO_WRONG_STAGE);
    EXPECT_EQ(atomo_compressor_begin_step(t.handle.get(), &k), ATOMO_WRONG_STAGE);
    for (std::size_t i = t.count(); i-- > 0;)
      EXPECT_EQ(atomo_compressor_add_layer(t.handle.get(), i, &t.inputs[i], nullptr), ATOMO_OK);
    const atomo_status status = atomo_compressor_end_message(t.handle.get(), nullptr);
    EXPECT_LE(status, ATOMO_OVERSPENT);
    EXPECT_EQ(Buffer(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(bytes)),
              t.encode_twin(key));

    ASSERT_EQ(begin(), ATOMO_OK);
    EXPECT_EQ(atomo_compressor_end_message(t.handle.get(), nullptr), ATOMO_WRONG_STAGE);
    EXPECT_EQ(begin(), ATOMO_OK) << "a message that lacks layers is ended too";
  }
}

TEST(CModel, MessagesAreAddedInTheirOrder) {
  Twins t(kPolicies[0]);
  const Buffer messages[] = {t.encode({.seed = 3, .worker = 0}), t.encode({.seed = 3, .worker = 1}),
                             t.encode({.seed = 3, .worker = 2})};
  std::vector<atomo_bytes> list;
  for (const Buffer& m : messages) list.push_back({m.data(), m.size()});
  const std::vector<ConstBytes> spans(std::begin(messages), std::end(messages));
  const CContext context(test::workspace_bytes(t.model));
  EXPECT_EQ(atomo_compressor_decode_add_all(t.handle.get(), list.data(), list.size(), 0.3f,
                                            t.outputs.data(), t.count(), context.get()),
            ATOMO_OK);
  EXPECT_EQ(t.model.decode_add_all(spans, 0.3f, t.views, t.cpp()), Status::ok);
  EXPECT_EQ(t.values, t.expected);
  EXPECT_EQ(atomo_compressor_decode_add(t.handle.get(), list[1].data, list[1].bytes, -2.0f,
                                        t.outputs.data(), t.count(), context.get()),
            ATOMO_OK);
  EXPECT_EQ(t.model.decode_add(spans[1], -2.0f, t.views, t.cpp()), Status::ok);
  EXPECT_EQ(t.values, t.expected);
  EXPECT_NE(t.values[0], std::vector<float>(t.values[0].size(), 0.5f));
}

/// Layers, tensors and messages of any codec too; each message has a status of its own.
TEST(CModel, MessagesOfALayerAreAddedInTheirOrder) {
  const auto codec = test::c_codec("qsgd:bits=4");
  const Shape shape{30, 20};
  const Codec twin = Codec::parse("qsgd:bits=4");
  std::vector<Buffer> messages;
  for (const std::uint64_t seed : {1u, 2u, 3u})
    messages.push_back(
        test::encode(twin, test::heavy_tailed(shape.elements(), seed), shape, {.seed = seed})
            .bytes);
  std::vector<atomo_bytes> list;
  for (const Buffer& m : messages) list.push_back({m.data(), m.size()});
  const std::vector<ConstBytes> spans(messages.begin(), messages.end());
  std::vector<float> expected(shape.elements(), 0.5f);
  std::vector<std::byte> room(decode_workspace_bytes(shape));
  ASSERT_EQ(twin.decode_add_all(spans, -0.3f, {.data = expected.data(), .shape = shape},
                                {.workspace = room}),
            Status::ok);

  const int64_t dims[] = {30, 20};
  const atomo_layer layer = {"only", dims, 2, ATOMO_F32, 0};
  atomo_compressor* model = nullptr;
  ASSERT_EQ(atomo_compressor_create(&layer, 1, "qsgd:bits=4", nullptr, &model), ATOMO_OK);
  CContext context(room.size());
  std::vector<atomo_status> each(3, ATOMO_CORRUPT);
  context.context.statuses = each.data();
  for (const int call : {0, 1, 2}) {
    SCOPED_TRACE(call);
    std::vector<float> y(shape.elements(), 0.5f);
    const auto tensor = test::c_tensor(y.data(), shape, DType::f32);
    const auto add = [&] {
      if (call == 0)
        return atomo_codec_decode_add_all(codec.get(), list.data(), 3, -0.3f, &tensor,
                                          context.get());
      if (call == 1) return atomo_decode_add_all(list.data(), 3, -0.3f, &tensor, 1, context.get());
      return atomo_compressor_decode_layer_add_all(model, 0, list.data(), 3, -0.3f, &tensor,
                                                   context.get());
    };
    ASSERT_EQ(add(), ATOMO_OK) << atomo_last_error();
    EXPECT_EQ(y, expected);
    EXPECT_EQ(each, std::vector<atomo_status>(3, ATOMO_OK));
    list[1].bytes -= 4;
    EXPECT_EQ(add(), ATOMO_TRUNCATED);
    EXPECT_EQ(each, (std::vector<atomo_status>{ATOMO_OK, ATOMO_TRUNCATED, ATOMO_OK}));
    list[1].bytes += 4;
  }
  atomo_compressor_destroy(model);
}

/// One streamed step of both, layer by layer; what is decoded of the last layer is compared too.
void stream_step(Twins& t, const Key& key) {
  for (std::size_t i = 0; i < t.count(); ++i) {
    const CContext context(test::workspace_bytes(t.model, i));
    Buffer here(t.model.max_encoded_bytes(i)), there(here.size());
    std::uint64_t bytes = 0, twin_bytes = 0;
    ASSERT_EQ(atomo_compressor_encode_layer(t.handle.get(), i, &t.inputs[i], here.data(),
                                            here.size(), &bytes, context.get()),
              ATOMO_OK)
        << atomo_last_error();
    ASSERT_EQ(t.model.encode_layer(i, t.gradient.views[i],
                                   {there.data(), there.size(), &twin_bytes}, t.cpp()),
              Status::ok);
    here.resize(bytes);
    there.resize(twin_bytes);
    ASSERT_EQ(here, there) << key.step << " " << i;
    EXPECT_EQ(atomo_compressor_decode_layer(t.handle.get(), i, here.data(), here.size(),
                                            &t.outputs[i], context.get()),
              ATOMO_OK);
    EXPECT_EQ(t.model.decode_layer(i, there, t.views[i], t.cpp()), Status::ok);
    EXPECT_EQ(atomo_compressor_decode_layer_add(t.handle.get(), i, here.data(), here.size(), 3.0f,
                                                &t.outputs[i], context.get()),
              ATOMO_OK);
    EXPECT_EQ(t.model.decode_layer_add(i, there, 3.0f, t.views[i], t.cpp()), Status::ok);
    EXPECT_EQ(t.values[i], t.expected[i]);
  }
}

void expect_same_prices(Twins& t) {
  atomo_prices p;
  ASSERT_EQ(atomo_compressor_prices(t.handle.get(), &p), ATOMO_OK);
  EXPECT_EQ((Prices{p.atoms, p.grid}), t.model.prices());
  ASSERT_EQ(atomo_compressor_predicted_prices(t.handle.get(), &p), ATOMO_OK);
  EXPECT_EQ((Prices{p.atoms, p.grid}), t.model.predicted_prices());
}

TEST(CModel, StreamedStepsLearnTheSame) {
  for (const char* const policy : kPolicies) {
    SCOPED_TRACE(policy);
    Twins t(policy);
    for (std::uint32_t step = 0; step < 3; ++step) {
      const Key key{.seed = 3, .step = step, .worker = 5};
      const auto k = test::c_key(key);
      if (step == 2) {
        const atomo_prices prices = {0.25f, 0.5f};
        ASSERT_EQ(atomo_compressor_begin_step_at(t.handle.get(), &k, &prices), ATOMO_OK);
        ASSERT_EQ(t.model.begin_step(key, {0.25f, 0.5f}), Status::ok);
      } else {
        ASSERT_EQ(atomo_compressor_begin_step(t.handle.get(), &k), ATOMO_OK);
        ASSERT_EQ(t.model.begin_step(key), Status::ok);
      }
      stream_step(t, key);
      expect_same_prices(t);
      const auto status = atomo_compressor_end_step(t.handle.get(), nullptr);
      EXPECT_EQ(status, static_cast<atomo_status>(t.model.end_step()));
      expect_same_prices(t);
    }
  }
}

TEST(CModel, WhatItLearntIsSavedAndLoaded) {
  Twins t(kPolicies[0]), other(kPolicies[0]);
  (void)t.encode({.seed = 3});
  (void)t.encode_twin({.seed = 3});
  const auto expected = t.model.save();
  std::size_t needed = 0;
  ASSERT_EQ(atomo_compressor_save(t.handle.get(), nullptr, 0, &needed), ATOMO_OK);
  ASSERT_EQ(needed, expected.size());
  Buffer state(needed);
  EXPECT_EQ(atomo_compressor_save(t.handle.get(), state.data(), needed - 1, &needed),
            ATOMO_BUFFER_TOO_SMALL);
  ASSERT_EQ(atomo_compressor_save(t.handle.get(), state.data(), state.size(), nullptr), ATOMO_OK);
  EXPECT_EQ(state, expected);
  ASSERT_EQ(atomo_compressor_load(other.handle.get(), state.data(), state.size()), ATOMO_OK);
  other.model.load(expected);
  expect_same_prices(other);
  atomo_prices prices;
  ASSERT_EQ(atomo_compressor_predicted_prices(other.handle.get(), &prices), ATOMO_OK);
  EXPECT_GT(prices.atoms, 0);
  EXPECT_EQ(atomo_compressor_load(other.handle.get(), state.data(), state.size() - 1),
            ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error()).find("not a saved compressor state"),
            std::string::npos);
}

TEST(CModel, MemoriesAreTheCppOnes) {
  Twins t("*.bias=identity;*=ef+topk:keep=0.1");
  for (std::uint32_t step = 0; step < 3; ++step)
    EXPECT_EQ(t.encode({.step = step}), t.encode_twin({.step = step}));
  for (const bool reset : {false, true}) {
    if (reset) {
      EXPECT_EQ(atomo_compressor_reset_memory(t.handle.get()), ATOMO_OK);
      t.model.reset_memory();
    }
    for (std::size_t i = 0; i < t.count(); ++i) {
      const std::vector<float> expected = t.model.memory(i);
      std::size_t needed = 1;
      ASSERT_EQ(atomo_compressor_memory(t.handle.get(), i, nullptr, 0, &needed), ATOMO_OK);
      ASSERT_EQ(needed, expected.size());
      std::vector<float> found(needed + 1, 7.0f);
      EXPECT_EQ(atomo_compressor_memory(t.handle.get(), i, found.data(), needed, nullptr),
                ATOMO_OK);
      EXPECT_EQ(found.back(), 7.0f);
      found.pop_back();
      EXPECT_EQ(found, expected);
      if (needed > 0) {
        EXPECT_EQ(atomo_compressor_memory(t.handle.get(), i, found.data(), needed - 1, nullptr),
                  ATOMO_BUFFER_TOO_SMALL);
      }
    }
  }
  float value = 0;
  EXPECT_EQ(atomo_compressor_memory(t.handle.get(), t.count(), &value, 1, nullptr),
            ATOMO_INVALID_ARGUMENT);
  EXPECT_EQ(atomo_compressor_reset_memory(nullptr), ATOMO_INVALID_ARGUMENT);

  atomo_codec *codec = nullptr, *plain = nullptr, *sign = nullptr;
  ASSERT_EQ(atomo_codec_create("dgc+sign", &codec), ATOMO_OK);
  ASSERT_EQ(atomo_codec_create("sign", &sign), ATOMO_OK);
  ASSERT_EQ(atomo_codec_without_memory(codec, &plain), ATOMO_OK);
  atomo_traits of_codec, of_plain;
  ASSERT_EQ(atomo_codec_traits(codec, &of_codec), ATOMO_OK);
  ASSERT_EQ(atomo_codec_traits(plain, &of_plain), ATOMO_OK);
  EXPECT_EQ(of_codec.memory, 1);
  EXPECT_EQ(of_plain.memory, 0);
  std::int32_t equal = 0;
  EXPECT_EQ(atomo_codec_equal(plain, sign, &equal), ATOMO_OK);
  EXPECT_EQ(equal, 1);
  std::size_t bytes = 0;
  const std::int64_t dims[] = {9};
  EXPECT_EQ(atomo_codec_encode_workspace_bytes(codec, dims, 1, ATOMO_F32, ATOMO_CPU, &bytes),
            ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error()).find("Compressor"), std::string::npos);
  for (atomo_codec* each : {codec, plain, sign}) atomo_codec_destroy(each);
}

TEST(CModel, PoliciesSayWhatTheySayInCpp) {
  const Policy policy = Policy::parse(kPolicies[2]);
  for (const bool without : {false, true}) {
    char text[512];
    ASSERT_EQ(atomo_policy_text(kPolicies[2], without ? 1 : 0, text, sizeof text, nullptr),
              ATOMO_OK);
    EXPECT_EQ(text, (without ? policy.without_lossless() : policy).to_string());
  }
  for (const char* const layer : {"fc1.weight", "conv1.weight"}) {
    atomo_codec* codec = nullptr;
    ASSERT_EQ(atomo_policy_codec(kPolicies[2], layer, &codec), ATOMO_OK);
    const test::Owned<atomo_codec> owned(codec);
    char text[128];
    ASSERT_EQ(atomo_codec_spec(codec, text, sizeof text, nullptr), ATOMO_OK);
    EXPECT_EQ(text, policy.codec_for(layer).to_string());
  }
  // A device's model has no lossless stages.
  const std::int64_t dims[] = {40, 40};
  const atomo_layer layer{"w", dims, 2, ATOMO_F32, 0};
  atomo_compressor_options options{};
  options.without_lossless = 1;
  atomo_compressor* made = nullptr;
  ASSERT_EQ(atomo_compressor_create(&layer, 1, kPolicies[2], &options, &made), ATOMO_OK);
  const test::Owned<atomo_compressor> model(made);
  atomo_codec* codec = nullptr;
  ASSERT_EQ(atomo_compressor_codec(made, 0, &codec), ATOMO_OK);
  const test::Owned<atomo_codec> owned(codec);
  char text[128];
  ASSERT_EQ(atomo_codec_spec(codec, text, sizeof text, nullptr), ATOMO_OK);
  EXPECT_EQ(text, policy.codec_for("w").without_lossless().to_string());
}

TEST(CModel, PartsAreTheCppOnes) {
  Twins t(kPolicies[0]);
  atomo_compressor* made = nullptr;
  ASSERT_EQ(atomo_compressor_part(t.handle.get(), 1, 2, &made), ATOMO_OK) << atomo_last_error();
  const test::Owned<atomo_compressor> part(made);
  Compressor twin = t.model.part(1, 2);
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Key key{.seed = 2, .step = step};
    const auto k = test::c_key(key);
    ASSERT_EQ(atomo_compressor_begin_step(t.handle.get(), &k), ATOMO_OK);
    ASSERT_EQ(t.model.begin_step(key), Status::ok);
    std::vector<ConstTensorView> views;
    for (std::size_t i = 1; i < 3; ++i)
      views.push_back({t.gradient.values[i].data(), DType::f32, t.gradient.specs[i].shape});
    Buffer found(twin.max_encoded_bytes()), expected(found.size());
    std::uint64_t bytes = 0, length = 0;
    const CContext context(test::workspace_bytes(twin), nullptr);
    ASSERT_EQ(atomo_failed(atomo_compressor_encode(made, t.inputs.data() + 1, 2, &k, found.data(),
                                                   found.size(), &bytes, context.get())),
              0);
    ASSERT_FALSE(
        failed(twin.encode(views, key, {expected.data(), expected.size(), &length}, t.cpp())));
    found.resize(bytes);
    expected.resize(length);
    EXPECT_EQ(found, expected) << step;
    ASSERT_EQ(atomo_failed(atomo_compressor_end_step(t.handle.get(), context.get())), 0);
    ASSERT_FALSE(failed(t.model.end_step()));
  }
  atomo_compressor* none = made;
  EXPECT_NE(atomo_compressor_part(t.handle.get(), 1, 100, &none), ATOMO_OK);
  EXPECT_EQ(none, nullptr);
}

TEST(CModel, ThreadsDoNotChangeTheBytes) {
  Twins t(kPolicies[1]);
  const Key key{.seed = 9};
  const Buffer alone = t.encode(key);
  atomo_threads* pool = nullptr;
  ASSERT_EQ(atomo_threads_create(3, &pool), ATOMO_OK);
  const test::Owned<atomo_threads> owned(pool);
  EXPECT_EQ(t.encode(key, pool), alone);

  std::size_t calls = 0;
  const atomo_run backwards = [](void* user, std::size_t count, atomo_task task, void* state) {
    *static_cast<std::size_t*>(user) += count;
    for (std::size_t i = count; i-- > 0;) task(state, i);
  };
  atomo_threads* callers = nullptr;
  ASSERT_EQ(atomo_threads_from(backwards, &calls, &callers), ATOMO_OK);
  const test::Owned<atomo_threads> also_owned(callers);
  EXPECT_EQ(t.encode(key, callers), alone);
  EXPECT_GE(calls, t.count());
}

/// A call from within a caller's `run` has arguments of its own.
TEST(CModel, CallsWithinACallDoNotChangeItsBytes) {
  Twins t(kPolicies[1]), other("*=qsgd:bits=4");
  for (std::size_t i = 0; i < other.count(); ++i) other.inputs[i].data = other.values[i].data();
  const Buffer alone = t.encode({.seed = 9}), of_other = other.encode({.seed = 1});
  const atomo_run run = [](void* user, std::size_t count, atomo_task task, void* state) {
    static_cast<void>(static_cast<Twins*>(user)->encode({.seed = 1}));
    for (std::size_t i = 0; i < count; ++i) task(state, i);
  };
  atomo_threads* callers = nullptr;
  ASSERT_EQ(atomo_threads_from(run, &other, &callers), ATOMO_OK);
  const test::Owned<atomo_threads> owned(callers);
  EXPECT_EQ(t.encode({.seed = 9}, callers), alone);
  EXPECT_EQ(other.encode({.seed = 1}), of_other);
}

}  // namespace
}  // namespace atomo
