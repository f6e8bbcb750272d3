// SPDX-License-Identifier: Apache-2.0
/// content=nearest: atoms that are kept by their size and not by a draw. What is left of a tensor is
/// less than the tensor, rows and blocks are the same whatever the key, and the budget is kept.
#include <gtest/gtest.h>

#include <atomo/atomo.hpp>
#include <cmath>
#include <random>

#include "core/bits.hpp"
#include "format/container_head.hpp"
#include "support/support.hpp"

namespace atomo {
namespace {

const Shape kShape{96, 160};

double norm2(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum;
}

double left_of(const std::vector<float>& x, const std::vector<float>& decoded) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = static_cast<double>(x[i]) - static_cast<double>(decoded[i]);
    sum += e * e;
  }
  return sum / norm2(x);
}

/// Matrices of several kinds, rows of sizes that differ.
std::vector<float> matrix(const std::string& kind) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> heavy(3);
  std::vector<float> x(kShape.elements());
  const auto columns = static_cast<std::size_t>(kShape.dims()[1]);
  const std::size_t rows = x.size() / columns;
  std::vector<float> u(rows), v(columns);
  for (auto& e : u) e = normal(generator);
  for (auto& e : v) e = normal(generator);
  for (std::size_t r = 0; r < rows; ++r) {
    const float size = kind == "equal" ? 1.0F : std::exp(normal(generator));
    for (std::size_t c = 0; c < columns; ++c) {
      float& e = x[r * columns + c];
      e = size * (kind == "heavy" ? heavy(generator) : normal(generator));
      if (kind == "low rank") e = u[r] * v[c] + 0.1F * e;
      if (kind == "spikes") e = generator() % 97 == 0 ? 30 * e : 0;
    }
  }
  return x;
}

class Nearest : public testing::TestWithParam<std::string> {
 protected:
  static Codec codec(double bits) {
    return Codec::parse("atomo:bits=" + std::to_string(bits) + ",content=nearest" + GetParam());
  }
};

/// |x - decoded|^2 < |x|^2 of every message: no entry of a kept atom leaves more than itself, and a
/// message of this budget keeps some.
TEST_P(Nearest, LeavesLessThanThereWas) {
  for (const std::string kind : {"equal", "unequal", "heavy", "low rank", "spikes"}) {
    const auto x = matrix(kind);
    for (const double bits : {0.125, 0.5, 2.0}) {
      for (std::uint32_t step = 0; step < 8; ++step) {
        const auto m = test::encode(codec(bits), x, kShape, {.seed = 3, .step = step});
        ASSERT_FALSE(failed(m.status));
        EXPECT_LT(left_of(x, test::decode(codec(bits), m.bytes, kShape).values), 1)
            << kind << ", " << bits;
      }
    }
  }
}

/// At equal bytes the drawn atoms leave several times as much: what they are unbiased for.
TEST_P(Nearest, LeavesLessThanDrawnAtoms) {
  const auto x = matrix("unequal");
  for (const double bits : {0.25, 1.0}) {
    const Codec drawn = Codec::parse("atomo:bits=" + std::to_string(bits) + GetParam());
    double sizes[2] = {}, left[2] = {};
    for (std::uint32_t step = 0; step < 8; ++step) {
      for (const bool nearest : {false, true}) {
        const Codec& of = nearest ? codec(bits) : drawn;
        const auto m = test::encode(of, x, kShape, {.seed = 4, .step = step});
        sizes[nearest] += static_cast<double>(m.bytes.size()) / 8;
        left[nearest] += left_of(x, test::decode(of, m.bytes, kShape).values) / 8;
      }
    }
    EXPECT_LT(sizes[1], 1.08 * sizes[0] + 16) << bits;
    EXPECT_LT(left[1], 0.6 * left[0]) << bits;
  }
}

/// Of rows and blocks nothing is drawn: messages of two keys have the same bodies. A sketch has a basis of its key;
/// `auto` takes rows here.
TEST_P(Nearest, OwesNothingToTheKey) {
  const bool draws = GetParam() == ",atoms=sketch";
  const auto x = matrix("unequal");
  const auto first = test::encode(codec(0.5), x, kShape, {.seed = 8, .step = 1});
  const auto second = test::encode(codec(0.5), x, kShape, {.seed = 9, .step = 7, .worker = 3});
  ContainerInfo info;
  ASSERT_EQ(inspect(first.bytes, info), Status::ok);
  const auto row = format::LayerRecord::of(core::load_le<std::uint64_t>(first.bytes.data() + 64));
  EXPECT_TRUE(row.flags & format::LayerRecord::kCentred);
  const auto body_of = [&](const std::vector<std::byte>& bytes) {
    return std::vector<std::byte>(bytes.begin() + static_cast<std::ptrdiff_t>(info.head_bytes),
                                  bytes.end());
  };
  EXPECT_EQ(body_of(first.bytes) != body_of(second.bytes), draws);
  EXPECT_EQ(test::decode(codec(0.5), first.bytes, kShape).values !=
                test::decode(codec(0.5), second.bytes, kShape).values,
            draws);
}

TEST_P(Nearest, IsBiasedAndSaysSo) {
  const Traits traits = codec(0.5).traits();
  EXPECT_FALSE(traits.unbiased);
  EXPECT_TRUE(std::isinf(traits.bias_bound));
  EXPECT_EQ(Codec::parse(codec(0.5).to_string()), codec(0.5));
  EXPECT_NE(codec(0.5).to_string().find("content=nearest"), std::string::npos);
}

/// A model of both kinds has one price, and each layer keeps its way.
TEST_P(Nearest, SharesAPriceWithDrawnAtoms) {
  if (test::kDevice != Device::cpu) GTEST_SKIP() << "in host memory";
  const std::string rules =
      "near=atomo:bits=0.5,content=nearest" + GetParam() + "\ndrawn=atomo:bits=0.5" + GetParam();
  Compressor model({{"near", kShape}, {"drawn", kShape}}, Policy::parse(rules));
  const auto x = matrix("unequal");
  std::vector<std::byte> payload(model.max_encoded_bytes()),
      workspace(std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes()));
  std::vector<float> near(x.size()), drawn(x.size());
  double left_near = 0, left_drawn = 0, bytes_of_all = 0;
  for (std::uint32_t step = 0; step < 8; ++step) {
    std::uint64_t bytes = 0;
    ASSERT_FALSE(
        failed(model.encode({{{x.data(), DType::f32, kShape}, {x.data(), DType::f32, kShape}}},
                            {.seed = 6, .step = step}, {payload.data(), payload.size(), &bytes},
                            {.workspace = workspace})));
    ASSERT_EQ(
        model.decode(ConstBytes(payload).first(bytes),
                     {{{near.data(), DType::f32, kShape}, {drawn.data(), DType::f32, kShape}}},
                     {.workspace = workspace}),
        Status::ok);
    left_near += left_of(x, near) / 8;
    left_drawn += left_of(x, drawn) / 8;
    bytes_of_all += static_cast<double>(bytes) / 8;
  }
  EXPECT_NEAR(bytes_of_all, model.budget_bytes(), 0.1 * model.budget_bytes());
  EXPECT_LT(left_near, 0.7);
  EXPECT_LT(left_near, left_drawn);
}

INSTANTIATE_TEST_SUITE_P(Atoms, Nearest,
                         testing::Values("", ",atoms=rows", ",atoms=blocks", ",atoms=sketch"),
                         [](const auto& of) {
                           return of.param.empty() ? std::string("automatic") : of.param.substr(7);
                         });

/// Rows of 160 entries: those whose rms is 1.5 times the price and more, whatever the key.
TEST(NearestRows, AreThoseOfASize) {
  const auto x = matrix("unequal");
  const Codec codec = Codec::parse("atomo:bits=0.5,atoms=rows,content=nearest");
  const auto columns = static_cast<std::size_t>(kShape.dims()[1]);
  std::size_t kept = 0;
  for (std::uint32_t step = 0; step < 4; ++step) {
    const auto m = test::encode(codec, x, kShape, {.seed = 9, .step = step, .worker = 2});
    ContainerInfo info;
    ASSERT_EQ(inspect(m.bytes, info), Status::ok);
    const auto price = static_cast<double>(info.prices.atoms);
    const auto decoded = test::decode(codec, m.bytes, kShape).values;
    kept = 0;
    for (std::size_t r = 0; r < x.size() / columns; ++r) {
      const auto row = [&](const std::vector<float>& of) {
        return std::vector<float>(of.begin() + static_cast<std::ptrdiff_t>(r * columns),
                                  of.begin() + static_cast<std::ptrdiff_t>((r + 1) * columns));
      };
      const double rms = std::sqrt(norm2(row(x)) / static_cast<double>(columns));
      EXPECT_EQ(norm2(row(decoded)) > 0, rms >= 1.5 * price) << "row " << r << ", step " << step;
      kept += rms >= 1.5 * price ? 1 : 0;
    }
  }
  EXPECT_GT(kept, 3u);
  EXPECT_LT(kept, x.size() / columns - 3);
}

TEST(NearestSpecs, RefuseWhatDoesNotGoTogether) {
  for (const auto& [spec, says] : std::initializer_list<std::pair<std::string, std::string>>{
           {"atomo:bits=1,content=near", "the nearest is nearest"},
           {"atomo:bits=1,cap=2,content=nearest", "cap= goes with content=drawn"},
           {"atomo:bits=1,atoms=coordinate,content=nearest",
            "content=nearest goes with atoms=auto"},
           {"atomo:atoms=svd,keep=3,values=f32,content=nearest", "goes with values=dither"}}) {
    try {
      (void)Codec::parse(spec);
      FAIL() << spec;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace atomo
