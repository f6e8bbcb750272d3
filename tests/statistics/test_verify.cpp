// SPDX-License-Identifier: Apache-2.0
/// atomo/verify.hpp finds models of published mistakes, and passes the same codecs without them and all of
/// the library's. Each model prints by what it was found and in which time: the table of docs/verify.md.
#include "atomo/verify.hpp"

#include <chrono>
#include <iomanip>
#include <iostream>
#include <limits>

#include "statistics/verify_models.hpp"
#include "support/support.hpp"

namespace atomo::test {
namespace {

using verify::Claims;
using verify::Subject;

/// A sanitizer looks at memory: few draws of short tensors show it all there is.
verify::Options options() {
  verify::Options few;
  few.draws = kSanitized ? 64 : 2048;
  few.entries = 1u << 24;
  few.own_inputs = !kSanitized;
  if (kSanitized) {
    few.inputs = verify::generated_inputs(few.seed);
    std::erase_if(few.inputs,
                  [](const verify::Input& input) { return input.values.size() > 1000; });
  }
  return few;
}

struct Model {
  const char* name;
  Subject subject;
  Claims claims;
  const char* found_by;  ///< the claim that fails; null: every claim holds
};

Claims unbiased() {
  Claims claims;
  claims.unbiased = true;
  claims.bias_bound = 1e-6;
  return claims;
}
Claims with(Claims claims, void (*change)(Claims&)) {
  change(claims);
  return claims;
}
Claims of_workers() {
  return with(unbiased(), [](Claims& c) { c.independent_workers = true; });
}

Arrives with_key(Arrives codec, Key (*change)(Key)) {
  return [=](Floats x, const Key& key) { return codec(x, change(key)); };
}

/// A matrix of two columns: an entry too many is left.
std::vector<float> last_of_odd(Floats x, const Key& key) {
  std::vector<float> y = qsgd()(x, key);
  if (y.size() % 2 == 1) y.back() = 0;
  return y;
}

/// The numbers of the draws come from a counter of calls, not from the key.
Subject counter_for_a_key() {
  const auto calls = std::make_shared<std::uint32_t>(0);
  return subject_of("random numbers of a counter", [=](Floats x, const Key&) {
    return qsgd()(x, {.seed = 9, .step = (*calls)++});
  });
}

/// What the last message left out goes with the next of the same size, whoever sends it.
Subject hidden_memory() {
  const auto left = std::make_shared<std::vector<float>>();
  return subject_of("a memory between calls", [=](Floats x, const Key&) {
    std::vector<float> sum(x.begin(), x.end());
    if (left->size() == x.size())
      for (std::size_t i = 0; i < x.size(); ++i) sum[i] += (*left)[i];
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = std::copysign(0.5f, sum[i]);
    *left = sum;
    for (std::size_t i = 0; i < x.size(); ++i) (*left)[i] -= y[i];
    return y;
  });
}

/// Only entries that are not zero are written.
Subject sparse() {
  return {"as long as it is dense",
          [](Floats x, const Shape&, const Key&) {
            std::vector<float> pairs;
            for (std::size_t i = 0; i < x.size(); ++i)
              if (x[i] != 0) pairs.insert(pairs.end(), {static_cast<float>(i), x[i]});
            return bytes_of(pairs);
          },
          [](ConstBytes message, std::span<float> y, const Shape&) {
            std::fill(y.begin(), y.end(), 0.0f);
            const auto pairs = values_of<float>(message);
            for (std::size_t i = 0; i < pairs.size(); i += 2)
              y[static_cast<std::size_t>(pairs[i])] = pairs[i + 1];
          },
          0};
}

/// Entries that are kept by a draw, with their indices behind their count; never more than half of them.
Subject sampled(double share) {
  return {"",
          [=](Floats x, const Shape&, const Key& key) {
            KeyDraws draw(key);
            std::vector<float> message{0};
            for (std::size_t i = 0; i < x.size(); ++i) {
              if (draw() < share && message.size() <= x.size())
                message.insert(message.end(), {static_cast<float>(i), x[i]});
            }
            message[0] = static_cast<float>(message.size() / 2);
            return bytes_of(message);
          },
          [](ConstBytes message, std::span<float> y, const Shape&) {
            std::fill(y.begin(), y.end(), 0.0f);
            const auto values = values_of<float>(message);
            for (std::size_t i = 1; i < values.size(); i += 2)
              y[static_cast<std::size_t>(values[i])] = values[i + 1];
          },
          0};
}
double quarter(const verify::Input& input) {
  return 4 + 8 * 0.25 * static_cast<double>(input.values.size());
}
std::size_t half(const Shape& shape) { return 8 * ((shape.elements() + 1) / 2); }

/// Entries above the k-th largest magnitude, k a twentieth of all: none where all are alike.
std::vector<float> above_threshold(Floats x, const Key&) {
  std::vector<float> y(x.begin(), x.end()), sizes;
  for (const float v : x) sizes.push_back(std::fabs(v));
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  const std::size_t k = (x.size() + 19) / 20;
  for (float& v : y)
    if (!(std::fabs(v) > sizes[k - 1])) v = 0;
  return y;
}

/// A comparison with a NaN is false, so the largest magnitude misses it, and so does the level.
std::vector<float> blind_to_nan(Floats x, const Key&) {
  std::vector<float> y;
  for (const float v : x) y.push_back(v > 0 ? 1.0f : v < 0 ? -1.0f : 0.0f);
  return y;
}

std::vector<Model> mistakes() {
  const auto squared = [](Claims& c) { c.omega = std::sqrt(64.0); };
  return {
      {"QSGD rounds up with 1 - the fraction",
       subject_of("", qsgd([](double f) { return f == 0 ? 0 : 1 - f; })), unbiased(), "unbiased"},
      {"the highest level carries into the sign", subject_of("", level_in_the_sign), unbiased(),
       "unbiased"},
      {"1e-8 is added to the norm", subject_of("", qsgd(fairly, 1e-8)), unbiased(), "unbiased"},
      {"QSGD rounds to the nearest level",
       subject_of("", qsgd([](double f) { return f < 0.5 ? 0.0 : 1.0; })), unbiased(), "unbiased"},
      {"TernGrad clips at 2.5 deviations", subject_of("", ternary(2.5)), unbiased(), "unbiased"},
      {"ATOMO draws again when nothing is kept",
       subject_of("", coordinates([](std::size_t kept) { return kept == 0; })), unbiased(),
       "unbiased"},
      {"a message that is too long is drawn again",
       subject_of("", coordinates([](std::size_t kept) { return kept > 2; })), unbiased(),
       "unbiased"},
      {"random-k without its scale", subject_of("", random_k(false)), unbiased(), "unbiased"},
      {"random-k draws an entry twice", subject_of("", random_k_with_replacement), unbiased(),
       "unbiased"},
      {"indices of 16 bits", random_k_with_indices<std::uint16_t>(""), unbiased(), "unbiased"},
      {"DRIVE with one rotation claims no bias", subject_of("", drive(true)), unbiased(),
       "unbiased"},
      {"two factors are rounded by one draw", subject_of("", factors(true)), unbiased(),
       "unbiased"},
      {"min and max with a unit of at least 1e-10", subject_of("", min_max), unbiased(),
       "unbiased"},
      {"long words are sent raw", subject_of("", long_ones_raw), unbiased(), "unbiased"},
      {"bf16 to the nearest", subject_of("", nearest_bf16), unbiased(), "unbiased"},
      {"the last entry of an odd size", subject_of("", last_of_odd), unbiased(), "unbiased"},
      {"the step's last 8 bits are the key",
       subject_of("", with_key(random_k(true),
                               [](Key k) {
                                 return Key{
                                     .seed = k.seed, .step = k.step % 256, .tensor = k.tensor};
                               })),
       unbiased(), "unbiased"},
      {"all layers have one key",
       subject_of("", with_key(qsgd(), [](Key k) { return Key{.seed = k.seed, .step = k.step}; })),
       unbiased(), "unbiased"},
      {"all workers have one seed",
       subject_of("", with_key(qsgd(),
                               [](Key k) {
                                 return Key{.seed = k.seed, .step = k.step, .tensor = k.tensor};
                               })),
       of_workers(), "independent workers"},
      {"one draw for all entries", subject_of("", one_draw),
       with(unbiased(), [](Claims& c) { c.independent_entries = true; }), "independent entries"},
      {"a bucket's variance for a whole layer",
       subject_of("",
                  [](Floats x, const Key& key) {
                    KeyDraws draw(key);
                    const double norm = norm_of(x);
                    std::vector<float> y(x.size());
                    for (std::size_t i = 0; i < x.size() && norm > 0; ++i)
                      if (draw() < std::fabs(static_cast<double>(x[i])) / norm)
                        y[i] = std::copysign(static_cast<float>(norm), x[i]);
                    return y;
                  }),
       with(unbiased(), squared), "omega"},
      {"a threshold that equal entries do not pass", subject_of("", above_threshold),
       with({}, [](Claims& c) { c.contraction = 0.05; }), "contraction"},
      {"DRIVE makes NaN of zeros", subject_of("", drive(false)), {}, "finite"},
      {"a NaN is not seen", subject_of("", blind_to_nan),
       with({}, [](Claims& c) { c.non_finite = verify::NonFinite::told; }), "Inf and NaN"},
      {"random numbers of a counter", counter_for_a_key(), unbiased(), "deterministic"},
      {"a memory between calls", hidden_memory(), {}, "order-free"},
      {"a size that follows the zeros", sparse(), with({}, [](Claims& c) { c.fixed_size = true; }),
       "fixed size"},
      {"a share of 16/64 becomes 17/64", sampled(17 / 64.0),
       with({}, [](Claims& c) { c.average_bytes = quarter; }), "bytes on average"},
      {"the cap leaves out the count", sampled(0.25),
       with({}, [](Claims& c) { c.max_bytes = half; }), "bytes at most"},
  };
}

std::vector<Model> twins() {
  const auto never = [](std::size_t) { return false; };
  return {
      {"QSGD", subject_of("", qsgd()), of_workers(), nullptr},
      {"TernGrad", subject_of("", ternary(1e9)), of_workers(), nullptr},
      {"ATOMO's coordinates", subject_of("", coordinates(never)), of_workers(), nullptr},
      {"random-k", subject_of("", random_k(true)),
       with(of_workers(), [](Claims& c) { c.omega = 9, c.fixed_size = true; }), nullptr},
      {"random-k with indices of 32 bits", random_k_with_indices<std::uint32_t>(""), of_workers(),
       nullptr},
      {"DRIVE", subject_of("", drive(true)), {}, nullptr},
      {"two factors", subject_of("", factors(false)), of_workers(), nullptr},
      {"a share of 16/64, half at most", sampled(0.25),
       with({},
            [](Claims& c) {
              c.average_bytes = quarter;
              c.max_bytes = [](const Shape& shape) { return 4 + half(shape); };
            }),
       nullptr},
      {"one draw for all entries, which is no bias", subject_of("", one_draw), of_workers(),
       nullptr},
  };
}

/// What a model was found by: of the checks that failed, of the claim that is wrong, the surest.
const verify::Check* found_by(const verify::Report& report, const std::string& claim) {
  const verify::Check* best = nullptr;
  const auto sureness = [](const verify::Check& c) {
    return c.band == 0 ? 1e300 : std::fabs(c.found) / c.band;
  };
  for (const verify::Check& check : report.checks)
    if (!check.holds && check.claim == claim &&
        (best == nullptr || sureness(check) > sureness(*best)))
      best = &check;
  return best;
}

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

class Verify : public testing::TestWithParam<std::size_t> {};

TEST_P(Verify, FindsTheMistake) {
  const Model model = mistakes()[GetParam()];
  const auto start = std::chrono::steady_clock::now();
  const verify::Report report = verify::run(model.subject, model.claims, options());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const verify::Check* check = found_by(report, model.found_by);
  if (kSanitized) return;
  EXPECT_FALSE(report.holds()) << model.name;
  ASSERT_NE(check, nullptr) << model.name << "\n" << report.to_text();
  EXPECT_LT(seconds, 60);
  std::cout << "| " << model.name << " | " << check->claim << ": " << check->what << ", '"
            << check->input << "' | " << shown(check->found)
            << (check->band > 0 ? " ± " + shown(check->band) : "") << " | " << std::fixed
            << std::setprecision(1) << seconds << " |\n";
}

TEST(Verify, PassesTheSameWithoutTheMistake) {
  for (const Model& model : twins()) {
    const verify::Report report = verify::run(model.subject, model.claims, options());
    EXPECT_TRUE(report.holds()) << model.name << "\n" << report.to_text();
  }
}

TEST(Verify, PassesTheLibrarysCodecs) {
  verify::Options few = options();
  few.draws = kSanitized ? 64 : 256;
  few.entries = 1u << 14;
  std::vector<std::string> specs = all_specs();
  specs.emplace_back("atomo:bits=1,cap=2,atoms=rows");
  for (const std::string& spec : specs) {
    const Codec codec = Codec::parse(spec);
    const verify::Report report =
        verify::run(verify::subject_of(codec), verify::claims_of(codec), few);
    EXPECT_TRUE(report.holds()) << spec << "\n" << report.to_text();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Verify, testing::Range(std::size_t{0}, mistakes().size()));

}  // namespace
}  // namespace atomo::test
