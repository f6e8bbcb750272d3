// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Checks of the codecs' arithmetic, over every outcome of short draws. Each takes the arithmetic
/// as a type, whose default is the library's own: test_statistics.cpp asks the library,
/// test_mutants.cpp types with one mistake each.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "math/dither.hpp"
#include "math/selection.hpp"
#include "math/stochastic_level.hpp"
#include "math/water_filling.hpp"
#include "price/price.hpp"
#include "statistics/statistics.hpp"

namespace atomo::test {

using namespace model;

// ---- dithered atoms

inline constexpr std::uint32_t kLevels = 16;
inline constexpr std::uint32_t kPre = 16;  ///< values of the pre-rounding, in place of 65,536

/// As math::EntryDraw, with pre-rounding of 4 bits.
struct ShortDraw {
  std::uint32_t level, pre;
  template <typename Real>
  [[nodiscard]] Real uniform() const {
    return Real{1} +
           (static_cast<Real>(level) + (static_cast<Real>(pre) + Real{0.5}) / kPre) / kLevels;
  }
};

/// How an atom is chosen, scaled, dithered and read.
struct AtomArithmetic {
  static std::uint32_t probability(double ratio) { return math::probability_of_ratio(ratio); }
  /// What the divisor of an uncertain atom's content is taken from.
  static math::ContentScale<double> scale(double price, double delta, double /*ratio*/,
                                          std::uint32_t p) {
    return math::uncertain_scale(price, delta, p);
  }
  static std::int32_t quantise(double x, double inverse, ShortDraw draw) {
    return math::quantise<double>(x, inverse, draw);
  }
  static double dequantise(std::int32_t q, std::uint32_t level, double step) {
    return math::dequantise<double>(q, level, step);
  }
  /// The pre-rounding of a pair's second entry.
  static std::uint32_t second_pre(std::uint32_t /*first*/, std::uint32_t own) { return own; }
};

/// E||y - x||^2 of one entry of dithered content that stands at `y` steps, in squared steps.
inline double dither_variance(double y) {
  const double f = kLevels * y - std::floor(kLevels * y);
  return (1 - 1.0 / 256) / 12 + f * (1 - f) / 256;
}

/// Contents that the draws of `ShortDraw` resolve exactly: multiples of 1/256 step.
inline std::vector<double> dyadic_contents(int range, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> y = {0, 1.0 / 256, -1.0 / 256, 0.5, 1 + 3.0 / 256, -2 - 9.0 / 256};
  for (int i = 0; i < 20; ++i)
    y.push_back((static_cast<int>(random() % (512u * range)) - 256 * range) / 256.0);
  return y;
}

/// Every outcome of a pair of entries, content `y0` and `y1` steps: levels eight apart,
/// pre-rounding of its own each.
template <typename Arithmetic>
Outcomes pair_outcomes(double x0, double x1, double step, double inverse, double chance) {
  Outcomes outcomes({x0, x1});
  const std::array<std::uint32_t, 3> sizes = {kLevels, kPre, kPre};
  for_each_tuple(sizes, [&](std::span<const std::uint32_t> d) {
    const ShortDraw first{d[0], d[1]},
        second{d[0] ^ math::kMateDither, Arithmetic::second_pre(d[1], d[2])};
    const std::array<double, 2> y = {
        Arithmetic::dequantise(Arithmetic::quantise(x0, inverse, first), first.level, step),
        Arithmetic::dequantise(Arithmetic::quantise(x1, inverse, second), second.level, step)};
    outcomes.add(chance / (kLevels * kPre * kPre), y);
  });
  if (chance < 1) outcomes.add(1 - chance, std::array<double, 2>{});
  return outcomes;
}

/// E = x and the variance, for content of every class.
template <typename Arithmetic = AtomArithmetic>
std::string check_certain_content() {
  for (std::size_t c = 1; c < std::size(coding::kAtomClasses); c += 3) {
    const double price = 0.75, delta = static_cast<double>(coding::kAtomClasses[c].delta);
    const auto scale = math::certain_scale<double>(price, delta);
    const double step = scale.step;
    const std::vector<double> contents = dyadic_contents(40, static_cast<std::uint32_t>(c));
    for (std::size_t i = 0; i + 1 < contents.size(); i += 2) {
      const double y[2] = {contents[i], contents[i + 1]};
      const Outcomes o =
          pair_outcomes<Arithmetic>(y[0] * step, y[1] * step, step, scale.inverse, 1);
      for (std::size_t k = 0; k < 2; ++k) {
        const double variance = dither_variance(y[k]) * step * step;
        if (!is_exact(o.bias(k), 0, 40 * step))
          return complaint("class ", c, ", content ", y[k], " steps: bias ", o.bias(k) / step,
                           " steps");
        if (!is_exact(o.squared_error(k), variance, step * step))
          return complaint("class ", c, ", content ", y[k], " steps: variance ", o.squared_error(k),
                           " for ", variance);
      }
    }
  }
  return {};
}

/// Given the pair's level, the errors of its entries are uncorrelated: their pre-roundings are
/// independent. It shows where both depend on it at the same level: contents half a step apart, as
/// the levels are.
template <typename Arithmetic = AtomArithmetic>
std::string check_pair_independence() {
  for (const auto& [y0, y1] :
       {std::pair{37 / 256.0, 165 / 256.0}, {-5 / 256.0, 123 / 256.0}, {1.0, 3 / 256.0}}) {
    for (std::uint32_t level = 0; level < kLevels; ++level) {
      double mean[2] = {}, product = 0;
      const std::array<std::uint32_t, 2> sizes = {kPre, kPre};
      for_each_tuple(sizes, [&](std::span<const std::uint32_t> d) {
        const double a = Arithmetic::quantise(y0, 1, {level, d[0]});
        const double b = Arithmetic::quantise(
            y1, 1, {level ^ math::kMateDither, Arithmetic::second_pre(d[0], d[1])});
        mean[0] += a / (kPre * kPre);
        mean[1] += b / (kPre * kPre);
        product += a * b / (kPre * kPre);
      });
      if (!is_exact(product, mean[0] * mean[1], 1))
        return complaint("level ", level, ": covariance ", product - mean[0] * mean[1],
                         " of a pair's entries");
    }
  }
  return {};
}

/// E = x and E||y - x||^2 of an uncertain atom: kept with P / 2^32, its content divided by that.
template <typename Arithmetic = AtomArithmetic>
std::string check_uncertain_atom() {
  const double price = 0.625, delta = static_cast<double>(coding::kAtomClasses[0].delta);
  for (const double ratio :
       {0x1p-50, 0x1.7p-32, 0x1.fp-31, 1e-7, 0.013, 1.0 / 3, 0.5, 0.7 + 1e-11, 1 - 0x1p-40}) {
    const std::uint32_t used = Arithmetic::probability(ratio);
    const double p = used / math::kTwo32;
    const auto scale = Arithmetic::scale(price, delta, ratio, used);
    const double step = price * delta;
    for (const auto& [y0, y1] :
         {std::pair{0.0, 1.0}, {-77 / 256.0, 300 / 256.0}, {5 / 256.0, -3.5}}) {
      // What a rightly divided content of y steps comes from: the probability in use, 2^-32 at
      // least.
      const double unit = step * std::max(p, 0x1p-32);
      const double x[2] = {y0 * unit, y1 * unit}, y[2] = {y0, y1};
      const Outcomes o = pair_outcomes<Arithmetic>(x[0], x[1], step, scale.inverse, p);
      for (std::size_t k = 0; k < 2; ++k) {
        const double kept = p * dither_variance(y[k]) * step * step,
                     left_out = x[k] * x[k] * (1 / p - 1);
        if (!is_exact(o.bias(k), 0, 4 * unit))
          return complaint("r = ", ratio, ", content ", y[k], " steps: bias ", o.bias(k) / unit,
                           " of P steps");
        if (!is_exact(o.squared_error(k), kept + left_out, kept + left_out))
          return complaint("r = ", ratio, ": variance ", o.squared_error(k), " for ",
                           kept + left_out);
      }
    }
  }
  return {};
}

/// The divisor alone, where it is seen that it is the integer in use and not a neighbour.
template <typename Arithmetic = AtomArithmetic>
std::string check_divisor() {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    const double ratio = std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52,
                                    -1 - static_cast<int>(random() % 31));
    const std::uint32_t used = Arithmetic::probability(ratio);
    const auto scale = Arithmetic::scale(1.0, 2.5, ratio, used);
    const double product = scale.inverse * 2.5 * (used / math::kTwo32);
    if (!is_exact(product, 1, 1e-3))
      return complaint("r = ", ratio, ": the divisor is off by ", product - 1);
  }
  return {};
}

// ---- selection

using SelectChunk = cpu::KeptMask (*)(const double* rms, std::size_t count, float price,
                                      std::uint32_t u);

inline bool is_kept(const cpu::KeptMask& mask, std::size_t k) {
  return ((mask[k / 64] >> (k % 64)) & 1) != 0;
}

/// Marginals where every P is a multiple of 2^24: the 256 draws u = i 2^24 stand for all. Every
/// size of chunk, among them those whose expected number is below one.
inline std::string check_marginals(SelectChunk select) {
  std::mt19937 random(11);
  for (std::size_t size = 1; size <= cpu::kSelectionChunk; ++size) {
    for (const std::uint32_t range : {280u, 256u / static_cast<std::uint32_t>(size) + 1}) {
      std::vector<double> rms(size);
      std::vector<std::uint32_t> units(size), kept(size);
      for (std::size_t k = 0; k < size; ++k) {
        units[k] = std::min(static_cast<std::uint32_t>(random() % range), std::uint32_t{256});
        rms[k] = units[k] / 256.0;
      }
      for (std::uint32_t u = 0; u < 256; ++u) {
        const cpu::KeptMask mask = select(rms.data(), size, 1.0f, u << 24);
        for (std::size_t k = 0; k < size; ++k) kept[k] += is_kept(mask, k) ? 1 : 0;
      }
      for (std::size_t k = 0; k < size; ++k) {
        if (kept[k] != units[k])
          return complaint("chunk of ", size, ", atom ", k, ": kept by ", kept[k],
                           " of 256 draws for ", units[k]);
      }
    }
  }
  return {};
}

/// Marginals of any P. What is kept changes with u only where u passes -S_k mod 2^32, S_k the sums
/// of P in the order of visits; between these it is constant, so its ends and lengths give the
/// exact frequency over all 2^32 draws.
inline std::string check_marginals_of_any_p(SelectChunk select) {
  std::mt19937_64 random(12);
  for (const std::size_t size : {1, 2, 5, 77, 157, 200, 256}) {
    std::vector<double> rms(size);
    for (double& v : rms) v = std::exp2(-30.0 * static_cast<double>(random() >> 40) * 0x1p-24);
    rms[0] = 0x1p-60;
    std::vector<std::uint64_t> p(size), kept(size), edges = {0, std::uint64_t{1} << 32};
    std::uint32_t sum = 0;
    for (std::size_t k = 0; k < size; ++k) p[k] = math::probability_of_ratio(rms[k]);
    for (std::size_t i = 0; i < cpu::kSelectionChunk; ++i) {
      const std::size_t k = i % 8 * 32 + i / 8;
      if (k >= size) continue;
      sum += static_cast<std::uint32_t>(p[k]);
      edges.push_back(static_cast<std::uint32_t>(-sum));
    }
    std::sort(edges.begin(), edges.end());
    for (std::size_t e = 0; e + 1 < edges.size(); ++e) {
      if (edges[e] == edges[e + 1]) continue;
      const cpu::KeptMask first =
          select(rms.data(), size, 1.0f, static_cast<std::uint32_t>(edges[e]));
      const cpu::KeptMask last =
          select(rms.data(), size, 1.0f, static_cast<std::uint32_t>(edges[e + 1] - 1));
      if (first != last)
        return complaint("chunk of ", size, ": not constant from ", edges[e], " to ", edges[e + 1]);
      for (std::size_t k = 0; k < size; ++k)
        kept[k] += is_kept(first, k) ? edges[e + 1] - edges[e] : 0;
    }
    for (std::size_t k = 0; k < size; ++k) {
      if (kept[k] != p[k])
        return complaint("chunk of ", size, ", atom ", k, ": ", kept[k], " of 2^32 draws for ",
                         p[k]);
    }
  }
  return {};
}

// ---- levels of a norm (QSGD, TernGrad)

/// A draw of 4 bits and 4 more.
struct ShortLevelDraw {
  std::uint32_t first, second;
  [[nodiscard]] std::uint32_t high() const { return first; }
  [[nodiscard]] std::uint32_t low() const { return second; }
};

struct LevelArithmetic {
  static constexpr int kBits = 4;
  static int levels(int bits) { return (1 << (bits - 1)) - 1; }
  static double norm(double norm) { return norm; }
  static std::uint32_t level(double z, ShortLevelDraw draw) {
    return math::round_to_level<kBits>(z, draw);
  }
  static bool positive(double z, ShortLevelDraw draw) {
    return math::round_to_sign<kBits>(z, draw);
  }
  /// Which of the message's draws entry i takes.
  static std::size_t draw_of(std::size_t i) { return i; }
};

/// A decoded entry: the code goes through its `bits` bits, sign in the last.
template <typename Arithmetic>
double level_estimate(double x, double step, int bits, ShortLevelDraw draw) {
  constexpr double kUnit = 1 << Arithmetic::kBits;
  if (bits == 1) return Arithmetic::positive(x / step * kUnit / 2, draw) ? step : -step;
  const std::uint32_t level = Arithmetic::level(std::fabs(x) / step * kUnit, draw);
  const std::uint32_t sign_bit = 1u << (bits - 1);
  const std::uint32_t code = level | (level > 0 && x < 0 ? sign_bit : 0u);
  const double magnitude = static_cast<double>(code & (sign_bit - 1)) * step;
  return (code & sign_bit) != 0 ? -magnitude : magnitude;
}

/// E = x and the variance of entries that the draws resolve, at every number of bits (2 is
/// TernGrad's too); and no correlation between two entries.
template <typename Arithmetic = LevelArithmetic>
std::string check_levels() {
  for (int bits = 1; bits <= 8; ++bits) {
    const int levels = bits == 1 ? 1 : LevelArithmetic::levels(bits);
    for (const double unit : {1.0, 0x1p-70}) {
      const double norm = levels * unit;
      const int used = bits == 1 ? 1 : Arithmetic::levels(bits);
      const double step = Arithmetic::norm(norm) / used;
      for (const auto& [a, b] : {std::pair{37, -37}, {255, 256}, {-201, 128}, {3, 250}}) {
        const double whole = bits > 2 ? levels / 2 : 0;
        // One bit resolves 1/128 of the norm only.
        const int resolved[2] = {bits == 1 ? a / 2 * 2 : a, bits == 1 ? b / 2 * 2 : b};
        const double x[2] = {std::copysign(whole, a) * unit + resolved[0] * unit / 256,
                             b == 256 ? norm : resolved[1] * unit / 256};
        Outcomes o({x[0], x[1]});
        const std::array<std::uint32_t, 4> sizes = {16, 16, 16, 16};
        for_each_tuple(sizes, [&](std::span<const std::uint32_t> d) {
          const ShortLevelDraw draws[2] = {{d[0], d[1]}, {d[2], d[3]}};
          const std::array<double, 2> y = {
              level_estimate<Arithmetic>(x[0], step, bits, draws[Arithmetic::draw_of(0)]),
              level_estimate<Arithmetic>(x[1], step, bits, draws[Arithmetic::draw_of(1)])};
          o.add(1.0 / 65536, y);
        });
        for (std::size_t k = 0; k < 2; ++k) {
          const double t = std::fabs(x[k]) / unit, f = t - std::floor(t);
          const double variance = unit * unit * (bits == 1 ? 1 - t * t : f * (1 - f));
          if (!is_exact(o.bias(k), 0, norm))
            return complaint(bits, " bits, ", x[k], ": bias ", o.bias(k) / unit, " steps");
          if (!is_exact(o.squared_error(k), variance, norm * norm))
            return complaint(bits, " bits, ", x[k], ": variance ", o.squared_error(k), " for ",
                             variance);
        }
        if (!is_exact(o.product(1, 0), 0, norm * norm))
          return complaint(bits, " bits: entries' errors are correlated");
      }
    }
  }
  return {};
}

// ---- water filling

using WaterFilling = std::vector<double> (*)(const std::vector<double>& amplitudes, double keep);

/// The library's probabilities; amplitudes descend.
inline std::vector<double> filled(const std::vector<double>& amplitudes, double keep) {
  const auto level = math::find_water_level<double>(amplitudes.size(), keep,
                                                    [&](std::size_t i) { return amplitudes[i]; });
  std::vector<double> p(amplitudes.size(), 1.0);
  for (std::size_t i = level.certain; i < p.size(); ++i) p[i] = amplitudes[i] * level.per_amplitude;
  return p;
}

/// sum p = keep, 0 < p <= 1, and sum a^2 / p is the least that any set of certain atoms allows.
/// KKT: a / p is one number for the uncertain, at most that for none of the certain.
inline std::string check_water_filling(WaterFilling fill) {
  std::mt19937_64 random(31);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 400; ++round) {
    const std::size_t n = 2 + random() % 9;
    std::vector<double> a(n);
    for (double& v : a) v = std::exp(2 * normal(random));
    std::sort(a.rbegin(), a.rend());
    const double keep = 0.25 * static_cast<double>(1 + random() % (4 * n - 1));
    const std::vector<double> p = fill(a, keep);
    double sum = 0, moment = 0, least = INFINITY, water = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (!(p[i] > 0 && p[i] <= 1 + kExact)) return complaint("p = ", p[i]);
      sum += p[i];
      moment += a[i] * a[i] / p[i];
      if (p[i] < 1 - kExact) water = std::max(water, a[i] / p[i]);
    }
    if (!is_exact(sum, keep, static_cast<double>(n)))
      return complaint("the probabilities add up to ", sum, " for ", keep);
    for (std::size_t i = 0; i < n; ++i) {
      const bool certain = p[i] >= 1 - kExact;
      if (certain ? a[i] < water * (1 - kExact) : !is_exact(a[i] / p[i], water, water))
        return complaint("KKT: a / p = ", a[i] / p[i], " where the water stands at ", water);
    }
    for (std::uint32_t set = 0; set < (1u << n);
         ++set) {  // the certain atoms of any other solution
      double rest = 0, cost = 0, left = keep - std::popcount(set);
      for (std::size_t i = 0; i < n; ++i)
        ((set >> i) & 1) != 0 ? cost += a[i] * a[i] : rest += a[i];
      if (!(rest > 0 && left > 0)) continue;
      bool possible = true;
      for (std::size_t i = 0; i < n; ++i)
        possible = possible && (((set >> i) & 1) != 0 || a[i] * left <= rest);
      if (possible) least = std::min(least, cost + rest * rest / left);
    }
    if (!is_exact(moment, least, least))
      return complaint("second moment ", moment, " where ", least, " is possible");
  }
  return {};
}

}  // namespace atomo::test
