// SPDX-License-Identifier: Apache-2.0
/// The bounds behind atomo/verify.hpp: they cover the truth as often as they say, they narrow with draws and
/// widen with looks, and outcomes that are enumerated need none.
#include "verify/bounds.hpp"

#include <cstring>
#include <functional>
#include <random>

#include "atomo/catalogue.hpp"
#include "atomo/own_codec.hpp"
#include "atomo/verify.hpp"
#include "statistics/verify_models.hpp"
#include "support/support.hpp"
#include "verify/findings.hpp"

namespace atomo::test {
namespace {

using verify::Findings;
using verify::Report;
using verify::Span;
using verify::Statistic;

/// How often an interval misses the mean of `draw`, which is in [0, 1].
double missed(double mean, std::size_t draws, double error,
              const std::function<double(std::mt19937_64&)>& draw) {
  std::mt19937_64 generator(7);
  constexpr int kTrials = 4000;
  int misses = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    Statistic numbers;
    for (std::size_t i = 0; i < draws; ++i) numbers.add(draw(generator));
    const Span interval = verify::mean_interval(numbers, {0, 1}, error);
    misses += mean < interval.low || mean > interval.high ? 1 : 0;
  }
  return static_cast<double>(misses) / kTrials;
}

TEST(VerifyBounds, CoverTheTruth) {
  for (const double error : {0.2, 0.02}) {
    for (const std::size_t draws : {8u, 60u, 300u}) {
      for (const double p : {0.5, 0.02}) {
        EXPECT_LE(missed(p, draws, error,
                         [p](std::mt19937_64& g) {
                           return std::bernoulli_distribution(p)(g) ? 1.0 : 0.0;
                         }),
                  error)
            << p << " " << draws;
      }
      EXPECT_LE(
          missed(0.25, draws, error,
                 [](std::mt19937_64& g) { return std::uniform_real_distribution<>(0, 0.5)(g); }),
          error);
    }
  }
}

TEST(VerifyBounds, AreNotMuchWiderThanTheyHaveToBe) {
  // Where nothing varies: the chance of what was not seen.
  Statistic zeros;
  for (int i = 0; i < 1000; ++i) zeros.add(0);
  EXPECT_NEAR(verify::mean_interval(zeros, {0, 1}, 1e-9).high, 1 - std::pow(1e-9 / 4, 1e-3), 1e-6);
  // Where much does: within a tenth of the normal distribution's.
  Statistic many;
  for (int i = 0; i < 1'000'000; ++i) many.add(i % 2);
  const double high = verify::mean_interval(many, {0, 1}, 1e-9).high;
  EXPECT_NEAR(high - 0.5, 0.5 * 6.7 / 1000, 0.05 * 6.7 / 1000);
}

TEST(VerifyBounds, RareEventsGetTheWholeRange) {
  Statistic rare;
  for (int i = 0; i < 1000; ++i) rare.add(i == 500 ? 1 : 0);
  EXPECT_FALSE(rare.is_typical());
  EXPECT_EQ(verify::range_of(rare, {-5, 100}).high, 100);
  Statistic often;
  for (int i = 0; i < 1000; ++i) often.add(i % 10 == 0 ? 1 : 0);
  EXPECT_TRUE(often.is_typical());
  EXPECT_EQ(verify::range_of(often, {-5, 100}).high, 1.5);
}

/// An entry becomes 1 for a fifth of what it is, so a small one hardly ever; else it is the rest, 5 % less or more.
verify::Subject jumping(bool jumps) {
  return subject_of("jumping", [jumps](Floats x, const Key& key) {
    KeyDraws draw(key);
    std::vector<float> y;
    for (const float v : x) {
      const double chance = jumps ? 0.2 * static_cast<double>(v) : 0, coin = draw() < 0.5 ? 0.95 : 1.05;
      y.push_back(draw() < chance ? 1 : static_cast<float>(0.8 * v * coin / (1 - chance)));
    }
    return y;
  });
}

/// 16 entries of 0.0005, which become 1 in 0.3 of 192 draws in all, and 48 that are seen to.
Report run_jumping(bool jumps, std::uint32_t draws) {
  verify::Claims claims;
  claims.unbiased = true;
  verify::Options options;
  options.own_inputs = false;
  options.draws = draws;
  std::vector<float> x(64, 0.5f);
  std::fill(x.begin(), x.begin() + 16, 0.0005f);
  options.inputs = {{"mixed", Shape{64}, x}};
  options.entries = 64 * std::uint64_t{draws};
  return verify::run(jumping(jumps), claims, options);
}

TEST(VerifyBounds, KnowThatASmallEntryMayBecomeALargeOne) {
  const Report report = run_jumping(true, 192);
  EXPECT_TRUE(report.holds()) << report.to_text();
  EXPECT_FALSE(run_jumping(false, 2048).holds());
}

TEST(VerifyBounds, KnowWhatASpikeOfACodebookHides) {
  verify::Options few;
  few.draws = 192;
  few.own_inputs = false;
  for (const verify::Input& input : verify::generated_inputs(1))
    if (input.name == "spikes") few.inputs.push_back(input);
  ASSERT_EQ(few.inputs.size(), 1u);
  register_catalogue();
  const Codec codec = Codec::parse("codebook:levels=quantile");
  const Report report = verify::run(verify::subject_of(codec), verify::claims_of(codec), few);
  EXPECT_TRUE(report.holds()) << report.to_text();
}

TEST(VerifyBounds, FollowTheNumberOfLooks) {
  const auto band = [](int looks) {
    Findings findings;
    for (int k = 0; k < looks; ++k) {
      verify::Look look;
      for (int i = 0; i < 100; ++i) look.numbers.add(i % 2 == 0 ? 1 : -1);
      look.possible = {-1, 1};
      look.exact = true;
      findings.look(look);
    }
    findings.judge(1e-9);
    return findings.judged(0).band;
  };
  EXPECT_LT(band(1), band(10));
  EXPECT_LT(band(10), band(1000));
}

/// Two outcomes, so the mean is known.
verify::Subject either(double bias) {
  verify::Subject subject = subject_of("either", [=](Floats x, const Key& key) {
    std::vector<float> y;
    for (const float v : x) y.push_back(key.step % 2 == 0 ? 0 : static_cast<float>(2 + bias) * v);
    return y;
  });
  subject.outcomes = 2;
  return subject;
}

Report run_alone(const verify::Subject& subject, verify::Claims claims) {
  claims.unbiased = true;
  verify::Options options;
  options.own_inputs = false;
  options.draws = 256;
  options.inputs = {{"mine", Shape{4}, {1, -2, 0.5f, 3}}};
  return verify::run(subject, claims, options);
}

TEST(VerifyOutcomes, AreEnumerated) {
  EXPECT_TRUE(run_alone(either(0), {}).holds());
  const Report report = run_alone(either(1e-4), {});
  EXPECT_FALSE(report.holds());
  for (const verify::Check& check : report.checks) {
    if (check.claim != "unbiased") continue;
    EXPECT_EQ(check.bound, "enumerated");
    EXPECT_EQ(check.band, 0);
  }
  EXPECT_EQ(report.inputs.at(0).draws, 2u);
}

TEST(VerifyBounds, AreExactWhereTheLargestIsClaimed) {
  verify::Subject drawn = either(0);
  drawn.outcomes = 0;
  verify::Claims claims;
  claims.largest = 2;
  claims.omega = 1;
  const Report report = run_alone(drawn, claims);
  for (const verify::Check& check : report.checks) {
    if (check.what.starts_with("bias")) {
      EXPECT_EQ(check.bound, "exact") << check.what;
    }
  }
}

TEST(VerifyBounds, ALargestEntryThatIsClaimedIsLookedAt) {
  verify::Claims claims;
  claims.largest = 1.5;
  const Report report = run_alone(either(0), claims);
  EXPECT_TRUE(std::any_of(
      report.checks.begin(), report.checks.end(),
      [](const verify::Check& check) { return check.claim == "largest" && !check.holds; }));
}

TEST(VerifyReport, IsTheSameOnEveryRun) {
  const Codec codec = Codec::parse("qsgd:bits=2");
  const auto told = [&] {
    verify::Options few;
    few.draws = 64;
    few.entries = 1u << 12;
    return verify::run(verify::subject_of(codec), verify::claims_of(codec), few).to_json();
  };
  EXPECT_EQ(told(), told());
}

TEST(VerifyRun, RefusesWhatItCannotLookAt) {
  const verify::Subject subject = either(0);
  EXPECT_THROW((void)verify::run({}, {}), Error);
  verify::Claims claims;
  claims.omega = -1;
  EXPECT_THROW((void)verify::run(subject, claims), Error);
  claims = {};
  claims.largest = 0.5;
  EXPECT_THROW((void)verify::run(subject, claims), Error);
  verify::Options options;
  options.inputs = {{"short", Shape{4}, {1}}};
  EXPECT_THROW((void)verify::run(subject, {}, options), Error);
  EXPECT_THROW((void)verify::subject_of(Codec::parse("ef+topk:keep=0.1")), Error);
}

TEST(VerifyOutcomes, AreNeverFewerThanAll) {
  verify::Subject subject = either(0);
  subject.outcomes = 257;
  EXPECT_THROW((void)run_alone(subject, {}), Error);  // of 256 draws
  subject.outcomes = 256;
  EXPECT_EQ(run_alone(subject, {}).inputs.at(0).draws, 256u);
}

/// A codec of one's own that is called as the library's are, with one of their keys.
class Plain final : public OwnCodec {
 public:
  explicit Plain(Traits traits) : traits_(traits) {}
  [[nodiscard]] Traits traits() const override { return traits_; }
  [[nodiscard]] std::size_t max_bytes(const Shape& shape) const override {
    return 4 * shape.elements();
  }
  std::size_t encode(std::span<const float> x, const OwnLayer&, Bytes body) const override {
    std::memcpy(body.data(), x.data(), x.size_bytes());
    return x.size_bytes();
  }
  void decode(ConstBytes body, const OwnLayer&, std::span<float> y) const override {
    if (body.size() != y.size_bytes()) throw Error("another length");
    std::memcpy(y.data(), body.data(), body.size());
  }

 private:
  Traits traits_;
};

verify::Claims claims_of_own(const Traits& traits) {
  register_codec({.name = "natural-dtype", .make = [&](SpecKeys& keys) {
                    (void)keys.number("price", 0, 9, 3);
                    (void)keys.choice("select", {"drawn", "f16"}, 0);
                    return std::make_shared<Plain>(traits);
                  }});
  const verify::Claims claims = verify::claims_of(Codec::parse("natural-dtype"));
  EXPECT_TRUE(unregister_codec("natural-dtype"));
  return claims;
}

TEST(VerifyClaims, AreTheTraitsWhateverTheSpecSays) {
  const verify::Claims none = claims_of_own({});
  EXPECT_EQ(none.step, 0);
  EXPECT_EQ(none.smallest, 0);
  EXPECT_EQ(none.highest, std::numeric_limits<double>::infinity());
  EXPECT_FALSE(none.largest);
  Traits traits;
  traits.step = 0.5, traits.smallest = 2, traits.highest = 9, traits.largest = 3;
  const verify::Claims all = claims_of_own(traits);
  EXPECT_EQ(all.step, 0.5);
  EXPECT_EQ(all.smallest, 2);
  EXPECT_EQ(all.highest, 9);
  EXPECT_EQ(all.largest, 3);
  const auto of = [](const char* spec) { return verify::claims_of(Codec::parse(spec)); };
  EXPECT_EQ(of("natural").smallest, 0x1p-126);
  EXPECT_EQ(of("identity:dtype=f16").highest, 65504);
  EXPECT_EQ(of("atomo:price=0.5,atoms=rows").step, 0.5);
  EXPECT_EQ(of("atomo:atoms=coordinate,delta=0.25").step, 0.25);
  EXPECT_EQ(of("topk:chunk=64,k=4,values=2,select=drawn").largest, 16 * (1 + 0x1p-6));
}

}  // namespace
}  // namespace atomo::test
