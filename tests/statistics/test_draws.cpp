// SPDX-License-Identifier: Apache-2.0
/// The places that the ledger of draws (message_checks.hpp) counts are the ones that the library
/// draws from: codecs written again entry by entry from these places decode to the same bits.
#include <gtest/gtest.h>

#include "core/half.hpp"
#include "price/pair_costs.hpp"
#include "statistics/message_checks.hpp"
#include "statistics/predictions.hpp"
#include "support/support.hpp"

namespace atomo::test {

using namespace model;
namespace {

constexpr Key kKey{.seed = 0x123456789ABCDEFull, .step = 7, .tensor = 3, .worker = 2, .channel = 1};

std::vector<float> decoded(const std::string& spec, const std::vector<float>& x,
                           const Shape& shape) {
  const Codec codec = Codec::parse(spec);
  return decode(codec, encode(codec, x, shape, kKey).bytes, shape).values;
}

/// The 16 + 16 bits of an entry.
struct PlacedDraw {
  Philox first, second;
  std::uint64_t i;
  [[nodiscard]] std::uint32_t high() const {
    const EntryPlace p = short_place(i);
    return (first(p.index)[p.word] >> p.bit) & 0xFFFFu;
  }
  [[nodiscard]] std::uint32_t low() const {
    const EntryPlace p = short_place(i);
    return (second(p.index)[p.word] >> p.bit) & 0xFFFFu;
  }
};

/// Entries that tie with their first 16 bits need the others: draws are compared near the
/// thresholds they make.
std::vector<float> with_ties(std::size_t n, float norm, Purpose purpose, int bits) {
  std::vector<float> x = heavy_tailed(n, 9, 64);
  const Philox draws(kKey, purpose);
  const bool one_bit = bits == 1;
  const float step = math::level_step(norm, one_bit ? 1 : (1 << (bits - 1)) - 1);
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 3 != 0) continue;
    const EntryPlace p = short_place(i);
    const std::uint32_t high = (draws(p.index)[p.word] >> p.bit) & 0xFFFFu;
    const float place = static_cast<float>(high) + 0.25f * static_cast<float>(i % 4);
    x[i] = one_bit ? (place - 32768) / 32768 * norm : place / 65536 * step;
  }
  for (float& v : x) v = std::clamp(v, -norm, norm);
  x[n / 2] = norm;
  return x;
}

void expect_levels(const std::string& spec, int bits, std::size_t bucket, Purpose first,
                   Purpose second) {
  const std::size_t n = 1285;  // ten tiles and five entries
  const int levels = bits == 1 ? 1 : (1 << (bits - 1)) - 1;
  const std::vector<float> x = with_ties(n, 1.0f, first, bits);
  const std::vector<float> y = decoded(spec, x, Shape{static_cast<std::int64_t>(n)});
  for (std::size_t i = 0; i < n; ++i) {
    float norm = 0;
    for (std::size_t j = i / bucket * bucket; j < std::min(n, (i / bucket + 1) * bucket); ++j)
      norm = std::max(norm, std::fabs(x[j]));
    const float step = math::level_step(norm, levels);
    const math::LevelScale scale = math::level_scale(step, bits == 1 ? 32768.0f : 65536.0f);
    PlacedDraw draw{Philox(kKey, first), Philox(kKey, second), i};
    float expected = 0;
    if (bits == 1) {
      expected = math::round_to_sign((x[i] * scale.pre) * scale.inv, draw) ? norm : -norm;
    } else {
      const float z = std::min((std::fabs(x[i]) * scale.pre) * scale.inv,
                               65536.0f * static_cast<float>(levels));
      expected = std::copysign(static_cast<float>(math::round_to_level(z, draw)) * step, x[i]);
    }
    ASSERT_EQ(y[i], expected) << spec << " entry " << i;
  }
}

TEST(Draws, OfQsgdAreWhereTheLedgerSays) {
  expect_levels("qsgd:bits=4,bucket=2000", 4, 2000, Purpose::qsgd, Purpose::qsgd_low);
  expect_levels("qsgd:bits=2,bucket=100", 2, 100, Purpose::qsgd, Purpose::qsgd_low);
  expect_levels("qsgd:bits=1,bucket=2000", 1, 2000, Purpose::qsgd, Purpose::qsgd_low);
}

TEST(Draws, OfTernGradAreWhereTheLedgerSays) {
  expect_levels("terngrad", 2, 1u << 20, Purpose::ternary, Purpose::ternary_low);
}

TEST(Draws, OfHalvesAreWhereTheLedgerSays) {
  const std::vector<float> x = heavy_tailed(1003, 5, 50);
  const Shape shape{1003};
  const auto word = [](Purpose first, Purpose further, std::uint64_t i) {
    const auto bits = [i](Purpose purpose) {
      const EntryPlace p = short_place(i);
      return (Philox(kKey, purpose)(p.index)[p.word] >> p.bit) & 0xFFFFu;
    };
    return bits(first) << 16 | bits(further);
  };
  const std::vector<float> y = decoded("identity:dtype=bf16", x, shape);
  const Codec plain = Codec::parse("identity");
  const auto message = encode(plain, x, shape, kKey).bytes;
  std::vector<std::uint16_t> half(x.size());
  std::vector<std::byte> workspace(test::workspace_bytes(plain, shape, DType::f16));
  ASSERT_FALSE(
      failed(plain.decode(message, {half.data(), DType::f16, shape}, {.workspace = workspace})));
  bool overflow = false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i],
              from_bf16(to_bf16(x[i], word(Purpose::identity, Purpose::identity_low, i), overflow)))
        << i;
    ASSERT_EQ(half[i], to_f16(x[i], word(Purpose::output, Purpose::output_low, i), overflow)) << i;
  }
}

TEST(Draws, OfRandomKAreWhereTheLedgerSays) {
  const std::size_t n = 9000;  // three segments
  const std::vector<float> x(n, 1.0f);
  const std::vector<float> y = decoded("randomk:keep=900", x, Shape{static_cast<std::int64_t>(n)});
  Key shared = kKey;
  shared.worker = 0;
  const Philox draws(shared, Purpose::random_k);
  const auto both = [&](std::uint64_t block, std::uint64_t word) {
    return draws(block)[word] | (std::uint64_t{draws(block)[word + 1]} << 32);
  };
  const std::uint64_t offset = math::scale_offset(both(0, 0), both(0, 2), n);
  std::set<std::uint64_t> kept;
  for (std::uint64_t begin = 0; begin < n; begin += 4096) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + 4096, n);
    const std::uint64_t m = (900 * end + offset) / n - (900 * begin + offset) / n;
    for (std::uint64_t d = 0; d < m; ++d) {
      const std::uint64_t j = end - begin - m + d;
      const std::uint64_t t =
          begin + math::scale_draw(both(1 + begin / 4096 * 2048 + d / 2, d % 2 * 2), j);
      kept.insert(kept.count(t) != 0 ? begin + j : t);
    }
  }
  ASSERT_EQ(kept.size(), 900u);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(y[i], kept.count(i) != 0 ? 10.0f : 0.0f) << i;
}

/// At a price that makes every atom certain only content is drawn.
TEST(Draws, OfAtomsAreWhereTheLedgerSays) {
  const float price = 0.5f;
  for (const bool rows : {true, false}) {
    for (const std::int64_t length : {16, 31, 256, 300, 1025, 2100}) {
      const Shape shape{7, length};
      const std::size_t n = shape.elements();
      std::vector<float> x(n);
      std::mt19937 random(static_cast<std::uint32_t>(length));
      for (float& v : x) v = 0.6f + 0.8f * static_cast<float>(random() >> 8) * 0x1p-24f;
      const std::vector<float> y =
          decoded(std::string("atomo:price=0.5,atoms=") + (rows ? "rows" : "blocks"), x, shape);
      const std::uint64_t atom = rows ? static_cast<std::uint64_t>(length) : 256;
      const Philox dither(kKey, rows ? Purpose::dither_row : Purpose::dither_block);
      const Philox pre(kKey, rows ? Purpose::pre_round_row : Purpose::pre_round_block);
      for (std::uint64_t t = 0; t * atom < n; ++t) {
        const std::uint64_t entries = std::min(atom, n - t * atom), tiles = (atom + 31) / 32;
        double squares = 0;
        for (std::uint64_t i = 0; i < entries; ++i)
          squares += static_cast<double>(x[t * atom + i]) * static_cast<double>(x[t * atom + i]);
        const int c = math::class_of_ratio(std::sqrt(squares / static_cast<double>(entries)) / 0.5);
        ASSERT_GT(c, 0);
        const auto scale = math::certain_scale<float>(price, coding::kAtomClasses[c].delta);
        for (std::uint64_t i = 0; i < entries; ++i) {
          const std::uint64_t u = i / 32, in_tile = std::min<std::uint64_t>(32, entries - 32 * u),
                              half = (in_tile + 1) / 2;
          const bool second = i % 32 >= half;
          const PairDraws d =
              pair_draws(t, tiles, u, static_cast<std::uint32_t>(i % 32 - (second ? half : 0)));
          const std::uint32_t level =
              ((dither(d.level_index)[d.level_word] >> d.level_bit) & 15u) ^ (second ? 8u : 0u);
          const std::uint32_t h =
              (pre(d.pre_index)[d.pre_word] >> (second ? d.second_bit : d.first_bit)) & 0xFFFFu;
          const std::int32_t q =
              math::quantise<float>(x[t * atom + i], scale.inverse, math::EntryDraw{level, h});
          ASSERT_EQ(y[t * atom + i], math::dequantise<float>(q, level, scale.step))
              << length << " " << t << " " << i;
        }
      }
    }
  }
}

/// One factor of pair k as it is decoded, from the places of its draws.
std::vector<double> factor(const float* x, std::uint64_t entries, std::uint64_t k, float inverse,
                           float step, const VectorPurposes& purposes) {
  const Philox dither(kKey, purposes.dither), pre(kKey, purposes.pre_round);
  const std::uint64_t tiles = (entries + 31) / 32;
  std::vector<double> y(entries);
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::uint64_t in_tile = std::min<std::uint64_t>(32, entries - i / 32 * 32);
    const std::uint64_t half = (in_tile + 1) / 2;
    const bool second = i % 32 >= half;
    const PairDraws d = pair_draws(k, tiles, i / 32, static_cast<std::uint32_t>(i % 32 % half));
    const std::uint32_t level =
        ((dither(d.level_index)[d.level_word] >> d.level_bit) & 15u) ^ (second ? 8u : 0u);
    const std::uint32_t h =
        (pre(d.pre_index)[d.pre_word] >> (second ? d.second_bit : d.first_bit)) & 0xFFFFu;
    const std::int32_t q = math::quantise<float>(x[i], inverse, math::EntryDraw{level, h});
    y[i] = static_cast<double>(math::dequantise<float>(q, level, step));
  }
  return y;
}

/// Singular pairs, all certain: the sum of their dithered factors, up to the rounding of that sum.
TEST(Draws, OfPairsAreWhereTheLedgerSays) {
  for (const Shape& shape : {Shape{18, 70}, Shape{45, 17}}) {
    std::vector<float> x(shape.elements());
    std::mt19937 random(3);
    for (float& v : x) v = static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f;
    const float price = 0x1p-9f;
    const std::vector<float> y = decoded("atomo:price=0.001953125,atoms=svd", x, shape);
    const Pairs pairs(x, shape);
    const std::size_t m = pairs.view.shorter(), n = pairs.view.longer();
    const std::size_t aspect = format::pair_aspect(pairs.view);
    const double root = std::sqrt(static_cast<double>(m));
    const double unit = coding::kPairKappa[aspect] *
                        std::sqrt(static_cast<double>(m + n) / static_cast<double>(m * n));
    std::vector<double> sum(x.size());
    for (std::size_t k = 0; k < m; ++k) {
      const auto choice =
          cpu::choose_atom(pairs.sigma[k] * price::pair_amplitude(pairs.view), price);
      ASSERT_GT(choice.atom_class, 0);
      const coding::PairSteps steps = coding::kPairSteps[aspect][choice.atom_class];
      const auto step_u = static_cast<float>(coding::kCodingSteps[steps.shorter].d);
      const float step_v =
          price * static_cast<float>(unit * (coding::kCodingSteps[steps.longer].d *
                                             coding::kClassMiddle[choice.atom_class]));
      const auto u = factor(pairs.shorter.data() + k * m, m, k,
                            static_cast<float>(root / static_cast<double>(step_u)), step_u,
                            {Purpose::pre_round_u, Purpose::dither_u});
      const auto v = factor(pairs.longer.data() + k * n, n, k,
                            static_cast<float>(pairs.unit / (root * static_cast<double>(step_v))),
                            step_v, {Purpose::pre_round_v, Purpose::dither_v});
      const bool wide = pairs.view.rows <= pairs.view.columns;
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < n; ++j) sum[wide ? i * n + j : j * m + i] += u[i] * v[j];
      }
    }
    // A draw from elsewhere would move a factor by steps: many times this.
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(y[i], sum[i], 1e-6) << i;
  }
}

}  // namespace
}  // namespace atomo::test
