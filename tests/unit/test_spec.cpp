// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "support/support.hpp"

namespace atomo {
namespace {

TEST(Spec, CanonicalFormReadsBackAsTheSameCodec) {
  for (const auto& spec : test::all_specs()) {
    const Codec codec = Codec::parse(spec);
    const std::string canonical = codec.to_string();
    EXPECT_EQ(Codec::parse(canonical).to_string(), canonical) << spec;
    EXPECT_TRUE(Codec::parse(canonical) == codec) << spec;
  }
}

/// parse and to_string stay inverse for numbers of any length.
TEST(Spec, NumbersSurviveTheRoundTrip) {
  std::mt19937_64 generator(5);
  std::uniform_real_distribution<double> exponent(-2.9, 1.3);
  for (int i = 0; i < 2000; ++i) {
    char text[64];
    const double bits = std::pow(10.0, exponent(generator));
    std::snprintf(text, sizeof text, "atomo:bits=%.*g", 1 + i % 17, bits);
    const std::string canonical = Codec::parse(text).to_string();
    EXPECT_EQ(Codec::parse(canonical).to_string(), canonical) << text;
    std::snprintf(text, sizeof text, "qsgd:bits=%d,bucket=%d,norm=%s", 1 + i % 8,
                  1 + static_cast<int>(generator() % 100000), i % 2 == 0 ? "l2" : "max");
    EXPECT_EQ(Codec::parse(text).to_string(), text);
  }
}

TEST(Spec, CapsSurviveTheRoundTrip) {
  EXPECT_EQ(Codec::parse("atomo:cap=0.3,bits=0.25").to_string(),
            "atomo:bits=0.25,cap=0.3,atoms=auto");
  EXPECT_THROW((void)Codec::parse("atomo:bits=1,cap=2,atoms=svd"), Error);
}

/// A codec that a device does not run says so here, by name; whether the twin writes the same bytes
/// is asked by the suites on the host executor.
TEST(Spec, EveryCodecHasACudaTwin) {
  for (const CodecHelp& codec : list_codecs()) {
    if (codec.name.starts_with('+')) continue;  // a lossless stage runs on the CPU
    for (const std::string& spec : codec.specs)
      EXPECT_TRUE(Codec::parse(spec).traits().cuda) << spec;
  }
}

TEST(Spec, ListedExamplesParse) {
  for (const auto& row : list_codecs())
    EXPECT_NO_THROW((void)Codec::parse(row.example)) << row.name;
}

struct Refusal {
  const char* spec;
  std::vector<const char*> says;
};

TEST(Spec, ErrorsNameTheTokenItsPlaceAndWhatWouldBeRight) {
  const std::vector<Refusal> refusals{
      {"", {"empty spec"}},
      {"qsdg:bits=4", {"position 1", "'qsdg'", "nearest is qsgd"}},
      {"qsgd:bit=4", {"position 6", "'bit'", "bits", "nearest is bits"}},
      {"qsgd:bits=9", {"position 11", "bits=9", "1 to 8"}},
      {"qsgd:bits=4x", {"bits=4x", "1 to 8"}},
      {"qsgd:norm=inf", {"norm=inf", "max or l2"}},
      {"qsgd:bits=4,,bucket=512", {"position 13", "key=value"}},
      {"qsgd:bits", {"position 6", "key=value"}},
      {"qsgd:bits=", {"key=value"}},
      {"qsgd:bits=4,bits=4", {"twice"}},
      {"QSGD", {"name"}},
      {"topk", {"keep"}},
      {"topk:keep=0", {"keep=0"}},
      {"topk:keep=1.5", {"keep=1.5"}},
      {"topk:keep=-1", {"keep=-1"}},
      {"topk:keep=nan", {"keep=nan"}},
      {"atomo", {"bits"}},
      {"atomo:bits=0", {"bits=0"}},
      {"atomo:bits=1,atoms=columns", {"atoms=columns", "rows", "svd"}},
      {"atomo:bits=1,keep=4", {"keep"}},
      {"sign+topk:keep=0.1", {"position 6", "cannot follow"}},
      {"blosc", {"needs a codec before it"}},
      {"sign+blosc+blosc", {"must be last"}},
      {"sign+", {"position 6"}},
      {"sign+blosc:level=10", {"level=10", "0 to 9"}},
  };
  for (const auto& refusal : refusals) {
    try {
      (void)Codec::parse(refusal.spec);
      ADD_FAILURE() << "accepted '" << refusal.spec << "'";
    } catch (const Error& e) {
      for (const char* part : refusal.says) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
            << refusal.spec << ": " << e.what();
      }
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
  }
}

/// Whatever the text, parse returns a codec or throws Error.
TEST(Spec, AnyTextParsesOrIsRefused) {
  std::mt19937_64 generator(9);
  const std::string alphabet = "qsgdatomo:=,+.0123456789bitskeepe- \n";
  const auto specs = test::all_specs();
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = specs[generator() % specs.size()];
    for (std::size_t k = 1 + generator() % 3; k > 0; --k) {
      const char c = alphabet[generator() % alphabet.size()];
      const std::size_t at = generator() % (text.size() + 1);
      if (generator() % 3 == 0 && at < text.size())
        text.erase(at, 1);
      else if (generator() % 2 == 0 && at < text.size())
        text[at] = c;
      else
        text.insert(at, 1, c);
    }
    try {
      const std::string canonical = Codec::parse(text).to_string();
      EXPECT_EQ(Codec::parse(canonical).to_string(), canonical) << text;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 5000);
}

TEST(Policy, FirstMatchWinsAndErrorsNameTheLine) {
  const Policy policy =
      Policy::parse("*.bias = identity  # exact\n\nfc? = qsgd:bits=4; * = atomo:bits=0.5");
  EXPECT_EQ(policy.codec_for("conv1.bias").to_string(), "identity:dtype=f32");
  EXPECT_EQ(policy.codec_for("fc1").to_string(), Codec::parse("qsgd:bits=4").to_string());
  EXPECT_EQ(policy.codec_for("fc10").to_string(), Codec::parse("atomo:bits=0.5").to_string());
  EXPECT_EQ(Policy::parse(policy.to_string()).to_string(), policy.to_string());
  for (const char* bad :
       {"a = identity\nb identity", "a = identity\nb = qsdg", "a = identity\n= sign"}) {
    try {
      (void)Policy::parse(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("line 2"), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW((void)Policy::parse(" # nothing\n"), Error);
  for (const char* alone : {"sign", "atomo:bits=0.5", "atomo:bits=0.5,cap=1+blosc"})
    EXPECT_EQ(Policy::parse(alone).to_string(), Policy(Codec::parse(alone)).to_string());
  EXPECT_EQ(Policy::parse(" sign\n").rules().size(), 1u);
  EXPECT_THROW((void)Policy::parse("sing"), Error);
  EXPECT_THROW((void)Policy::parse("fc* = sign").codec_for("conv"), Error);
}

TEST(Shape, RefusesWhatItCannotHold) {
  EXPECT_EQ(Shape{}.elements(), 1u);
  EXPECT_EQ((Shape{2, 0, 3}).elements(), 0u);
  EXPECT_EQ((Shape{1, 2, 3, 1, 2, 3, 1, 2}).elements(), 72u);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW((Shape{-1}), Error);
  EXPECT_THROW((Shape{1 << 20, (1 << 20) + 1}), Error);
  EXPECT_NO_THROW((Shape{1 << 20, 1 << 20}));
  const std::int64_t big = std::int64_t{1} << 62;
  EXPECT_THROW((Shape{big, big, big}), Error);
  EXPECT_EQ((Shape{big, big, 0}).elements(), 0u);
  EXPECT_THROW((Shape{0, big + 1}), Error);
}

/// The longest dimensions that there are beside one of 0.
TEST(Shape, DecodesWhateverItEncodes) {
  const std::int64_t big = Shape::kMaxDimension;
  const Shape shape{0, big, big};
  const Codec codec = Codec::parse("sign");
  std::vector<std::byte> message(codec.max_encoded_bytes(shape)),
      work(test::workspace_bytes(codec, shape));
  std::uint64_t bytes = 0;
  ASSERT_EQ(codec.encode({nullptr, DType::f32, shape}, {}, {message.data(), message.size(), &bytes},
                         {.workspace = work}),
            Status::ok);
  EXPECT_EQ(codec.decode(ConstBytes(message).first(bytes), {nullptr, DType::f32, shape},
                         {.workspace = work}),
            Status::ok);
}

TEST(Policy, SaysRulesThatItReadsAgain) {
  const Codec sign = Codec::parse("sign"), qsgd = Codec::parse("qsgd:bits=4");
  for (const std::string pattern : {"*", "a:b", "fc 1.*", "w\té?", "[x]"}) {
    const Policy policy(std::vector<Policy::Rule>{{pattern, sign}, {"*", qsgd}});
    const Policy again = Policy::parse(policy.to_string());
    ASSERT_EQ(again.rules().size(), 2u) << pattern;
    EXPECT_EQ(again.rules()[0].pattern, pattern);
    EXPECT_EQ(again.to_string(), policy.to_string());
  }
  for (const std::string pattern : {"", "a;b", "a#b", "a=b", "a\nb", " a", "a\t", "a\r"}) {
    try {
      (void)Policy(std::vector<Policy::Rule>{{"x", qsgd}, {pattern, sign}});
      ADD_FAILURE() << pattern;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("pattern of rule 2"), std::string::npos) << e.what();
    }
  }
}

TEST(Spec, ShowsControlCharacters) {
  using namespace std::string_view_literals;
  for (const auto spec : {"sign\0"sv, "qsgd:bits=4\0"sv, "qsgd\0:bits=4"sv}) {
    try {
      (void)Codec::parse(spec);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_NE(std::string_view(e.what()).find("\\x00"), std::string_view::npos) << e.what();
      EXPECT_GT(std::string_view(e.what()).size(), 30u) << e.what();
    }
  }
}

}  // namespace
}  // namespace atomo
