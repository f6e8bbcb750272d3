// SPDX-License-Identifier: Apache-2.0
/// Whole codecs through the public face, fixed seeds: no bias and no more variance than predicted.
///
/// The family. Every trial (codec and shape) sums the errors of each entry over all draws, and
/// where lines of entries are independent also <y - x, x> of each line. Each sum has a Bernstein
/// bound from its predicted variance; all bounds of all trials together fail in fewer than 1 of
/// 10^9 choices of the seed (kFamilyError), if nothing is biased. The squared error of all draws is
/// within 5 % of its prediction.
#include <gtest/gtest.h>

#include <cctype>

#include "format/container_head.hpp"
#include "statistics/predictions.hpp"
#include "support/support.hpp"

namespace atomo::test {

using namespace model;
namespace {

constexpr double kFamilyError = 1e-9, kTrials = 64;

struct Trial {
  std::string spec;
  Shape shape;
  std::uint32_t draws;
};

void PrintTo(const Trial& trial, std::ostream* out) {
  *out << trial.spec << " on " << trial.shape.to_string();
}

/// The number behind `key=`, or `fallback`.
double number_of(const std::string& spec, const std::string& key, double fallback) {
  const std::size_t at = spec.find(key + "=");
  return at == std::string::npos ? fallback : std::stod(spec.substr(at + key.size() + 1));
}

bool holds(const std::string& spec, const char* word) {
  return spec.find(word) != std::string::npos;
}

PairPrediction predict_plain_pairs(const std::vector<float>& x, const Shape& shape,
                                   std::uint64_t keep) {
  const Pairs pairs(x, shape);
  std::vector<std::uint64_t> probabilities(pairs.sigma.size());
  std::vector<std::uint32_t> order(pairs.sigma.size());
  cpu::water_fill(pairs.sigma, keep, probabilities, order);
  return predict_pairs(
      pairs, shape,
      [&](std::size_t k) { return static_cast<double>(probabilities[k]) / math::kTwo32; },
      [](std::size_t) {
        return std::pair{0.0, 0.0};
      });
}

struct Expected {
  Prediction entries{0};
  double squared_error = 0;

  /// Of draws that do not depend on one another.
  void add(const Expected& draw) {
    if (entries.variance.empty()) {
      *this = draw;
      return;
    }
    const auto sum = [](std::vector<double>& to, const std::vector<double>& from) {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    const auto larger = [](std::vector<double>& to, const std::vector<double>& from) {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
    };
    sum(entries.variance, draw.entries.variance);
    sum(entries.slack, draw.entries.slack);
    sum(entries.line_variance, draw.entries.line_variance);
    larger(entries.largest, draw.entries.largest);
    larger(entries.line_largest, draw.entries.line_largest);
    squared_error += draw.squared_error;
  }
};

/// What a message of one layer is: the spec of the codec that writes such bodies.
std::string spec_of_body(const std::string& spec, const std::vector<std::byte>& message) {
  if (!holds(spec, "atoms=auto")) return spec;
  format::Head head;
  EXPECT_EQ(format::Head::parse(message, true, head), Status::ok);
  format::LayerCursor layer(head);
  Status status = Status::ok;
  EXPECT_TRUE(layer.next(status));
  constexpr const char* kForms[] = {"atoms=blocks", "atoms=rows", "atoms=sketch",
                                    "atoms=coordinate"};
  return std::string(spec).replace(spec.find("atoms=auto"), 10, kForms[layer.row.form()]);
}

/// The random start of a sketch is drawn anew with every key, and its price follows from it.
bool depends_on_key(const std::string& spec) {
  return holds(spec, "atoms=sketch") || holds(spec, "atoms=auto");
}

Expected predict(const Trial& trial, const std::vector<float>& x,
                 const std::vector<std::byte>& message, const Key& key) {
  ContainerInfo info;
  EXPECT_FALSE(failed(inspect(message, info)));
  const float price = info.layers.at(0).price;
  const double bound = Codec::parse(trial.spec).traits().bias_bound;
  const std::string spec = spec_of_body(trial.spec, message);
  if (holds(spec, "atoms=svd")) {
    const PairPrediction p =
        holds(spec, "f32")
            ? predict_plain_pairs(x, trial.shape,
                                  static_cast<std::uint64_t>(number_of(spec, "keep", 0)))
            : predict_dithered_pairs(Pairs(x, trial.shape), trial.shape, price);
    return {p, p.total};
  }
  if (holds(spec, "atoms=sketch")) {
    const MatrixShape view = format::matrix_view(trial.shape);
    const auto rank = static_cast<std::size_t>(
        number_of(spec, "rank", static_cast<double>(default_sketch_rank(view))));
    const PairPrediction p =
        predict_sketch(Sketched(x, view, {rank, 1}, key), trial.shape, price, bound);
    return {p, p.total};
  }
  Prediction p(0);
  if (holds(spec, "identity")) {
    p = predict_half(x, holds(spec, "=f16"));
  } else if (holds(spec, "coordinate")) {
    const float step = holds(trial.spec, "auto") ? 3 * price : price;
    p = predict_coordinates(x, static_cast<double>(step), bound);
  } else if (holds(spec, "qsgd")) {
    p = predict_qsgd(x, static_cast<int>(number_of(spec, "bits", 4)),
                     static_cast<std::size_t>(number_of(spec, "bucket", 512)), holds(spec, "l2"),
                     bound);
  } else if (holds(spec, "terngrad")) {
    p = predict_qsgd(x, 2, x.size(), false, bound);
  } else if (holds(spec, "randomk")) {
    p = predict_random_k(x, static_cast<std::size_t>(std::round(number_of(spec, "keep", 1) *
                                                                static_cast<double>(x.size()))));
  } else {
    const auto rows = static_cast<std::uint64_t>(trial.shape[0]);
    p = predict_atoms(x,
                      holds(spec, "blocks") ? AtomLayout::blocks(x.size())
                                            : AtomLayout::rows(rows, x.size() / rows),
                      static_cast<double>(price), bound);
  }
  const double total = p.squared_error();
  return {std::move(p), total};
}

/// Sums of errors over draws.
struct Sums {
  std::vector<double> entries, lines;
  double squared_error = 0;

  void add(const std::vector<float>& x, const std::vector<float>& y, std::size_t line) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double e = static_cast<double>(y[i]) - static_cast<double>(x[i]);
      entries[i] += e;
      squared_error += e * e;
    }
    for (std::size_t i = 0; line != 0 && i < x.size(); ++i)
      lines[i / line] +=
          (static_cast<double>(y[i]) - static_cast<double>(x[i])) * static_cast<double>(x[i]);
  }
};

/// What is done to decoded values before they are judged: nothing, or a planted bias.
using Tamper = void (*)(std::vector<float>& y);
void leave(std::vector<float>&) {}

/// The worst sum against its bound; above 1 there is a bias. `p` is of all draws together.
double worst_of_bound(const Sums& sums, const Prediction& p, const std::vector<float>& x) {
  const std::size_t n = x.size();
  const BernsteinFamily family(static_cast<double>(n + sums.lines.size()), kFamilyError / kTrials);
  double worst = 0;
  std::vector<double> line_slack(sums.lines.size());
  for (std::size_t i = 0; i < n; ++i) {
    const double reach = family.reach(p.variance[i], p.largest[i]) + p.slack[i];
    if (sums.entries[i] != 0) worst = std::max(worst, std::fabs(sums.entries[i]) / reach);
    if (p.line != 0) line_slack[i / p.line] += std::fabs(static_cast<double>(x[i])) * p.slack[i];
  }
  for (std::size_t l = 0; l < sums.lines.size(); ++l) {
    const double reach = family.reach(p.line_variance[l], p.line_largest[l]) + line_slack[l];
    if (sums.lines[l] != 0) worst = std::max(worst, std::fabs(sums.lines[l]) / reach);
  }
  return worst;
}

struct Verdict {
  double bias = 0;   ///< of its bound
  double error = 0;  ///< of its prediction
  double nmse = 0;   ///< predicted
};

Verdict judge(const Trial& trial, Tamper tamper) {
  const std::size_t n = trial.shape.elements();
  const std::vector<float> x = heavy_tailed(n, 1234 + n, static_cast<std::size_t>(trial.shape[1]));
  const Codec codec = Codec::parse(trial.spec);
  EXPECT_TRUE(codec.traits().unbiased);
  std::vector<std::byte> payload(codec.max_encoded_bytes(trial.shape));
  std::vector<std::byte> workspace(test::workspace_bytes(codec, trial.shape));
  std::vector<float> y(n);
  Context context;
  context.workspace = workspace;
  Expected expected, all;
  Sums sums{std::vector<double>(n), {}, 0};
  for (std::uint32_t step = 0; step < trial.draws; ++step) {
    std::uint64_t bytes = 0;
    const Key key{.seed = 77, .step = step};
    EXPECT_FALSE(failed(codec.encode({x.data(), DType::f32, trial.shape}, key,
                                     {payload.data(), payload.size(), &bytes}, context)));
    EXPECT_FALSE(failed(
        codec.decode({payload.data(), bytes}, {y.data(), DType::f32, trial.shape}, context)));
    if (step == 0 || depends_on_key(trial.spec)) {
      expected = predict(
          trial, x, {payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(bytes)}, key);
      sums.lines.resize(expected.entries.line_variance.size());
    }
    all.add(expected);
    tamper(y);
    sums.add(x, y, expected.entries.line);
  }
  return {worst_of_bound(sums, all.entries, x), sums.squared_error / all.squared_error,
          all.squared_error / trial.draws / squared_norm(x)};
}

std::vector<Trial> trials() {
  const std::vector<std::string> specs = {"identity:dtype=f16",
                                          "identity:dtype=bf16",
                                          "qsgd:bits=1",
                                          "qsgd:bits=2",
                                          "qsgd:bits=4",
                                          "qsgd:bits=8,bucket=64,norm=l2",
                                          "terngrad",
                                          "randomk:keep=0.1",
                                          "atomo:bits=1,atoms=coordinate",
                                          "atomo:bits=4,atoms=coordinate",
                                          "atomo:bits=0.25,atoms=rows",
                                          "atomo:bits=1,atoms=rows",
                                          "atomo:bits=4,atoms=rows",
                                          "atomo:bits=0.5,atoms=blocks"};
  std::vector<Trial> all;
  for (const std::string& spec : specs) {
    all.push_back({spec, Shape{25, 40}, 8000});
    all.push_back({spec, Shape{1000, 1000}, 16});
  }
  for (const char* spec : {"atomo:bits=0.5,atoms=rows", "atomo:bits=2,atoms=blocks",
                           "atomo:atoms=coordinate,keep=0.02"})
    all.push_back({spec, Shape{300, 104}, 300});
  for (const char* spec :
       {"atomo:bits=2,atoms=svd", "atomo:bits=6,atoms=svd", "atomo:atoms=svd,keep=3,values=f32"})
    all.push_back({spec, Shape{24, 40}, 1500});
  for (const char* spec : {"atomo:bits=0.5,atoms=sketch", "atomo:bits=2,atoms=sketch,rank=5",
                           "atomo:bits=6,atoms=sketch", "atomo:bits=2,atoms=auto"}) {
    all.push_back({spec, Shape{24, 40}, 1500});
    all.push_back({spec, Shape{70, 32}, 800});
  }
  return all;
}

class MonteCarlo : public testing::TestWithParam<Trial> {};

TEST_P(MonteCarlo, NoBiasAndThePredictedError) {
  const Verdict verdict = judge(GetParam(), leave);
  EXPECT_LE(verdict.bias, 1);
  EXPECT_NEAR(verdict.error, 1, 0.05);
  std::cout << "  " << GetParam().spec << " " << GetParam().shape.to_string() << ": worst sum "
            << verdict.bias << " of its bound, error " << verdict.error
            << " of predicted, predicted NMSE " << verdict.nmse << "\n";
}

TEST(MonteCarloBounds, ShareTheFamilyError) { EXPECT_LE(trials().size(), kTrials); }

/// The bounds have teeth.
TEST(MonteCarloBounds, SeePlantedBiases) {
  const Tamper shrink = [](std::vector<float>& y) {
    for (float& v : y) v *= 0.97f;
  };
  const Tamper drop_one = [](std::vector<float>& y) { y[y.size() / 2] = 0; };
  const Tamper drift = [](std::vector<float>& y) {
    for (float& v : y) v += 3e-3f;
  };
  for (const char* spec : {"qsgd:bits=4", "atomo:bits=2,atoms=rows", "atomo:bits=2,atoms=blocks",
                           "identity:dtype=bf16"}) {
    const Trial trial{spec, Shape{25, 40}, 4000};
    EXPECT_LE(judge(trial, leave).bias, 1) << spec;
    EXPECT_GT(judge(trial, shrink).bias, 1) << spec;
    EXPECT_GT(judge(trial, drift).bias, 1) << spec;
    EXPECT_GT(judge(trial, drop_one).bias, 1) << spec;
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, MonteCarlo, testing::ValuesIn(trials()),
                         [](const testing::TestParamInfo<Trial>& row) {
                           std::string name =
                               row.param.spec + "_" + std::to_string(row.param.shape.elements());
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

// ---- budgets that pay for nothing

/// Entries of either sign, within a factor of 10 of each other.
std::vector<float> few_entries(std::size_t n) {
  std::vector<float> x;
  for (std::size_t i = 0; i < n; ++i)
    x.push_back((i % 3 == 1 ? -1.0f : 1.0f) * (0.1f + 0.07f * static_cast<float>(i * 5 % 8)));
  return x;
}

/// A few entries under a budget below one bit to a few bits: every message says something, none is
/// far from the tensor, and their mean is it. The bounds: 4 times the largest entry of an atom that
/// is just certain, n times of coordinates, one of which is kept; a squared error of at most that
/// of the tensor, or of n - 1 of them.
TEST(TinyTensors, AreSentWhateverTheBudget) {
  for (const char* atoms : {"rows", "blocks", "sketch", "svd", "auto", "coordinate"}) {
    for (const char* bits : {"0.125", "0.5", "1"}) {
      const auto spec = std::string("atomo:atoms=") + atoms + ",bits=" + bits;
      const Codec codec = Codec::parse(spec);
      const bool on_grid = holds(spec, "coordinate");
      // The others make blocks of what is no matrix.
      const bool alone = on_grid || holds(spec, "blocks") || holds(spec, "auto");
      const std::uint32_t steps = alone ? 2000 : 200;
      for (const std::size_t n : {1u, 2u, 3u, 5u, 8u}) {
        const Shape shape{static_cast<std::int64_t>(n)};
        const std::vector<float> x = few_entries(n);
        const auto entries = static_cast<double>(n);
        const float largest = std::fabs(*std::max_element(
            x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
        const double bound = static_cast<double>(largest) * (on_grid ? std::max(entries, 2.0) : 4);
        std::vector<double> sum(n);
        double error = 0;
        for (std::uint32_t step = 0; step < steps; ++step) {
          const Message m = encode(codec, x, shape, {.seed = 4, .step = step});
          ASSERT_EQ(m.status, Status::overspent) << spec << " " << n;
          ASSERT_LE(m.bytes.size(), 112u) << spec << " " << n;  // the head is 80 to 88 of them
          const Decoded d = decode(codec, m.bytes, shape);
          ASSERT_EQ(d.status, Status::ok);
          EXPECT_GT(squared_norm(d.values), 0) << spec << " " << n << ", step " << step;
          for (std::size_t i = 0; i < n; ++i) {
            ASSERT_LE(std::fabs(static_cast<double>(d.values[i])), bound) << spec << " " << n;
            sum[i] += static_cast<double>(d.values[i]);
          }
          error += nmse(x, d.values) / steps;
        }
        EXPECT_LE(error, on_grid ? std::max(entries - 1, 0.01) * 1.05 : 1.0) << spec << " " << n;
        // Errors are at most `bound` + |x|, so a mean of them is below 7 of their deviations but
        // for 1 of 10^10.
        const double deviation =
            (bound + static_cast<double>(largest)) / std::sqrt(static_cast<double>(steps));
        for (std::size_t i = 0; i < n; ++i)
          EXPECT_NEAR(sum[i] / steps, static_cast<double>(x[i]), 7 * deviation) << spec << " " << n;
      }
    }
  }
}

/// The one draw of 2^32 that kept an atom of probability 2^-32.
TEST(TinyTensors, NoDrawIsBeyondTheRangeOfF32) {
  const std::vector<float> x = {0.3f, -0.2f, 0.1f};
  const Codec codec = Codec::parse("atomo:atoms=blocks,bits=0.5");
  const Message m = encode(codec, x, Shape{3}, {.seed = 0, .step = 885468578});
  const Decoded d = decode(codec, m.bytes, Shape{3});
  for (const float v : d.values) EXPECT_LE(std::fabs(v), 1.2f);
}

/// Longer tensors keep 16 entries, one atom in 16 blocks of 256: a block is sent now and then, and
/// no error is above 2 (m + n / 16) times the energy of n entries in m blocks.
TEST(TinyTensors, LongerOnesKeepSixteenEntries) {
  for (const std::size_t n : {17u, 100u, 256u, 3000u}) {
    const Shape shape{static_cast<std::int64_t>(n)};
    const std::vector<float> x = heavy_tailed(n, 3, 40);
    const Codec codec = Codec::parse("atomo:atoms=blocks,bits=0.001");
    const double blocks = std::ceil(static_cast<double>(n) / 256);
    double error = 0;
    int sent = 0;
    constexpr int kSteps = 2000;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const Message m = encode(codec, x, shape, {.seed = 2, .step = step});
      ASSERT_EQ(m.status, Status::overspent);
      const Decoded d = decode(codec, m.bytes, shape);
      sent += squared_norm(d.values) > 0 ? 1 : 0;
      error += nmse(x, d.values) / kSteps;
    }
    EXPECT_GE(sent, kSteps / 32) << n;  // 16 of 256 entries are 1 of 16 blocks
    EXPECT_LE(error, 2 * (blocks + static_cast<double>(n) / 16)) << n;
  }
}

/// The budget of a model is that of all its layers: it is exceeded where they have none together,
/// and layers beside a large one share its price.
TEST(TinyTensors, ModelsTellOfTheirBudgetTogether) {
  const auto policy = Policy::parse("*=atomo:bits=0.5,atoms=blocks");
  for (const bool with_large : {false, true}) {
    std::vector<LayerSpec> specs = {{"a", {2, 2}}, {"b", {3}}, {"c", {8}}};
    if (with_large) specs.push_back({"d", {100, 100}});
    Compressor model(specs, policy);
    std::vector<std::vector<float>> values;
    std::vector<ConstTensorView> views;
    for (const auto& spec : specs) values.push_back(few_entries(spec.shape.elements()));
    for (std::size_t i = 0; i < specs.size(); ++i)
      views.push_back({values[i].data(), DType::f32, specs[i].shape});
    const Status expected = with_large ? Status::ok : Status::overspent;
    std::vector<std::byte> message(model.max_encoded_bytes()),
        workspace(test::workspace_bytes(model));
    std::uint64_t bytes = 0;
    const Payload target{message.data(), message.size(), &bytes};
    int sent = 0;
    for (std::uint32_t step = 0; step < 200; ++step) {
      ASSERT_EQ(model.encode(views, {.seed = 3, .step = step}, target, {.workspace = workspace}),
                expected);
      ContainerInfo info;
      ASSERT_EQ(inspect(ConstBytes(message).first(bytes), info), Status::ok);
      for (const auto& layer : info.layers) sent += layer.bytes > 0 ? 1 : 0;
    }
    EXPECT_GE(sent, 190) << with_large;
    for (std::uint32_t step = 0; step < 50; ++step) {
      ASSERT_EQ(model.begin_step({.seed = 3, .step = step, .channel = 1}), Status::ok);
      for (std::size_t i = 0; i < specs.size(); ++i)
        ASSERT_EQ(model.encode_layer(i, views[i], target, {.workspace = workspace}), Status::ok);
      ASSERT_EQ(model.end_step(), expected);
      EXPECT_LT(model.prices().atoms, 2.0f);
    }
  }
}

}  // namespace
}  // namespace atomo::test
