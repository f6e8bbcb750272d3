// SPDX-License-Identifier: Apache-2.0
/// What holds of every codec of the catalogue: sizes, equal bytes for equal keys, messages as they have always
/// been, hostile bytes, and the claims of its traits.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <set>
#include <sstream>

#include "catalogue/catalogue_specs.hpp"
#include "catalogue/catalogue_support.hpp"
#include "support/sizes.hpp"

namespace atomo::test {
namespace {

const Key kKey{.seed = 11, .step = 3, .tensor = 1, .worker = 2, .channel = 0};
const std::string kGoldens = ATOMO_TESTS_DIR "/catalogue/goldens.txt";

/// Numbers of many sizes, some of them zero, without any function of the C library.
std::vector<float> entries(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const int v = static_cast<int>(i * 7919 % 101) - 50;
    x[i] = i % 9 == 4 ? 0.0f : static_cast<float>(v) / static_cast<float>(16 << i % 5);
  }
  return x;
}

std::string hex(ConstBytes bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += "0123456789abcdef"[static_cast<int>(b) >> 4];
    text += "0123456789abcdef"[static_cast<int>(b) & 15];
  }
  return text;
}

std::vector<std::byte> message_of(const Codec& codec, const std::vector<float>& x) {
  const Shape shape{static_cast<std::int64_t>(x.size())};
  std::vector<std::byte> message(codec.max_encoded_bytes(shape)),
      workspace(codec.encode_workspace_bytes(shape));
  std::uint64_t bytes = 0;
  const Status status =
      codec.encode({x.data(), DType::f32, shape}, kKey, {message.data(), message.size(), &bytes},
                   {.workspace = workspace});
  EXPECT_EQ(status, Status::ok) << explain(status);
  message.resize(bytes);
  return message;
}

TEST(Catalogue, RegistersItsNamesOnceAndLeavesThoseThatAreThere) {
  register_catalogue();
  const auto first = registered_codecs();
  register_catalogue();
  EXPECT_EQ(registered_codecs(), first);
  ASSERT_TRUE(unregister_codec("drive"));
  register_codec({.name = "drive", .summary = "mine", .make = [](SpecKeys& keys) {
                    return own_codec("eden:bits=" + std::to_string(keys.integer("b", 1, 4, 1)));
                  }});
  register_catalogue();
  EXPECT_EQ(Codec::parse("drive").to_string(), "drive:b=1");
  ASSERT_TRUE(unregister_codec("drive"));
  register_catalogue();
  EXPECT_EQ(registered_codecs().size(), first.size());
}

TEST(Catalogue, EveryCodecHasASpecHereAndAnExampleThatParses) {
  register_catalogue();
  std::set<std::string> here;
  for (const auto& [spec, verified] : kCatalogue)
    here.insert(std::string(spec).substr(0, std::string(spec).find(':')));
  for (const CodecDefinition& d : catalogue_definitions()) {
    EXPECT_TRUE(here.contains(d.name)) << d.name;
    EXPECT_NO_THROW(static_cast<void>(Codec::parse(d.example))) << d.example;
    EXPECT_FALSE(d.keys.empty() || d.summary.empty()) << d.name;
  }
}

TEST(Catalogue, MessagesAreAsTheyHaveAlwaysBeen) {
  register_catalogue();
  const auto x = entries(70);
  std::ostringstream all;
  for (const auto& [spec, verified] : kCatalogue) {
    const Codec codec = Codec::parse(spec);
    const auto message = message_of(codec, x);
    std::vector<float> y(x.size());
    std::vector<std::byte> workspace(codec.decode_workspace_bytes({70}));
    ASSERT_EQ(codec.decode(message, {y.data(), DType::f32, {70}}, {.workspace = workspace}),
              Status::ok)
        << spec;
    all << spec << '\n' << hex(message) << '\n' << hex(std::as_bytes(std::span(y))) << '\n';
  }
  if (std::getenv("ATOMO_WRITE_GOLDENS") != nullptr) std::ofstream(kGoldens) << all.str();
  std::ifstream file(kGoldens);
  std::istringstream made(all.str());
  std::string expected, found;
  while (std::getline(made, found)) {
    ASSERT_TRUE(std::getline(file, expected)) << "more codecs than goldens";
    ASSERT_EQ(found, expected) << "ATOMO_WRITE_GOLDENS=1 writes " << kGoldens;
  }
  EXPECT_FALSE(std::getline(file, expected)) << "more goldens than codecs";
}

TEST(Catalogue, BodiesHaveTheirSizesAndFollowFromTheKey) {
  for (const auto& [spec, verified] : kCatalogue) {
    SCOPED_TRACE(spec);
    const auto codec = own_codec(spec);
    for (const std::size_t n : {1, 2, 3, 64, 65, 129, 1000, 4099}) {
      SCOPED_TRACE(n);
      const Shape shape{static_cast<std::int64_t>(n)};
      const std::size_t most = codec->max_bytes(shape);
      EXPECT_LE(most, 8 * n + 32000);
      const auto draws = TestDraws::of(kKey);
      for (auto x : {entries(n), std::vector<float>(n), std::vector<float>(n, -3.5f),
                     std::vector<float>(n, 1e-45f), std::vector<float>(n, 3e38f)}) {
        const auto body = body_of(*codec, x, draws);
        EXPECT_TRUE(codec->traits().fixed_size ? body.size() == most : body.size() <= most);
        EXPECT_EQ(body, body_of(*codec, x, draws));
        for (const float v : values_of(*codec, body, n, draws)) EXPECT_TRUE(std::isfinite(v));
      }
      const std::vector<float> zeros(n);
      EXPECT_EQ(arrives(*codec, zeros, draws), zeros);
    }
  }
}

TEST(Catalogue, HostileBodiesAreRefusedOrDecoded) {
  std::mt19937 random(5);
  for (const auto& [spec, verified] : kCatalogue) {
    SCOPED_TRACE(spec);
    const auto codec = own_codec(spec);
    const auto draws = TestDraws::of(kKey);
    const auto x = entries(300);
    const auto body = body_of(*codec, x, draws);
    const auto refused = [&](ConstBytes bytes) {
      try {
        values_of(*codec, bytes, x.size(), draws);
        return false;
      } catch (const Error&) {
        return true;
      }
    };
    EXPECT_FALSE(refused(body));
    for (std::size_t length = 0; length < body.size(); ++length)
      EXPECT_TRUE(refused(ConstBytes(body).first(length))) << length;
    auto longer = body;
    longer.push_back(std::byte{0});
    EXPECT_TRUE(refused(longer));
    for (int i = 0; i < 600; ++i) {
      auto bad = body;
      for (unsigned k = 0; k <= random() % 4; ++k)
        bad[random() % bad.size()] = static_cast<std::byte>(random() % 3 == 0 ? 255 : random());
      refused(bad);
    }
    std::vector<std::byte> noise(body.size());
    for (int i = 0; i < 200; ++i) {
      for (auto& b : noise) b = static_cast<std::byte>(random());
      refused(noise);
    }
  }
}

/// The chance that any of them fails though all claims hold is 1e-9 each. Fewer draws than 4,096 do not see what
/// happens to small entries beside few large ones once in a thousand: those of a commit are a quarter.
TEST(Catalogue, ClaimsHold) {
  register_catalogue();
  for (const auto& [spec, verified] : kCatalogue) {
    if (!verified) continue;
    const Codec codec = Codec::parse(spec);
    verify::Options options;
    options.entries = in_brief() ? 1u << 20 : 1u << 22;
    options.own_inputs = false;
    options.inputs = verify::generated_inputs(1);
    std::erase_if(options.inputs, [](const verify::Input& input) {
      return std::set<std::string>{"low rank", "one spike", "two entries",
                                   "constant", "levels",    "near the largest",
                                   "one row",  "scalar",    "70,001 entries"}
          .contains(input.name);
    });
    const auto report = verify::run(verify::subject_of(codec), verify::claims_of(codec), options);
    EXPECT_TRUE(report.holds()) << report.to_text();
  }
}

}  // namespace
}  // namespace atomo::test
