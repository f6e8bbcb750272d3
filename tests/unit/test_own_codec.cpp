// SPDX-License-Identifier: Apache-2.0
/// Codecs that are not the library's: their names, specs and messages, and what becomes of those that
/// throw, lie, or are missing.
#include <limits>
#include <thread>

#include "atomo/container.hpp"
#include "format/own_body.hpp"
#include "support/own_codecs.hpp"
#include "support/support.hpp"

namespace atomo::test {
namespace {

const Shape kShape{33, 7};

/// A `Levels` whose functions a test replaces.
struct Faulty : Levels {
  Faulty() : Levels(8) {}
  std::function<std::size_t(const Shape&)> of_max_bytes;
  std::function<std::size_t(Bytes)> of_encode;
  std::function<void()> of_decode;
  Traits claims = Levels::traits();

  Traits traits() const override { return claims; }
  std::size_t max_bytes(const Shape& shape) const override {
    return of_max_bytes ? of_max_bytes(shape) : Levels::max_bytes(shape);
  }
  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    return of_encode ? of_encode(body) : Levels::encode(x, layer, body);
  }
  void decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const override {
    if (of_decode) of_decode();
    Levels::decode(body, layer, y);
  }
};

CodecDefinition definition_of(const std::shared_ptr<const OwnCodec>& codec) {
  return {.name = "faulty", .keys = "", .summary = "", .example = "", .make = [codec](SpecKeys&) {
            return codec;
          }};
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

Message encoded(const Codec& codec, const std::vector<float>& x, const Shape& shape = kShape,
                const Key& key = {.seed = 3, .step = 5}) {
  return encode_bytes(codec, std::as_bytes(std::span(x)), DType::f32, shape, key);
}

/// Decodes without knowing the codec.
Status decode_any(ConstBytes message, std::vector<float>& y, const Shape& shape = kShape) {
  std::vector<std::byte> workspace(decode_workspace_bytes(shape));
  const TensorView view{y.data(), DType::f32, shape};
  return atomo::decode(message, std::span(&view, 1), {.workspace = workspace});
}

TEST(OwnCodec, SpecsAreReadAndWrittenInFull) {
  const Registered registered(levels_definition());
  EXPECT_EQ(Codec::parse("levels").to_string(), "levels:levels=8");
  EXPECT_EQ(Codec::parse("levels:levels=100").to_string(), "levels:levels=100");
  const Codec whole = Codec::parse("ef+levels:levels=3+blosc:codec=zstd");
  EXPECT_EQ(whole, Codec::parse(whole.to_string()));
  EXPECT_EQ(whole.without_memory().without_lossless().to_string(), "levels:levels=3");
  EXPECT_NE(
      error_of([] { static_cast<void>(Codec::parse("levels:levels=500")); }).find("from 1 to 127"),
      std::string::npos);
  EXPECT_NE(error_of([] {
              static_cast<void>(Codec::parse("levels:level=5"));
            }).find("it takes levels; the nearest is levels"),
            std::string::npos);
  const auto rows = list_codecs();
  EXPECT_TRUE(std::ranges::any_of(rows, [](const CodecHelp& row) { return row.name == "levels"; }));
}

TEST(OwnCodec, NamesAreRefusedWithAReason) {
  for (const char* name : {"", "a", "Mine", "1st", "my codec", "my+codec", "a:b", "my=codec",
                           "a-name-of-more-than-thirty-two-characters", "n\xC3\xA4mlich"})
    EXPECT_NE(error_of([&] { register_codec(levels_definition(name)); }).find("is none"),
              std::string::npos)
        << name;
  for (const char* name : {"qsgd", "atomo", "topk", "blosc", "ef", "momentum", "dgc", "ef21"})
    EXPECT_NE(error_of([&] { register_codec(levels_definition(name)); }).find("is the library's"),
              std::string::npos)
        << name;
  const Registered registered(levels_definition());
  EXPECT_NE(error_of([] { register_codec(levels_definition()); }).find("is registered already"),
            std::string::npos);
  EXPECT_NE(error_of([] { register_codec({.name = "mine"}); }).find("has no `make`"),
            std::string::npos);
  EXPECT_FALSE(unregister_codec("mine"));
}

TEST(OwnCodec, MakersThatFailAreErrors) {
  const auto parse = [] { static_cast<void>(Codec::parse("faulty")); };
  const auto error_with = [&](const std::function<std::shared_ptr<const OwnCodec>()>& make) {
    const Registered registered({.name = "faulty", .make = [&](SpecKeys&) { return make(); }});
    return error_of(parse);
  };
  EXPECT_NE(error_with([]() -> std::shared_ptr<const OwnCodec> {
              throw std::logic_error("oh");
            }).find("could not be made: oh"),
            std::string::npos);
  EXPECT_NE(
      error_with([]() -> std::shared_ptr<const OwnCodec> { throw 3; }).find("no std::exception"),
      std::string::npos);
  EXPECT_NE(error_with([] { return nullptr; }).find("gave none"), std::string::npos);
  EXPECT_NE(error_of(parse).find("has to be registered first"), std::string::npos);
}

TEST(OwnCodec, RoundTripsAloneBehindStagesAndInModels) {
  const Registered registered(levels_definition());
  const auto x = heavy_tailed(kShape.elements(), 1, 7);
  const float largest =
      std::abs(*std::ranges::max_element(x, {}, [](float v) { return std::abs(v); }));
  for (const char* spec : {"levels:levels=50", "levels:levels=50+blosc:codec=zstd"}) {
    const Codec codec = Codec::parse(spec);
    const Message message = encoded(codec, x);
    ASSERT_EQ(message.status, Status::ok);
    if (codec.traits().fixed_size) {
      EXPECT_EQ(message.bytes.size(), codec.max_encoded_bytes(kShape));
      EXPECT_EQ(codec.wire_bytes(kShape), message.bytes.size());
    }
    EXPECT_EQ(encoded(codec, x).bytes, message.bytes) << "the same key";
    EXPECT_NE(encoded(codec, x, kShape, {.seed = 4}).bytes, message.bytes) << "another key";
    std::vector<float> y(x.size(), 9), sum(x.size(), 1);
    ASSERT_EQ(decode_any(message.bytes, y), Status::ok);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], largest / 50 * 1.001f);
    std::vector<std::byte> workspace(codec.decode_workspace_bytes(kShape));
    const std::vector<ConstBytes> both{message.bytes, message.bytes};
    ASSERT_EQ(codec.decode_add_all(both, 0.5f, {sum.data(), DType::f32, kShape},
                                   {.workspace = workspace}),
              Status::ok);
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_EQ(sum[i], (1 + (0.5f * y[i])) + (0.5f * y[i]));
  }
}

TEST(OwnCodec, ModelsMixItWithTheLibrarysOnThreads) {
  const Registered registered(levels_definition());
  std::vector<LayerSpec> layers{
      {"a.weight", {64, 32}}, {"a.bias", {64}}, {"b.weight", {100, 50}}, {"none", {0}}};
  Compressor model(layers, Policy::parse("*.bias=identity; b.*=ef+levels:levels=20; *=levels"));
  std::vector<std::vector<float>> x;
  std::vector<ConstTensorView> views;
  for (const LayerSpec& layer : layers)
    x.push_back(heavy_tailed(layer.shape.elements(), x.size() + 1, 50));
  for (std::size_t i = 0; i < layers.size(); ++i)
    views.push_back({x[i].data(), DType::f32, layers[i].shape});
  ThreadPool pool(3);
  std::vector<std::byte> message(model.max_encoded_bytes()), workspace(workspace_bytes(model));
  std::vector<double> sent(x[2].size()), kept;
  for (std::uint32_t step = 0; step < 20; ++step) {
    std::uint64_t bytes = 0;
    ASSERT_EQ(
        model.encode(views, {.seed = 1, .step = step}, {message.data(), message.size(), &bytes},
                     {.workspace = workspace, .executor = &pool}),
        Status::ok);
    std::vector<std::vector<float>> y;
    std::vector<TensorView> out;
    for (const auto& v : x) y.emplace_back(v.size());
    for (std::size_t i = 0; i < layers.size(); ++i)
      out.push_back({y[i].data(), DType::f32, layers[i].shape});
    ASSERT_EQ(model.decode(ConstBytes(message).first(bytes), out,
                           {.workspace = workspace, .executor = &pool}),
              Status::ok);
    EXPECT_EQ(y[1], x[1]);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += static_cast<double>(y[2][i]);
  }
  // A memory sends in the end what a step left out: all but what it keeps now, below a level.
  float largest = 0;
  for (const float v : x[2]) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < sent.size(); ++i)
    EXPECT_NEAR(sent[i] / 20, static_cast<double>(x[2][i]),
                static_cast<double>(largest) / 20 * 1.2 / 20);
}

TEST(OwnCodec, InspectionNamesItRegisteredOrNot) {
  std::vector<std::byte> bytes;
  {
    const Registered registered(levels_definition());
    bytes =
        encoded(Codec::parse("levels:levels=9"), std::vector<float>(kShape.elements(), 1)).bytes;
  }
  ContainerInfo info;
  ASSERT_EQ(inspect(bytes, info), Status::ok);
  EXPECT_EQ(info.layers[0].codec, "levels:levels=9");
  std::vector<float> y(kShape.elements());
  EXPECT_EQ(decode_any(bytes, y), Status::codec_unknown);
  const std::string why = explain(Status::codec_unknown);
  EXPECT_NE(why.find("'levels:levels=9' is not registered here"), std::string::npos) << why;
  EXPECT_NE(why.find("register_codec"), std::string::npos);
  EXPECT_NE(why.find("--plugin"), std::string::npos);
  EXPECT_EQ(explain(Status::corrupt), describe(Status::corrupt));
}

TEST(OwnCodec, ExceptionsBecomeAStatusWithTheirText) {
  auto codec = std::make_shared<Faulty>();
  const Registered registered(definition_of(codec));
  const std::vector<float> x(kShape.elements(), 1);
  const Codec own = Codec::parse("faulty");
  const Message sound = encoded(own, x);
  std::vector<float> y(x.size());
  codec->of_decode = [] { throw std::runtime_error("nothing to decode"); };
  EXPECT_EQ(decode_any(sound.bytes, y), Status::codec_failed);
  EXPECT_NE(codec_error().find("'faulty' failed in decode: nothing to decode"), std::string::npos);
  codec->of_decode = [] { throw 7; };
  EXPECT_EQ(decode_any(sound.bytes, y), Status::codec_failed);
  EXPECT_NE(codec_error().find("no std::exception"), std::string::npos);
  codec->of_encode = [](Bytes) -> std::size_t { throw std::runtime_error("nothing to encode"); };
  EXPECT_EQ(encoded(own, x).status, Status::codec_failed);
  EXPECT_NE(codec_error().find("failed in encode: nothing to encode"), std::string::npos);
}

TEST(OwnCodec, MoreBytesThanPromisedAreRefused) {
  auto codec = std::make_shared<Faulty>();
  const Registered registered(definition_of(codec));
  const std::vector<float> x(kShape.elements(), 1);
  codec->of_encode = [](Bytes body) { return body.size() + 1; };
  EXPECT_EQ(encoded(Codec::parse("faulty"), x).status, Status::codec_failed);
  EXPECT_NE(codec_error().find("its max_bytes says 235"), std::string::npos) << codec_error();
  codec->of_encode = [](Bytes body) { return body.size() - 1; };
  EXPECT_EQ(encoded(Codec::parse("faulty"), x).status, Status::codec_failed) << "of a fixed size";
  codec->claims.fixed_size = false;
  const Registered again({.name = "varying", .make = [&](SpecKeys&) { return codec; }});
  EXPECT_EQ(encoded(Codec::parse("varying"), x).status, Status::ok);
}

TEST(OwnCodec, BoundsBeyondTheFormatsAreRefusedAtSetUp) {
  auto codec = std::make_shared<Faulty>();
  const Registered registered(definition_of(codec));
  const Codec own = Codec::parse("faulty");
  for (const bool throws : {false, true}) {
    codec->of_max_bytes = [throws](const Shape& shape) -> std::size_t {
      if (throws) throw std::runtime_error("no bound");
      return 8 * shape.elements() + 40000;
    };
    const char* const expected = throws ? "max_bytes: no bound" : "expected at most";
    EXPECT_NE(error_of([&] { static_cast<void>(own.max_encoded_bytes(kShape)); }).find(expected),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                Compressor({{"a", kShape}}, Policy(own));
              }).find(expected),
              std::string::npos);
    std::vector<float> x(kShape.elements(), 1);
    std::vector<std::byte> room(1 << 20), workspace(1 << 20);
    std::uint64_t bytes = 0;
    EXPECT_EQ(own.encode({x.data(), DType::f32, kShape}, {}, {room.data(), room.size(), &bytes},
                         {.workspace = workspace}),
              Status::codec_failed);
  }
}

TEST(OwnCodec, NeverSeesWhatIsNotFinite) {
  auto codec = std::make_shared<Faulty>();
  codec->of_encode = [](Bytes) -> std::size_t { throw std::runtime_error("called"); };
  const Registered registered(definition_of(codec));
  std::vector<float> x(kShape.elements(), 1), y(x.size());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[5] = bad;
    const Message message = encoded(Codec::parse("faulty"), x);
    EXPECT_EQ(message.status, Status::non_finite);
    EXPECT_EQ(decode_any(message.bytes, y), Status::non_finite);
    EXPECT_TRUE(std::isnan(y[0]));
  }
}

TEST(OwnCodec, OneOfAnotherSpecIsAMismatch) {
  const Registered registered(levels_definition());
  const std::vector<float> x(kShape.elements(), 1);
  std::vector<float> y(x.size());
  const Codec other = Codec::parse("levels:levels=4");
  std::vector<std::byte> workspace(other.decode_workspace_bytes(kShape));
  EXPECT_EQ(other.decode(encoded(Codec::parse("levels:levels=5"), x).bytes,
                         {y.data(), DType::f32, kShape}, {.workspace = workspace}),
            Status::codec_mismatch);
}

TEST(OwnCodec, DevicesRefuseIt) {
  const Registered registered(levels_definition());
  const Codec codec = Codec::parse("levels");
  EXPECT_FALSE(codec.traits().cuda);
  EXPECT_FALSE(error_of([&] {
                 static_cast<void>(codec.encode_workspace_bytes(kShape, DType::f32, Device::cuda));
               }).empty());
  std::vector<std::byte> room(1 << 16), workspace(1 << 16);
  std::vector<float> x(kShape.elements(), 1);
  std::uint64_t bytes = 0;
  EXPECT_EQ(codec.encode({x.data(), DType::f32, kShape, Device::cuda}, {},
                         {room.data(), room.size(), &bytes}, {.workspace = workspace}),
            Status::unsupported);
}

TEST(OwnCodec, FramesAreChecked) {
  const std::string spec = "levels:levels=8";
  std::vector<std::byte> body{static_cast<std::byte>(spec.size())};
  for (const char c : spec) body.push_back(static_cast<std::byte>(c));
  body.resize(body.size() + 10);
  const std::uint32_t params = format::own_params(spec);
  format::OwnBody opened;
  const auto open = [&](ConstBytes bytes) {
    return format::open_own_body(bytes, params, 10, opened);
  };
  ASSERT_EQ(open(body), Status::ok);
  EXPECT_EQ(opened.spec, spec);
  EXPECT_EQ(opened.proper.size(), 10u);
  for (std::size_t bytes = 0; bytes <= spec.size(); ++bytes)
    EXPECT_EQ(open(ConstBytes(body).first(bytes)), Status::truncated) << bytes;
  for (std::size_t at = 0; at <= spec.size(); ++at) {
    auto changed = body;
    changed[at] ^= std::byte{1};
    EXPECT_TRUE(failed(open(changed))) << at;
  }
  std::vector<std::byte> large(format::max_own_body_bytes(10) + 1);
  std::ranges::copy(body, large.begin());
  EXPECT_EQ(open(large), Status::corrupt) << "beyond the bound";
  EXPECT_EQ(open(ConstBytes(large).first(large.size() - 1)), Status::ok);
  // Whatever the characters, the parameters alone do not make a spec.
  for (const std::string& bad : std::initializer_list<std::string>{
           "Levels", "a", "levels: ", "levels\n", std::string()}) {
    std::vector<std::byte> named{static_cast<std::byte>(bad.size())};
    for (const char c : bad) named.push_back(static_cast<std::byte>(c));
    const bool sound = format::is_own_spec(bad);
    EXPECT_EQ(format::open_own_body(named, format::own_params(bad), 10, opened),
              sound ? Status::ok : Status::corrupt)
        << bad;
    EXPECT_FALSE(sound) << bad;
  }
}

TEST(OwnCodec, AnyNumberOfSpecsIsReadWithoutKeepingThem) {
  const Registered registered(levels_definition());
  const std::vector<float> x(kShape.elements(), 1);
  std::vector<float> y(x.size());
  std::vector<Message> messages;
  for (int levels = 1; levels <= 127; ++levels)
    messages.push_back(encoded(Codec::parse("levels:levels=" + std::to_string(levels)), x));
  for (int round = 0; round < 2; ++round) {
    for (const Message& message : messages) {
      ASSERT_EQ(decode_any(message.bytes, y), Status::ok);
      EXPECT_NEAR(y[0], 1, 1e-6);
    }
  }
}

TEST(OwnCodec, IsRegisteredUsedAndTakenOutByManyThreadsAtOnce) {
  const Registered registered(levels_definition());
  const std::vector<float> x(kShape.elements(), 1);
  const Message message = encoded(Codec::parse("levels:levels=6"), x);
  std::atomic<int> added{0}, decoded{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> y(x.size());
      for (int i = 0; i < 50; ++i) {
        const std::string name = "thread-" + std::to_string(i % 5);
        try {
          register_codec(levels_definition(name));
          ++added;
          EXPECT_EQ(Codec::parse(name).to_string(), name + ":levels=8");
          EXPECT_TRUE(unregister_codec(name));
        } catch (const Error&) {  // another thread was first
        }
        static_cast<void>(list_codecs());
        static_cast<void>(Codec::parse("levels:levels=" + std::to_string(1 + (i + t) % 100)));
        decoded += decode_any(message.bytes, y) == Status::ok;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(added, 50);
  EXPECT_EQ(decoded, 200);
  EXPECT_EQ(registered_codecs(), std::vector<std::string>{"levels"});
}

}  // namespace
}  // namespace atomo::test
