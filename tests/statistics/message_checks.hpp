// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Checks of what goes around the arithmetic: factors of pairs, choices made after a draw, the
/// price, which draw is whose. As in statistics_checks.hpp, the default arithmetic is the
/// library's.

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>

#include "coding/duo_code.hpp"
#include "core/philox.hpp"
#include "cpu/atoms.hpp"
#include "cpu/dither_kernels.hpp"
#include "math/sparse_start.hpp"
#include "math/subset_sampling.hpp"
#include "price/atom_costs.hpp"
#include "price/price_math.hpp"
#include "statistics/statistics_checks.hpp"
#include "support/price_support.hpp"

namespace atomo::test {

using namespace model;

// ---- factors of a pair

struct FactorArithmetic {
  static constexpr Purpose kPreRoundU = Purpose::pre_round_u, kPreRoundV = Purpose::pre_round_v;
  static constexpr Purpose kDitherU = Purpose::dither_u, kDitherV = Purpose::dither_v;
};

/// E[u v] = u v for an entry of each factor. A purpose is one uniform: two draws of one purpose are
/// the same draw.
template <typename Arithmetic = FactorArithmetic>
std::string check_factors() {
  std::map<Purpose, std::size_t> slots;
  for (const Purpose p :
       {Arithmetic::kPreRoundU, Arithmetic::kPreRoundV, Arithmetic::kDitherU, Arithmetic::kDitherV})
    slots.emplace(p, slots.size());
  const std::vector<std::uint32_t> sizes(slots.size(), 16);
  const double outcomes = std::pow(16.0, static_cast<double>(slots.size()));
  const double step_u = 0.5, step_v = 3;
  for (const auto& [u, v] :
       {std::pair{37 / 256.0, 37 / 256.0}, {-5 / 256.0, 259 / 256.0}, {2.5, 3 / 256.0}}) {
    long double sum = 0;
    for_each_tuple(sizes, [&](std::span<const std::uint32_t> d) {
      const ShortDraw du{d[slots.at(Arithmetic::kDitherU)], d[slots.at(Arithmetic::kPreRoundU)]};
      const ShortDraw dv{d[slots.at(Arithmetic::kDitherV)], d[slots.at(Arithmetic::kPreRoundV)]};
      const double a =
          math::dequantise<double>(math::quantise<double>(u, 1.0, du), du.level, step_u);
      const double b =
          math::dequantise<double>(math::quantise<double>(v, 1.0, dv), dv.level, step_v);
      sum += static_cast<long double>(a) * b;
    });
    const double mean = static_cast<double>(sum) / outcomes, expected = u * step_u * v * step_v;
    if (!is_exact(mean, expected, step_u * step_v))
      return complaint("E[u v] = ", mean, " for ", expected);
  }
  return {};
}

// ---- after the draw

struct WrittenArithmetic {
  /// What the decoder gets of an entry `x` whose pair took `bits` bits when dithered.
  static double decoded(double /*x*/, double dithered, unsigned /*bits*/) { return dithered; }
};

/// E = x through the real code lengths: how long a pair comes out must not change its values.
template <typename Arithmetic = WrittenArithmetic>
std::string check_values_and_lengths() {
  for (const std::size_t c : {std::size_t{0}, std::size_t{1}, std::size_t{4}}) {
    const coding::AtomClass& atom_class = coding::kAtomClasses[c];
    const coding::DuoCoding coding =
        coding::duo_coding(atom_class.step, coding::escape_bits(256, atom_class.reach));
    for (const auto& [y0, y1] : {std::pair{2.5, 0.25}, {-1.75, 3 + 5 / 256.0}, {0.125, -0.5}}) {
      Outcomes o({y0, y1});
      const std::array<std::uint32_t, 3> sizes = {kLevels, kPre, kPre};
      for_each_tuple(sizes, [&](std::span<const std::uint32_t> d) {
        const ShortDraw first{d[0], d[1]}, second{d[0] ^ math::kMateDither, d[2]};
        const std::int32_t q0 = math::quantise<double>(y0, 1, first),
                           q1 = math::quantise<double>(y1, 1, second);
        std::byte buffer[32];
        core::BitWriter out(buffer, sizeof buffer);
        coding::put_duo(out, coding, coding::duo_entry(coding, first.level, q0, q1), q0, q1);
        const auto bits = static_cast<unsigned>(out.position());
        out.finish();
        std::uint64_t bit = 0;
        const auto read = coding::get_duo<core::Direction::upward>(
            core::BitReader(buffer, sizeof buffer), coding, first.level, bit);
        const std::array<double, 2> y = {
            Arithmetic::decoded(y0, math::dequantise<double>(read.q0, first.level, 1), bits),
            Arithmetic::decoded(y1, math::dequantise<double>(read.q1, second.level, 1), bits)};
        o.add(1.0 / (kLevels * kPre * kPre), y);
      });
      for (std::size_t k = 0; k < 2; ++k) {
        if (!is_exact(o.bias(k), 0, 4))
          return complaint("class ", c, ", (", y0, ", ", y1, "): bias ", o.bias(k), " steps");
      }
    }
  }
  return {};
}

// ---- the price

/// Layers of two amplitudes, and what a price search needs to know of them.
struct TwoAmplitudes {
  std::array<cpu::PriceBin, 2> bins;
  cpu::PriceCosts costs = price::price_costs(AtomLayout::blocks(512));
  double small, large;

  TwoAmplitudes(double small_rms, double large_rms) : small(small_rms), large(large_rms) {
    bins[0] = {256, 1, amplitude_key(small)};
    bins[1] = {256, 1, amplitude_key(large)};
  }
  [[nodiscard]] cpu::PriceLayer layer() const { return {bins, &costs, 2, large}; }
};

using PriceSearch = float (*)(const cpu::PriceLayer& layer, std::uint64_t budget_bits);

/// However large the budget, the largest entry an atom can hold (all of its norm) decodes to within
/// a step.
inline std::string check_floor(PriceSearch search) {
  for (const double large : {1.0, 3.0, 0x1p-100, 0x1.8p100}) {
    const TwoAmplitudes atoms(large / 1000, large);
    for (int octave = 4; octave < 63; octave += 3) {
      const float a = search(atoms.layer(), std::uint64_t{1} << octave);
      const double ratio = large / static_cast<double>(a);
      const int c = std::min(math::class_of_ratio(ratio), math::kAtomClassCount - 1);
      if (c == 0) continue;
      const coding::AtomClass& atom_class = coding::kAtomClasses[c];
      const double x = 16 * large;  // sqrt(256) times the rms
      const auto scale = math::certain_scale<double>(static_cast<double>(a),
                                                     static_cast<double>(atom_class.delta));
      const unsigned w = coding::escape_bits(256, atom_class.reach);
      const std::int32_t q = math::quantise<double>(x, scale.inverse, ShortDraw{3, 5});
      const auto sent =
          static_cast<std::int32_t>(static_cast<std::uint32_t>(q) << (32 - w)) >> (32 - w);
      const double back = math::dequantise<double>(sent, 3, scale.step);
      if (!(std::fabs(back - x) <= scale.step))
        return complaint("budget of 2^", octave, " bits: r = ", ratio, ", ", x, " decoded to ",
                         back);
    }
  }
  return {};
}

/// However small the budget, the price leaves what is worth sending: where the bits do not fit, the
/// expected kept atoms count 16 entries, one shorter than that as 16, and no price above would do.
inline std::string check_ceiling(PriceSearch search) {
  for (const std::uint64_t length : {1u, 3u, 16u, 17u, 100u, 256u, 4096u}) {
    for (const std::uint64_t atoms : {1u, 2u, 1000u}) {
      const auto layout = AtomLayout::rows(atoms, length);
      const cpu::PriceCosts costs = price::price_costs(layout);
      const auto even = length + length % 2;
      for (const double rms : {1.0, 1.37, 0x1p-100, 0x1.8p60}) {
        const cpu::PriceBin bin{atoms * even, atoms, amplitude_key(rms)};
        const cpu::PriceLayer layer{{&bin, 1}, &costs, atoms, rms};
        for (const std::uint64_t budget : {0u, 1u, 2u, 4096u}) {
          const float a = search(layer, budget);
          const double kept =
              static_cast<double>(atoms) * std::min(rms / static_cast<double>(a), 1.0);
          const double entries = kept * static_cast<double>(std::max<std::uint64_t>(length, 16));
          const bool fits = price::expected_bits_256({&layer, 1}, a) <= 256 * budget;
          if (entries < 16 * (1 - 0x1p-6))
            return complaint(atoms, " atoms of ", length, " and rms ", rms, ", ", budget,
                             " bits: ", entries, " entries at the price ", a);
          if (!fits && entries > 16 * (1 + 0x1p-5))
            return complaint(atoms, " atoms of ", length, " and rms ", rms, ": ", entries,
                             " entries above the budget of ", budget, " bits");
        }
      }
    }
  }
  return {};
}

/// The estimate of a tensor whose budget pays for nothing, over every draw of its entries: their
/// mean, and an error of at most the tensor's own energy.
inline std::string check_tiny_tensors(PriceSearch search) {
  const std::array<double, 8> x = {0.3, -0.2, 0.1, 0.45, -0.05, 0.6, 0.02, -0.33};
  for (std::size_t n = 1; n <= x.size(); ++n) {
    double energy = 0;
    for (std::size_t i = 0; i < n; ++i) energy += x[i] * x[i];
    const double rms = std::sqrt(energy / static_cast<double>(n));
    const auto layout = AtomLayout::blocks(n);
    const cpu::PriceCosts costs = price::price_costs(layout);
    const cpu::PriceBin bin{n + n % 2, 1, amplitude_key(rms)};
    const auto a = static_cast<double>(search({{&bin, 1}, &costs, 1, rms}, n / 8));
    const double ratio = rms / a;
    const int c = math::class_of_ratio(ratio);
    const std::uint32_t p = c == 0 ? math::probability_of_ratio(ratio) : 0;
    const double keeps = c == 0 ? p / math::kTwo32 : 1;
    const auto delta = static_cast<double>(coding::kAtomClasses[static_cast<std::size_t>(c)].delta);
    const auto scale =
        c == 0 ? math::uncertain_scale<double>(a, delta, p) : math::certain_scale<double>(a, delta);
    double error = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double mean = 0, square = 0;
      for (std::uint32_t draw = 0; draw < kLevels * kPre; ++draw) {
        const ShortDraw chosen{draw / kPre, draw % kPre};
        const double y = math::dequantise<double>(
            math::quantise<double>(x[i], scale.inverse, chosen), chosen.level, scale.step);
        mean += keeps * y / (kLevels * kPre);
        square += keeps * (y - x[i]) * (y - x[i]) / (kLevels * kPre);
      }
      error += square + (1 - keeps) * x[i] * x[i];
      // The draws resolve x to half of their last place.
      if (std::fabs(mean - x[i]) > 0.5000001 * scale.step / (kLevels * kPre))
        return complaint(n, " entries: the mean of ", x[i], " is ", mean);
    }
    if (error > energy)
      return complaint(n, " entries of energy ", energy, ": an expected error of ", error);
  }
  return {};
}

// ---- which draw is whose

/// The words a message draws, to the bit.
class DrawLedger {
 public:
  /// `bits` bits from `first` of word `word` at `index`.
  void take(std::uint16_t tensor, Purpose purpose, std::uint64_t index, std::uint32_t word,
            std::uint32_t first, std::uint32_t bits) {
    const std::uint64_t place = (std::uint64_t{tensor} << 48) |
                                (static_cast<std::uint64_t>(purpose) << 40) |
                                (index & ((std::uint64_t{1} << 38) - 1)) << 2 | word;
    const std::uint32_t mask =
        static_cast<std::uint32_t>(((std::uint64_t{1} << bits) - 1) << first);
    std::uint32_t& used = used_[place];
    if ((used & mask) != 0 && complaint_.empty()) {
      complaint_ = complaint("tensor ", tensor, ", purpose ", static_cast<int>(purpose), ", index ",
                             index, ", word ", word, ": bits ", first, " to ", first + bits - 1,
                             " are drawn twice");
    }
    used |= mask;
    bits_ += bits;
  }
  [[nodiscard]] const std::string& complaints() const { return complaint_; }
  [[nodiscard]] std::uint64_t bits() const { return bits_; }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> used_;
  std::string complaint_;
  std::uint64_t bits_ = 0;
};

/// Where the draws of a pair of entries stand: level (4 bits) and the pre-rounding of both (16
/// each).
struct PairDraws {
  std::uint64_t level_index, pre_index;
  std::uint32_t level_word, level_bit, pre_word, first_bit = 0, second_bit = 16;
};

/// Pair l of tile u of vector t, of `tiles` tiles.
inline PairDraws pair_draws(std::uint64_t t, std::uint64_t tiles, std::uint64_t u,
                            std::uint32_t l) {
  return {4 * (t * ((tiles + 7) / 8) + u / 8) + l % 4, 16 * (t * ((tiles + 3) / 4) + u / 4) + l,
          l / 4, static_cast<std::uint32_t>(4 * (u % 8)), static_cast<std::uint32_t>(u % 4)};
}

struct VectorPurposes {
  Purpose pre_round, dither;
};

/// Draws of `count` vectors of `length` entries.
inline void take_vectors(DrawLedger& ledger, std::uint16_t tensor, std::uint64_t count,
                         std::uint64_t length, VectorPurposes purposes,
                         bool one_pre_round = false) {
  const std::uint64_t tiles = (length + 31) / 32;
  for (std::uint64_t t = 0; t < count; ++t) {
    for (std::uint64_t u = 0; u < tiles; ++u) {
      const auto entries = static_cast<std::uint32_t>(std::min<std::uint64_t>(32, length - 32 * u));
      for (std::uint32_t l = 0; l < (entries + 1) / 2; ++l) {
        const PairDraws d = pair_draws(t, tiles, u, l);
        ledger.take(tensor, purposes.dither, d.level_index, d.level_word, d.level_bit, 4);
        ledger.take(tensor, purposes.pre_round, d.pre_index, d.pre_word, d.first_bit, 16);
        ledger.take(tensor, purposes.pre_round, d.pre_index, d.pre_word,
                    one_pre_round ? d.first_bit : d.second_bit, 16);
      }
    }
  }
}

/// The draw of 16 bits of entry i of a layer: QSGD and TernGrad.
struct EntryPlace {
  std::uint64_t index;
  std::uint32_t word, bit;
};
inline EntryPlace short_place(std::uint64_t i) {
  return {i / 8, static_cast<std::uint32_t>(i / 2 % 4), static_cast<std::uint32_t>(i % 2 * 16)};
}

/// The purposes of a message in which every codec sends a layer, and its keys.
struct MessageDraws {
  static Purpose of(Purpose purpose) { return purpose; }
  static std::uint16_t tensor(std::uint16_t layer) { return layer; }
  static constexpr bool kOnePreRound = false;
};

/// No two draws of a message share a bit. Every layer draws for every codec that could have sent
/// it.
template <typename Draws = MessageDraws>
std::string check_draws() {
  DrawLedger ledger;
  const auto vectors = [&](std::uint16_t layer, std::uint64_t count, std::uint64_t length,
                           Purpose pre, Purpose dither, Purpose select) {
    take_vectors(ledger, Draws::tensor(layer), count, length, {Draws::of(pre), Draws::of(dither)},
                 Draws::kOnePreRound);
    for (std::uint64_t chunk = 0; chunk * 256 < count; ++chunk)
      ledger.take(Draws::tensor(layer), Draws::of(select), chunk, 0, 0, 32);
  };
  constexpr std::array<std::array<std::uint64_t, 2>, 4> kShapes = {
      {{300, 70}, {16, 1025}, {1, 33}, {5, 4100}}};
  for (std::uint16_t layer = 0; layer < kShapes.size(); ++layer) {
    const auto [rows, columns] = kShapes[layer];
    const std::uint64_t n = rows * columns;
    vectors(layer, rows, columns, Purpose::pre_round_row, Purpose::dither_row, Purpose::select_row);
    vectors(layer, (n + 255) / 256, 256, Purpose::pre_round_block, Purpose::dither_block,
            Purpose::select_block);
    const std::uint64_t pairs = std::min<std::uint64_t>(std::min(rows, columns), 20);
    vectors(layer, pairs, std::min(rows, columns), Purpose::pre_round_u, Purpose::dither_u,
            Purpose::select_pair);
    take_vectors(ledger, Draws::tensor(layer), pairs, std::max(rows, columns),
                 {Draws::of(Purpose::pre_round_v), Draws::of(Purpose::dither_v)},
                 Draws::kOnePreRound);
    const std::uint16_t tensor = Draws::tensor(layer);
    // A weight a column, and a shift a group behind them.
    const std::uint64_t groups = math::start_groups(columns, pairs);
    for (std::uint64_t i = 0; i < (columns + 3) / 4 * 4 + groups; ++i)
      ledger.take(tensor, Draws::of(Purpose::sketch_omega), i / 4,
                  static_cast<std::uint32_t>(i % 4), 0, 32);
    for (std::uint64_t chunk = 0; chunk * 4096 < n; ++chunk)
      ledger.take(tensor, Draws::of(Purpose::select_coordinate), chunk, 0, 0, 32);
    for (std::uint64_t i = 0; i < n; ++i) {
      const EntryPlace place = short_place(i);
      for (const Purpose p :
           {Purpose::qsgd, Purpose::qsgd_low, Purpose::ternary, Purpose::ternary_low,
            Purpose::identity, Purpose::identity_low, Purpose::output, Purpose::output_low})
        ledger.take(tensor, Draws::of(p), place.index, place.word, place.bit, 16);
    }
    ledger.take(tensor, Draws::of(Purpose::thinning), 0, 0, 0, 32);
    for (std::uint32_t word = 0; word < 4; ++word)
      ledger.take(tensor, Draws::of(Purpose::random_k), 0, word, 0, 32);
    // At most half of a segment is drawn, two words of 32 bits each.
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t d = i % math::kSampleSegment;
      if (d >= math::kSampleSegment / 2) continue;
      for (const std::uint32_t word : {0u, 1u})
        ledger.take(tensor, Draws::of(Purpose::random_k),
                    math::first_draw_block(i / math::kSampleSegment) + d / 2,
                    static_cast<std::uint32_t>(2 * (d % 2)) + word, 0, 32);
    }
  }
  return ledger.complaints();
}

}  // namespace atomo::test
