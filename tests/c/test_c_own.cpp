// SPDX-License-Identifier: Apache-2.0
/// Codecs that are not the library's: loaded from a shared object, and written in C.
#include <algorithm>
#include <functional>

#include "c/c_support.hpp"

namespace atomo {
namespace {

TEST(COwnCodec, IsLoadedAndUsedByItsName) {
  EXPECT_EQ(atomo_load_codecs(nullptr), ATOMO_INVALID_ARGUMENT);
  EXPECT_EQ(atomo_load_codecs("./no-such-file.so"), ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error()).find("cannot be loaded"), std::string::npos);
  atomo_codec* none = nullptr;
  EXPECT_EQ(atomo_codec_create("raw", &none), ATOMO_INVALID_ARGUMENT);

  ASSERT_EQ(atomo_load_codecs(ATOMO_TEST_PLUGIN), ATOMO_OK) << atomo_last_error();
  EXPECT_EQ(atomo_load_codecs(ATOMO_TEST_PLUGIN), ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error()).find("is registered already"), std::string::npos);
  const auto codec = test::c_codec("raw+blosc");
  const Shape shape{4, 5};
  std::vector<float> x(20, 1), y(20);
  const auto message = test::c_encode(codec.get(), x.data(), shape, {});
  ASSERT_EQ(message.status, ATOMO_OK);
  std::size_t bytes = 0;
  ASSERT_EQ(atomo_codec_decode_workspace_bytes(codec.get(), shape.dims().data(), 2, ATOMO_F32,
                                               ATOMO_CPU, &bytes),
            ATOMO_OK);
  const test::CContext context(bytes);
  const auto out = test::c_tensor(y.data(), shape);
  EXPECT_EQ(atomo_codec_decode(codec.get(), message.bytes.data(), message.bytes.size(), &out,
                               context.get()),
            ATOMO_OK);
  EXPECT_EQ(y, x);

  x[0] = 13;
  EXPECT_EQ(test::c_encode(codec.get(), x.data(), shape, {}).status, ATOMO_CODEC_FAILED);
  EXPECT_NE(std::string(atomo_last_error()).find("thirteen is not sent"), std::string::npos);
}

/// The upper halves of entries, or zeros, by the setting: with a budget. `user` counts the codecs that live.
struct Kept {
  static std::int32_t create(void* user, const char* keys, char* error, void** codec) {
    if (std::string(keys) == "bits=7,mode=no") {
      std::strcpy(error, "seven is not made");
      return 4;
    }
    ++*static_cast<int*>(user);
    *codec = new std::pair(static_cast<int*>(user), std::strtod(keys + 5, nullptr));
    return 0;
  }
  using Codec = std::pair<int*, double>;
  static void destroy(void* codec) {
    --*static_cast<Codec*>(codec)->first;
    delete static_cast<Codec*>(codec);
  }
  static void traits(void*, atomo_traits* claims) {
    claims->contraction = 0.25;
    claims->largest = 1.5;
    claims->step = 0.125;
    claims->smallest = 0x1p-126;
    claims->highest = 1024;
    claims->has_contraction = claims->has_largest = claims->bounded = 1;
  }
  static std::int32_t max_bytes(void*, const atomo_codec_layer* layer, std::size_t* bytes) {
    EXPECT_EQ(layer->key, nullptr);
    *bytes = 2 * layer->elements;
    return 0;
  }
  static std::int32_t encode(void*, const float* x, const atomo_codec_layer* layer, void* body,
                             std::size_t capacity, std::size_t* bytes) {
    EXPECT_EQ(layer->key->step, 5u);
    EXPECT_EQ(layer->dims[layer->rank - 1], 5);
    if (x[0] == 13) return 7;
    *bytes = layer->setting == 0 ? 0 : capacity;
    for (std::size_t i = 0; 2 * i < *bytes; ++i)
      std::memcpy(static_cast<char*>(body) + 2 * i, reinterpret_cast<const char*>(x + i) + 2, 2);
    return 0;
  }
  static std::int32_t decode(void*, const void* body, std::size_t bytes,
                             const atomo_codec_layer* layer, float* y) {
    if (bytes != 0 && bytes != 2 * layer->elements) return 1;
    for (std::size_t i = 0; 2 * i < bytes; ++i)
      std::memcpy(reinterpret_cast<char*>(y + i) + 2, static_cast<const char*>(body) + 2 * i, 2);
    if (y[0] == 14) std::strcpy(layer->error, "fourteen is not read");
    return y[0] == 14 ? 8 : 0;
  }
  static double budget_bits(void* codec) { return static_cast<Codec*>(codec)->second; }
  static std::int32_t price(void*, const float* x, const atomo_codec_layer* layer,
                            atomo_rate_point* points, std::size_t capacity, std::size_t* count) {
    EXPECT_EQ(capacity, 64u);
    double squares = 0;
    for (std::size_t i = 0; i < layer->elements; ++i) squares += double{x[i]} * x[i];
    points[0] = {0, squares};
    points[1] = {2.0 * static_cast<double>(layer->elements), 0};
    *count = x[0] == 15 ? 65 : 2;
    return 0;
  }
};

const atomo_codec_key kKeptKeys[] = {{"bits", nullptr, 0, 40, "3", 0, 0},
                                     {"mode", "yes|no", 0, 0, "yes", 0, 0}};

atomo_own_codec kept(int& living) {
  atomo_own_codec own{};
  own.name = "kept";
  own.example = "kept:bits=2";
  own.keys = kKeptKeys;
  own.key_count = 2;
  own.user = &living;
  own.create = Kept::create;
  own.destroy = Kept::destroy;
  own.traits = Kept::traits;
  own.max_bytes = Kept::max_bytes;
  own.encode = Kept::encode;
  own.decode = Kept::decode;
  own.budget_bits = Kept::budget_bits;
  own.price = Kept::price;
  return own;
}

std::string spec_of(const atomo_codec* codec) {
  char text[64] = "";
  EXPECT_EQ(atomo_codec_spec(codec, text, sizeof text, nullptr), ATOMO_OK);
  return text;
}

std::vector<std::string> names_of_rows() {
  std::size_t rows = 0;
  EXPECT_EQ(atomo_codec_rows(&rows), ATOMO_OK);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < rows; ++i) {
    atomo_codec_row row;
    EXPECT_EQ(atomo_codec_row_at(i, &row), ATOMO_OK);
    names.emplace_back(std::string(row.name) + " " + row.keys);
  }
  return names;
}

TEST(COwnCodec, IsWrittenInC) {
  int living = 0;
  const auto before = names_of_rows();
  atomo_own_codec own = kept(living);
  ASSERT_EQ(atomo_register_codec(&own), ATOMO_OK) << atomo_last_error();
  own = {};  // it was copied
  EXPECT_EQ(std::ranges::count(names_of_rows(), "kept bits=0..40, mode=yes|no"), 1)
      << "the table has codecs that came later";
  {
    const auto codec = test::c_codec("kept:bits=32,mode=no");
    EXPECT_EQ(spec_of(codec.get()), "kept:bits=32,mode=no");
    EXPECT_EQ(spec_of(test::c_codec("kept").get()), "kept:bits=3,mode=yes");
    atomo_traits claims;
    ASSERT_EQ(atomo_codec_traits(codec.get(), &claims), ATOMO_OK);
    EXPECT_EQ(claims.contraction, 0.25);
    EXPECT_EQ(claims.has_largest, 1);
    EXPECT_EQ(claims.largest, 1.5);
    EXPECT_EQ(claims.step, 0.125);
    EXPECT_EQ(claims.smallest, 0x1p-126);
    EXPECT_EQ(claims.highest, 1024);
    EXPECT_EQ(claims.bounded, 1);
    EXPECT_EQ(claims.unbiased, 0);
  }
  std::vector<float> x(200, 1);
  const auto sent = [&](const std::string& spec) {
    const auto message =
        test::c_encode(test::c_codec(spec).get(), x.data(), Shape{40, 5}, {.step = 5});
    return std::pair(message.status, message.bytes.size());
  };
  const auto plain = sent("kept:bits=0").second;
  EXPECT_GE(sent("kept:bits=32").second, plain + 400);
  EXPECT_LE(sent("kept:bits=16").second, plain + 4) << "a budget for zeros alone";
  x[0] = 13;
  EXPECT_EQ(sent("kept:bits=0").first, ATOMO_CODEC_FAILED);
  EXPECT_NE(std::string(atomo_last_error()).find("failed in encode: it returned 7: expected 0"),
            std::string::npos)
      << atomo_last_error();
  x[0] = 15;
  EXPECT_EQ(sent("kept:bits=2").first, ATOMO_CODEC_FAILED);
  EXPECT_NE(std::string(atomo_last_error()).find("it gave 65 rate points: expected 1 to 64"),
            std::string::npos)
      << atomo_last_error();
  atomo_codec* none = nullptr;
  EXPECT_EQ(atomo_codec_create("kept:bits=7,mode=no", &none), ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error())
                .find("could not be made of 'bits=7,mode=no': seven is not made (it returned 4)"),
            std::string::npos)
      << atomo_last_error();
  EXPECT_EQ(atomo_codec_create("kept:bits=41", &none), ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error()).find("from 0 to 40"), std::string::npos);
  ASSERT_EQ(atomo_unregister_codec("kept"), ATOMO_OK);
  EXPECT_EQ(names_of_rows(), before);
  EXPECT_EQ(atomo_unregister_codec("kept"), ATOMO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(atomo_last_error()).find("no codec 'kept' is registered"),
            std::string::npos);
}

TEST(COwnCodec, DecodesAndGivesItsCodecsUp) {
  int living = 0;
  const atomo_own_codec own = kept(living);
  ASSERT_EQ(atomo_register_codec(&own), ATOMO_OK) << atomo_last_error();
  std::vector<float> x(200, 1), y(200);
  const Shape shape{40, 5};
  {
    const auto codec = test::c_codec("kept:bits=32");
    EXPECT_EQ(living, 1);
    std::size_t bytes = 0;
    ASSERT_EQ(atomo_codec_decode_workspace_bytes(codec.get(), shape.dims().data(), 2, ATOMO_F32,
                                                 ATOMO_CPU, &bytes),
              ATOMO_OK);
    const test::CContext context(bytes);
    const auto out = test::c_tensor(y.data(), shape);
    const auto decode = [&] {
      const auto message = test::c_encode(codec.get(), x.data(), shape, {.step = 5});
      EXPECT_EQ(message.status, ATOMO_UNDERSPENT) << "more than the finest setting takes";
      return atomo_codec_decode(codec.get(), message.bytes.data(), message.bytes.size(), &out,
                                context.get());
    };
    EXPECT_EQ(decode(), ATOMO_OK);
    EXPECT_EQ(y, x);
    x[0] = 14;
    EXPECT_EQ(decode(), ATOMO_CODEC_FAILED);
    EXPECT_NE(std::string(atomo_last_error()).find("fourteen is not read (it returned 8)"),
              std::string::npos)
        << atomo_last_error();
    ASSERT_EQ(atomo_unregister_codec("kept"), ATOMO_OK);
  }
  EXPECT_EQ(living, 0);
}

TEST(COwnCodec, DefinitionsThatCannotBeAreRefused) {
  int living = 0;
  const auto refuses = [&](const std::function<void(atomo_own_codec&, atomo_codec_key&)>& change,
                           const std::string& why) {
    atomo_own_codec own = kept(living);
    atomo_codec_key keys[] = {kKeptKeys[0], kKeptKeys[1]};
    own.keys = keys;
    change(own, keys[0]);
    EXPECT_EQ(atomo_register_codec(&own), ATOMO_INVALID_ARGUMENT) << why;
    EXPECT_NE(std::string(atomo_last_error()).find(why), std::string::npos)
        << "'" << atomo_last_error() << "' does not say '" << why << "'";
  };
  using Own = atomo_own_codec;
  using OwnKey = atomo_codec_key;
  refuses([](Own& own, OwnKey&) { own.name = nullptr; }, "name is NULL");
  refuses([](Own& own, OwnKey&) { own.name = "qsgd"; }, "is the library's");
  refuses([](Own& own, OwnKey&) { own.decode = nullptr; }, "'kept' has no function decode");
  refuses([](Own& own, OwnKey&) { own.price = nullptr; },
          "no function price beside its budget_bits");
  refuses([](Own& own, OwnKey&) { own.keys = nullptr; }, "keys is NULL");
  refuses([](Own& own, OwnKey&) { own.reserved[2] = 1; }, "`reserved` of the codec is not zero");
  refuses([](Own&, OwnKey& key) { key.name = "my bits"; },
          "'my bits' of the codec 'kept' has another");
  refuses([](Own&, OwnKey& key) { key.high = -1; }, "is from 0 to -1: expected finite numbers");
  refuses([](Own&, OwnKey& key) { key.fallback = "41"; },
          "falls back to '41': expected a number from 0 to 40");
  refuses([](Own&, OwnKey& key) { key.choices = "2|"; }, "has the choices '2|'");
  refuses([](Own&, OwnKey& key) { key.choices = "2|4"; },
          "falls back to '3' is none of its choices");
  refuses([](Own&, OwnKey& key) { key.whole = 1, key.fallback = "2.5"; },
          "expected a whole number from 0 to 40");
  EXPECT_EQ(atomo_register_codec(nullptr), ATOMO_INVALID_ARGUMENT);
}

TEST(COwnCodec, DrawsAreThoseOfCpp) {
  const Key key{.seed = 3, .step = 4, .tensor = 5};
  const atomo_key same = test::c_key(key);
  std::vector<std::uint32_t> words(9), expected(9);
  own_draws(key, 6, expected);
  ASSERT_EQ(atomo_own_draws(&same, 6, words.data(), words.size()), ATOMO_OK);
  EXPECT_EQ(words, expected);
  EXPECT_EQ(atomo_own_draws(nullptr, 0, words.data(), 1), ATOMO_INVALID_ARGUMENT);
  EXPECT_EQ(atomo_own_draws(&same, 0, nullptr, 1), ATOMO_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace atomo
