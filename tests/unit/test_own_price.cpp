// SPDX-License-Identifier: Apache-2.0
/// Registered codecs with a budget: they share one price with each other and with atoms, and what their
/// tables may say.
#include <limits>

#include "price/settings.hpp"
#include "support/own_codecs.hpp"
#include "support/support.hpp"

namespace atomo::test {
namespace {

const Shape kShape{64, 50};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::vector<float> uniform(std::size_t n, float largest) {
  std::mt19937_64 generator(3);
  std::uniform_real_distribution<float> draw(-largest, largest);
  std::vector<float> x(n);
  for (float& v : x) v = draw(generator);
  return x;
}

/// Three layers whose scales differ by 100.
struct Gradients {
  std::vector<LayerSpec> layers{{"large", kShape}, {"small", kShape}, {"atoms", {50, 60}}};
  std::vector<std::vector<float>> values;
  std::vector<ConstTensorView> views;

  Gradients() {
    float scale = 1;
    for (const LayerSpec& layer : layers) {
      values.push_back(uniform(layer.shape.elements(), scale));
      scale *= scale == 1 ? 0.01f : 10;
    }
    for (std::size_t i = 0; i < layers.size(); ++i)
      views.push_back({values[i].data(), DType::f32, layers[i].shape});
  }
  [[nodiscard]] Compressor model(const std::string& policy) const {
    return Compressor(layers, Policy::parse(policy));
  }
};

struct Sent {
  Status status = Status::ok;
  std::size_t bytes = 0;
  double squared_error = 0;
  std::vector<std::size_t> layer_bytes;
};

/// What messages of a policy come to on average.
Sent sent(const Gradients& gradients, const std::string& policy, std::uint32_t messages = 20) {
  Compressor model = gradients.model(policy);
  std::vector<std::byte> workspace(workspace_bytes(model)), room(model.max_encoded_bytes());
  std::vector<std::vector<float>> out;
  std::vector<TensorView> views;
  for (const auto& layer : gradients.layers) out.emplace_back(layer.shape.elements());
  for (std::size_t i = 0; i < out.size(); ++i)
    views.push_back({out[i].data(), DType::f32, gradients.layers[i].shape});
  Sent mean;
  for (std::uint32_t step = 0; step < messages; ++step) {
    std::uint64_t bytes = 0;
    mean.status |= model.encode(gradients.views, {.seed = 1, .step = step},
                                {room.data(), room.size(), &bytes}, {.workspace = workspace});
    const ConstBytes message(room.data(), bytes);
    EXPECT_FALSE(failed(model.decode(message, views, {.workspace = workspace})));
    ContainerInfo info;
    EXPECT_EQ(inspect(message, info), Status::ok);
    mean.layer_bytes.clear();
    for (const LayerInfo& layer : info.layers) mean.layer_bytes.push_back(layer.bytes);
    mean.bytes += static_cast<std::size_t>(bytes);
    for (std::size_t i = 0; i < out.size(); ++i)
      mean.squared_error += nmse(gradients.values[i], out[i]) * squared_norm(gradients.values[i]);
  }
  mean.bytes /= messages;
  mean.squared_error /= messages;
  return mean;
}

TEST(OwnPrice, SharesABudgetWithAtomsWhereItPays) {
  const Registered registered(graded_definition());
  const Gradients gradients;
  const std::string shared = "atoms=atomo:bits=2; *=graded:bits=2";
  const double budget = gradients.model(shared).budget_bytes();
  const Sent one_price = sent(gradients, shared);
  const Sent fixed = sent(gradients, "atoms=atomo:bits=2; *=graded:bits=2,setting=1");
  EXPECT_EQ(one_price.status, Status::ok);
  EXPECT_LE(static_cast<double>(one_price.bytes), 1.02 * budget);
  EXPECT_GE(static_cast<double>(one_price.bytes), 0.6 * budget);
  EXPECT_GT(one_price.layer_bytes[0], one_price.layer_bytes[1]) << "bits go where it pays";
  EXPECT_LE(one_price.bytes, fixed.bytes);
  EXPECT_LT(one_price.squared_error, 0.3 * fixed.squared_error) << fixed.squared_error;
}

TEST(OwnPrice, HoldsForLayersThatComeOneByOne) {
  const Registered registered(graded_definition());
  const Gradients gradients;
  Compressor model = gradients.model("atoms=atomo:bits=2; *=graded:bits=2");
  std::vector<std::byte> workspace(1 << 20), room(model.max_encoded_bytes());
  std::vector<float> y(kShape.elements());
  std::vector<std::size_t> bytes_of(3);
  std::size_t last = 0;
  for (std::uint32_t step = 0; step < 4; ++step) {
    ASSERT_EQ(model.begin_step({.seed = 1, .step = step}), Status::ok);
    last = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      std::uint64_t bytes = 0;
      ASSERT_FALSE(failed(model.encode_layer(
          i, gradients.views[i], {room.data(), room.size(), &bytes}, {.workspace = workspace})));
      bytes_of[i] = static_cast<std::size_t>(bytes);
      last += bytes_of[i];
      const Shape& shape = gradients.layers[i].shape;
      ASSERT_EQ(model.decode_layer(i, {room.data(), bytes}, {y.data(), DType::f32, shape},
                                   {.workspace = workspace}),
                Status::ok);
    }
    ASSERT_FALSE(failed(model.end_step()));
    const bool own_prices = step == 0;
    EXPECT_EQ(bytes_of[0] == bytes_of[1], own_prices) << step;
  }
  EXPECT_GT(bytes_of[0], bytes_of[1]);
  EXPECT_LE(static_cast<double>(last), 1.1 * model.budget_bytes());
}

TEST(OwnPrice, StandsBehindAMemoryAndBeforeALosslessStage) {
  const Registered registered(graded_definition());
  const Gradients gradients;
  const Sent both = sent(gradients, "*=ef+graded:bits=2+blosc:codec=zstd", 3);
  EXPECT_FALSE(failed(both.status)) << explain(both.status);
}

/// Bytes of one tensor's message, and its setting.
struct One {
  Status status = Status::ok;
  std::size_t bytes = 0, setting = 0;
};
One one(const std::string& spec) {
  const Codec codec = Codec::parse(spec);
  const auto x = uniform(kShape.elements(), 1);
  const Message message = encode(codec, x, kShape);
  ContainerInfo info;
  EXPECT_EQ(inspect(message.bytes, info), Status::ok);
  const std::size_t body = message.bytes.size() - (info.layers.at(0).bytes + 3) / 4 * 4;
  const auto frame = static_cast<std::size_t>(message.bytes[body]) + 1;
  return {message.status, message.bytes.size(),
          static_cast<std::size_t>(message.bytes[body + frame])};
}

TEST(OwnPrice, OneTensorHasItsBudget) {
  const Registered registered(graded_definition());
  const std::size_t n = kShape.elements();
  for (const auto& [bits, setting] : {std::pair{2.5, 1u}, {4.5, 2u}, {8.5, 3u}}) {
    const One sent = one("graded:bits=" + std::to_string(bits));
    EXPECT_EQ(sent.setting, setting) << bits;
    EXPECT_LE(8.0 * static_cast<double>(sent.bytes), bits * static_cast<double>(n));
    EXPECT_EQ(sent.status, bits < 8 ? Status::ok : Status::underspent);
  }
  const One least = one("graded:bits=0.001"), most = one("graded:bits=30");
  EXPECT_EQ(least.setting, 0u);
  EXPECT_EQ(least.status, Status::overspent);
  EXPECT_EQ(most.setting, 3u);
  EXPECT_EQ(most.status, Status::underspent);
  EXPECT_EQ(Codec::parse("graded:bits=2").expected_bytes(kShape), n / 4);
}

TEST(OwnPrice, TheBestSettingsBitsFallAsThePriceRises) {
  const price::Setting settings[] = {{2560, 4}, {25600, 1}, {5120, 4}, {256, 90}, {51200, 1}};
  std::uint64_t bits = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(price::best_setting(settings, 0), 1u) << "of equal errors that with fewer bits";
  std::uint64_t worth = 1;
  for (float price = 0x1p-20f; price < 0x1p20f; price *= 1.5f) {
    const price::Expected at = price::expected_of_settings(settings, price);
    EXPECT_LE(at.bits_256, bits);
    EXPECT_EQ(at.bits_256, settings[price::best_setting(settings, price)].bits_256);
    EXPECT_TRUE(at.worth == 0 || worth > 0) << "a higher price is worth no more";
    bits = at.bits_256;
    worth = at.worth;
  }
  EXPECT_EQ(bits, 256u);
  EXPECT_EQ(worth, 0u);
}

TEST(OwnPrice, BudgetsAreChecked) {
  const Registered registered(graded_definition());
  EXPECT_NE(error_of([] {
              static_cast<void>(Codec::parse("graded:bits=40"));
            }).find("a budget of 40 bits a parameter: expected 0.001 to 32, or 0 for none"),
            std::string::npos);
  struct FixedSize final : Levels {
    FixedSize() : Levels(8) {}
    double budget_bits() const override { return 2; }
  };
  const Registered fixed(
      {.name = "fixed", .make = [](SpecKeys&) { return std::make_shared<FixedSize>(); }});
  EXPECT_NE(error_of([] {
              static_cast<void>(Codec::parse("fixed"));
            }).find("a budget of 2 bits a parameter and claims fixed_size"),
            std::string::npos);
}

TEST(OwnPrice, TablesAreChecked) {
  struct Told final : Levels {
    Told() : Levels(8) {}
    std::vector<RatePoint> points;
    double budget_bits() const override { return 2; }
    Traits traits() const override { return {}; }
    std::vector<RatePoint> price(std::span<const float>, const Shape&) const override {
      return points;
    }
  };
  const auto codec = std::make_shared<Told>();
  const Registered registered({.name = "told", .make = [&](SpecKeys&) { return codec; }});
  const std::vector<float> x(kShape.elements(), 1);
  const double infinite = std::numeric_limits<double>::infinity();
  const std::pair<std::vector<RatePoint>, std::string> wrong[] = {
      {{}, "failed in price: it gave 0 rate points for a tensor [64, 50]: expected 1 to 64"},
      {std::vector<RatePoint>(65, {1, 1}), "65 rate points"},
      {{{1, 1}, {-1, 1}}, "rate point 1 has -1 bytes: expected 0 to its max_bytes, 3204"},
      {{{3205, 1}}, "rate point 0 has 3205 bytes"},
      {{{infinite, 1}}, "rate point 0 has inf bytes"},
      {{{1, -2}}, "has the squared error -2: expected a finite number of at least 0"},
      {{{1, infinite}}, "the squared error inf"}};
  for (const auto& [points, why] : wrong) {
    codec->points = points;
    EXPECT_EQ(encode(Codec::parse("told"), x, kShape).status, Status::codec_failed) << why;
    EXPECT_NE(codec_error().find(why), std::string::npos) << codec_error();
  }
  codec->points = {{3204, 1}};
  EXPECT_FALSE(failed(encode(Codec::parse("told"), x, kShape).status));
}

}  // namespace
}  // namespace atomo::test
