// SPDX-License-Identifier: Apache-2.0
/// Planted mistakes: each is the library's arithmetic with one thing wrong, and a check that the
/// library passes must fail on it. Most of them were found in published code.
#include <gtest/gtest.h>

#include "price/pair_costs.hpp"
#include "price/price_math.hpp"
#include "statistics/loss_checks.hpp"
#include "statistics/message_checks.hpp"
#include "statistics/random_k_checks.hpp"
#include "statistics/sketch_checks.hpp"
#include "statistics/sum_check.hpp"
#include "statistics/thinning_checks.hpp"
#include "statistics/worker_check.hpp"
#include "support/price_support.hpp"

namespace atomo::test {
namespace {

// ---- selection

/// An empty draw is drawn again.
cpu::KeptMask redraw_when_empty(const double* rms, std::size_t count, float price,
                                std::uint32_t u) {
  cpu::KeptMask kept = cpu::select_chunk(rms, count, price, u);
  for (int again = 0; again < 256 && kept == cpu::KeptMask{}; ++again)
    kept = cpu::select_chunk(rms, count, price, u += 157u << 24);
  return kept;
}

/// The order of visits is taken modulo the chunk's own size, where it is no permutation.
cpu::KeptMask scramble_short_chunk(const double* rms, std::size_t count, float price,
                                   std::uint32_t u) {
  cpu::KeptMask kept{};
  std::uint32_t sum = u;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t k = (i % 8 * 32 + i / 8) % count;
    if (rms[k] == 0) continue;
    const cpu::AtomChoice choice = cpu::choose_atom(rms[k], price);
    const std::uint32_t next = sum + choice.probability;
    if (choice.atom_class != 0 || next < sum) kept[k / 64] |= std::uint64_t{1} << (k % 64);
    sum = next;
  }
  return kept;
}

/// Kept when it should not be.
cpu::KeptMask invert_choice(const double* rms, std::size_t count, float price, std::uint32_t u) {
  cpu::KeptMask kept = cpu::select_chunk(rms, count, price, u);
  for (std::size_t k = 0; k < count; ++k) {
    if (rms[k] > 0 && cpu::choose_atom(rms[k], price).atom_class == 0)
      kept[k / 64] ^= std::uint64_t{1} << (k % 64);
  }
  return kept;
}

/// Atoms below 2^-32 are never kept.
cpu::KeptMask round_small_to_zero(const double* rms, std::size_t count, float price,
                                  std::uint32_t u) {
  std::array<double, cpu::kSelectionChunk> rounded;
  for (std::size_t k = 0; k < count; ++k)
    rounded[k] = rms[k] < 0x1p-32 * static_cast<double>(price) ? 0 : rms[k];
  return cpu::select_chunk(rounded.data(), count, price, u);
}

// ---- atoms

struct NoLeastProbability : AtomArithmetic {
  static std::uint32_t probability(double ratio) {
    return static_cast<std::uint32_t>(ratio * math::kTwo32);
  }
};
struct IdealDivisor : AtomArithmetic {
  static math::ContentScale<double> scale(double price, double delta, double ratio, std::uint32_t) {
    return {price * delta, 1 / (ratio * (price * delta))};
  }
};
struct CoarseDivisor : AtomArithmetic {
  static math::ContentScale<double> scale(double price, double delta, double, std::uint32_t p) {
    const float coarse = static_cast<float>(p);  // 24 bits of the 32
    return {price * delta, math::kTwo32 / (static_cast<double>(coarse) * (price * delta))};
  }
};
struct NoPreRounding : AtomArithmetic {
  static std::int32_t quantise(double x, double inverse, ShortDraw draw) {
    return AtomArithmetic::quantise(x, inverse, {draw.level, kPre / 2});
  }
};
struct UncentredDither : AtomArithmetic {
  static double dequantise(std::int32_t q, std::uint32_t level, double step) {
    return (32 * q - 2 * static_cast<std::int32_t>(level)) * (step / 32);
  }
};
struct HalfACellOff : AtomArithmetic {
  static double dequantise(std::int32_t q, std::uint32_t level, double step) {
    return (32 * q - 2 * static_cast<std::int32_t>(level) + 16) * (step / 32);
  }
};
struct OneLevelUp : AtomArithmetic {
  static std::int32_t quantise(double x, double inverse, ShortDraw draw) {
    return AtomArithmetic::quantise(x, inverse, draw) + 1;
  }
};
struct InvertedDither : AtomArithmetic {
  static std::int32_t quantise(double x, double inverse, ShortDraw draw) {
    return AtomArithmetic::quantise(x, inverse, {kLevels - 1 - draw.level, kPre - 1 - draw.pre});
  }
};
struct UnusedDither : AtomArithmetic {  // plain stochastic rounding: unbiased, with more variance
  static double dequantise(std::int32_t q, std::uint32_t, double step) { return q * step; }
};
struct OnePreRounding : AtomArithmetic {
  static std::uint32_t second_pre(std::uint32_t first, std::uint32_t) { return first; }
};

// ---- levels

struct InvertedRounding : LevelArithmetic {
  static std::uint32_t level(double z, ShortLevelDraw draw) {
    const auto low = static_cast<std::uint32_t>(z) >> kBits;
    return std::floor(z / 16) * 16 == z ? low : 2 * low + 1 - LevelArithmetic::level(z, draw);
  }
};
struct OneLevelTooMany : LevelArithmetic {  // level L + 1 overflows into the sign
  static int levels(int bits) { return LevelArithmetic::levels(bits) + 1; }
};
struct NearestLevel : LevelArithmetic {
  static std::uint32_t level(double z, ShortLevelDraw) {
    return static_cast<std::uint32_t>(z / 16 + 0.5);
  }
};
struct NoFurtherBits : LevelArithmetic {
  static std::uint32_t level(double z, ShortLevelDraw draw) {
    return LevelArithmetic::level(z, {draw.first, 15});
  }
};
struct NormPlusEpsilon : LevelArithmetic {
  static double norm(double norm) { return norm + 1e-8; }
};
struct OneUniformForTwo : LevelArithmetic {
  static std::size_t draw_of(std::size_t i) { return i / 2; }
};

// ---- random-k and water filling

struct WithReplacement : RandomKArithmetic {
  template <typename Set, typename Draw>
  static void draw(std::uint64_t n, std::uint64_t k, Set& set, Draw&& draw) {
    const std::uint64_t m = math::draws_of(n, k);
    for (std::uint64_t d = 0; d < m; ++d) set.mark(draw(n - m + d, d), true);
    if (m != k) set.invert(n);
  }
};
struct LeftOutIsKept : RandomKArithmetic {
  template <typename Set, typename Draw>
  static void draw(std::uint64_t n, std::uint64_t k, Set& set, Draw&& draw) {
    math::draw_subset(n, math::draws_of(n, k), set, draw);
  }
};
struct FixedShares : RandomKArithmetic {
  static math::SampledSegment segment(math::SampleShares<std::uint64_t> shares, std::uint64_t s) {
    shares.offset = 0;
    return shares(s);
  }
};
/// As if all segments had as many entries.
struct SharesBySegments : RandomKArithmetic {
  static math::SampledSegment segment(const math::SampleShares<std::uint64_t>& shares,
                                      std::uint64_t s) {
    const std::uint64_t count = (shares.n + shares.length - 1) / shares.length;
    const math::SampleShares<std::uint64_t> even{count, shares.keep,
                                                 shares.offset * count / shares.n, 1};
    const math::SampledSegment own = even(s);
    return {s * shares.length, std::min(shares.length, shares.n - s * shares.length), own.rank,
            own.keep};
  }
};
struct Unscaled : RandomKArithmetic {
  static double scale(std::uint64_t, std::uint64_t) { return 1; }
};

std::vector<double> clipped_mass_lost(const std::vector<double>& amplitudes, double keep) {
  double sum = 0;
  for (const double a : amplitudes) sum += a;
  std::vector<double> p;
  for (const double a : amplitudes) p.push_back(std::min(1.0, keep * a / sum));
  return p;
}
std::vector<double> clipped_mass_spread_evenly(const std::vector<double>& amplitudes, double keep) {
  std::vector<double> p = clipped_mass_lost(amplitudes, keep);
  for (int round = 0; round < 200; ++round) {
    double left = keep, open = 0;
    for (const double v : p) {
      left -= v;
      open += v < 1 ? 1 : 0;
    }
    for (double& v : p) v = v < 1 ? std::min(1.0, v + left / std::max(open, 1.0)) : v;
  }
  return p;
}

// ---- messages

struct OnePreRoundPurpose : FactorArithmetic {
  static constexpr Purpose kPreRoundV = kPreRoundU;
};
struct OneDitherPurpose : FactorArithmetic {
  static constexpr Purpose kDitherV = kDitherU;
};
struct RawWhenLong : WrittenArithmetic {
  static double decoded(double x, double dithered, unsigned bits) {
    return bits > 11 ? x : dithered;
  }
};

// ---- sketches

struct RoundedFactorsTakenOut : SketchArithmetic {  // what the decoder gets, were it not dithered
  static double taken_out(double factor, double step) {
    return std::floor(factor / step + 0.5) * step;
  }
};
struct OneDitherForUAndVOfASketch : SketchArithmetic {
  static constexpr Purpose kDitherV = kDitherU;
};
struct OnePreRoundingForUAndVOfASketch : SketchArithmetic {
  static constexpr Purpose kPreRoundV = kPreRoundU;
};
struct RowsDitheredAsFactors : SketchArithmetic {
  static constexpr Purpose kDitherRow = kDitherV;
};
struct OneSelectionForPairsAndRows : SketchArithmetic {
  static constexpr Purpose kSelectRow = kSelectPair;
};
struct StartFromADither : SketchArithmetic {
  static constexpr Purpose kOmega = kDitherU;
};

// ---- losses and caps

struct FactorsWithoutNoise : LossArithmetic {  // only what is left out counts
  static double pair(const MatrixShape& shape, double ratio) {
    const double sigma = ratio / price::pair_amplitude(shape);
    return ratio < 1 ? sigma * sigma * (1 / ratio - 1) : LossArithmetic::pair(shape, ratio);
  }
};
struct AtomsWithoutTheirSignal : LossArithmetic {  // E[y^2] for E[(y - x)^2]
  static double atom(const AtomLayout& layout, double ratio) {
    const double energy = static_cast<double>(layout.length) * ratio * ratio;
    return LossArithmetic::atom(layout, ratio) + (ratio < 1 ? energy : 0);
  }
};
struct GridWithUniformError
    : LossArithmetic {  // a twelfth of a squared step, also of small entries
  static double grid(double, std::size_t count) {
    const auto step = static_cast<double>(format::kGridStepOfPrice);
    return static_cast<double>(count) * step * step / 12;
  }
};
struct KappaWithoutNoise : PairProbability {
  static double kappa(const MatrixShape& shape) {
    const coding::PairSteps steps = coding::kPairSteps[format::pair_aspect(shape)][0];
    const double u = coding::kCodingSteps[steps.shorter].d,
                 v = coding::kCodingSteps[steps.longer].d;
    return PairProbability::kappa(shape) *
           std::sqrt((1 + u * u * math::kDitherVariance) * (1 + v * v * math::kDitherVariance));
  }
};
struct NoKappa : PairProbability {
  static double kappa(const MatrixShape&) { return 1; }
};
struct CapByDrawingAgain : CapArithmetic {
  static constexpr bool kDrawsAgain = true;
};
struct NoGainForWhatIsLeftOut : CapArithmetic {
  static double gain(const format::Thinning&) { return 1; }
};
struct RunsThatFitThisStart : CapArithmetic {
  static bool suffices(bool of_this_start, bool) { return of_this_start; }
};

float found_price(const cpu::PriceLayer& layer, std::uint64_t budget) {
  return price::find_price({&layer, 1}, budget).a;
}
float price_without_floor(const cpu::PriceLayer& layer, std::uint64_t budget) {
  std::uint32_t low = 1, high = 0x7F7F;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (price::expected_bits_256({&layer, 1}, price_of_code(middle)) / 256 <= budget)
      high = middle;
    else
      low = middle + 1;
  }
  return price_of_code(low);
}

float price_without_ceiling(const cpu::PriceLayer& layer, std::uint64_t budget) {
  std::uint32_t low = price::min_price_code(layer.max_rms), high = price::kLastPriceCode;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (price::expected_bits_256({&layer, 1}, price_of_code(middle)) <= 256 * budget)
      high = middle;
    else
      low = middle + 1;
  }
  return price_of_code(low);
}
/// Above 16 entries of the largest atom alone, many that keep one now and then cost their budget.
float price_of_the_largest_atom(const cpu::PriceLayer& layer, std::uint64_t budget) {
  const double longer = std::max(1.0, layer.costs->entries / 16.0);
  return std::min(price_without_ceiling(layer, budget), static_cast<float>(layer.max_rms * longer));
}

template <Purpose kOne, Purpose kOther>
struct SharedPurpose : MessageDraws {
  static Purpose of(Purpose purpose) { return purpose == kOther ? kOne : purpose; }
};
struct SharedTensor : MessageDraws {
  static std::uint16_t tensor(std::uint16_t) { return 0; }
};
struct OneHalfForTwo : MessageDraws {
  static constexpr bool kOnePreRound = true;
};

// ---- sums of messages

template <typename Add>
Levels each(const Levels& a, const Levels& b, Add add) {
  Levels sum(a.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = add(a[i], b[i]);
  return sum;
}
constexpr std::int64_t kLevelEnd = std::int64_t{1} << math::kLevelBits;

Levels wrap_at_29_bits(const Levels& a, const Levels& b) {
  return each(a, b, [](std::int64_t x, std::int64_t y) { return (x + y) % kLevelEnd; });
}
Levels stop_at_29_bits(const Levels& a, const Levels& b) {
  return each(a, b, [](std::int64_t x, std::int64_t y) {
    return std::clamp(x + y, 1 - kLevelEnd, kLevelEnd - 1);
  });
}
Levels add_as_f32(const Levels& a, const Levels& b) {
  return each(a, b, [](std::int64_t x, std::int64_t y) {
    return static_cast<std::int64_t>(static_cast<float>(x) + static_cast<float>(y));
  });
}
Levels add_magnitudes(const Levels& a, const Levels& b) {
  return each(a, b, [](std::int64_t x, std::int64_t y) {
    const std::int64_t magnitude = std::abs(x) + std::abs(y);
    return x + y < 0 ? -magnitude : magnitude;
  });
}

/// A mistake, the check asked of the library, and the same check asked of the mistake.
struct Mutant {
  const char* name;
  std::string (*library)();
  std::string (*mistake)();
};

const Mutant kMutants[] = {
    {"RedrawOfAnEmptyDraw", [] { return check_marginals(cpu::select_chunk); },
     [] { return check_marginals(redraw_when_empty); }},
    {"InvertedRounding", check_levels<>, check_levels<InvertedRounding>},
    {"InvertedChoice", [] { return check_marginals(cpu::select_chunk); },
     [] { return check_marginals(invert_choice); }},
    {"InvertedDither", check_certain_content<>, check_certain_content<InvertedDither>},
    {"ClippedMassNotRedistributed", [] { return check_water_filling(filled); },
     [] { return check_water_filling(clipped_mass_lost); }},
    {"ClippedMassSpreadEvenly", [] { return check_water_filling(filled); },
     [] { return check_water_filling(clipped_mass_spread_evenly); }},
    {"OffByOneLevel", check_certain_content<>, check_certain_content<OneLevelUp>},
    {"OneLevelTooMany", check_levels<>, check_levels<OneLevelTooMany>},
    {"NearestInsteadOfStochastic", check_levels<>, check_levels<NearestLevel>},
    {"FurtherBitsOfADrawLeftOut", check_levels<>, check_levels<NoFurtherBits>},
    {"EpsilonInTheNorm", check_levels<>, check_levels<NormPlusEpsilon>},
    {"OneUniformForTwoElements", check_levels<>, check_levels<OneUniformForTwo>},
    {"OneUniformForTwoEntriesOfAPair", check_pair_independence<>,
     check_pair_independence<OnePreRounding>},
    {"OneHalfOfAWordForTwoEntries", check_draws<>, check_draws<OneHalfForTwo>},
    {"SeedSharedByWorkers", [] { return check_workers(worker_key); },
     [] { return check_workers(shared_key); }},
    {"PurposeSharedByPreRoundingAndDither", check_draws<>,
     check_draws<SharedPurpose<Purpose::dither_block, Purpose::pre_round_block>>},
    {"PurposeSharedByFamilies", check_draws<>,
     check_draws<SharedPurpose<Purpose::select_row, Purpose::select_block>>},
    {"PurposeSharedByFactors", check_draws<>,
     check_draws<SharedPurpose<Purpose::dither_u, Purpose::dither_v>>},
    {"PurposeSharedByRoundingInAndOut", check_draws<>,
     check_draws<SharedPurpose<Purpose::identity, Purpose::output>>},
    {"PurposeSharedByADrawAndItsFurtherBits", check_draws<>,
     check_draws<SharedPurpose<Purpose::qsgd, Purpose::qsgd_low>>},
    {"KeySharedByLayers", check_draws<>, check_draws<SharedTensor>},
    {"DitherWithoutPreRounding", check_certain_content<>, check_certain_content<NoPreRounding>},
    {"UncentredDither", check_certain_content<>, check_certain_content<UncentredDither>},
    {"DecodedHalfACellOff", check_certain_content<>, check_certain_content<HalfACellOff>},
    {"DitherNotSubtracted", check_certain_content<>, check_certain_content<UnusedDither>},
    {"DivisionByTheIdealProbability", check_uncertain_atom<>, check_uncertain_atom<IdealDivisor>},
    {"DivisionByACoarseProbability", check_divisor<>, check_divisor<CoarseDivisor>},
    {"NoFloorUnderThePrice", [] { return check_floor(found_price); },
     [] { return check_floor(price_without_floor); }},
    {"NoCeilingOverThePrice", [] { return check_ceiling(found_price); },
     [] { return check_ceiling(price_without_ceiling); }},
    {"CeilingOfTheLargestAtom", [] { return check_ceiling(found_price); },
     [] { return check_ceiling(price_of_the_largest_atom); }},
    {"NoCeilingOverThePriceOfAFewEntries", [] { return check_tiny_tensors(found_price); },
     [] { return check_tiny_tensors(price_without_ceiling); }},
    {"ProbabilityRoundedToZero", check_uncertain_atom<>, check_uncertain_atom<NoLeastProbability>},
    {"SmallAtomsNeverKept", [] { return check_marginals_of_any_p(cpu::select_chunk); },
     [] { return check_marginals_of_any_p(round_small_to_zero); }},
    {"ScrambledOrderModuloAShortChunk", [] { return check_marginals(cpu::select_chunk); },
     [] { return check_marginals(scramble_short_chunk); }},
    {"RawValuesOfALongAtom", check_values_and_lengths<>, check_values_and_lengths<RawWhenLong>},
    {"OnePreRoundingPurposeForUAndV", check_factors<>, check_factors<OnePreRoundPurpose>},
    {"OneDitherPurposeForUAndV", check_factors<>, check_factors<OneDitherPurpose>},
    {"ResidualOfRoundedFactors", check_sketch<>, check_sketch<RoundedFactorsTakenOut>},
    {"OneDitherPurposeForUAndVOfASketch", check_sketch<>, check_sketch<OneDitherForUAndVOfASketch>},
    {"OnePreRoundingPurposeForUAndVOfASketch", check_sketch<>,
     check_sketch<OnePreRoundingForUAndVOfASketch>},
    {"OneDitherPurposeForPairsAndRows", check_sketch<>, check_sketch<RowsDitheredAsFactors>},
    {"OneSelectionForPairsAndRows", check_sketch<>, check_sketch<OneSelectionForPairsAndRows>},
    {"RandomStartFromADither", check_sketch<>, check_sketch<StartFromADither>},
    {"PurposeSharedByTheStartAndADither", check_draws<>,
     check_draws<SharedPurpose<Purpose::dither_u, Purpose::sketch_omega>>},
    {"LossWithoutTheNoiseOfFactors", check_loss<>, check_loss<FactorsWithoutNoise>},
    {"LossWithTheSignalInIt", check_loss<>, check_loss<AtomsWithoutTheirSignal>},
    {"LossOfAGridWithUniformErrors", check_loss<>, check_loss<GridWithUniformError>},
    {"ProbabilitiesWithoutTheNoiseOfFactors", check_pair_probabilities<>,
     check_pair_probabilities<KappaWithoutNoise>},
    {"ProbabilitiesOfPairsAsOfRows", check_pair_probabilities<>, check_pair_probabilities<NoKappa>},
    {"CapKeptByDrawingAgain", check_cap<>, check_cap<CapByDrawingAgain>},
    {"CapWithoutGain", check_cap<>, check_cap<NoGainForWhatIsLeftOut>},
    {"CapThatFitsThisStartAlone", check_cap<>, check_cap<RunsThatFitThisStart>},
    {"RandomKWithReplacement", check_random_k<>, check_random_k<WithReplacement>},
    {"RandomKLeftOutIsKept", check_random_k<>, check_random_k<LeftOutIsKept>},
    {"RandomKWithFixedShares", check_random_k<>, check_random_k<FixedShares>},
    {"RandomKWithSharesBySegments", check_random_k<>, check_random_k<SharesBySegments>},
    {"RandomKUnscaled", check_random_k<>, check_random_k<Unscaled>},
    {"SumsThatWrapAt29Bits", [] { return check_sums(add_by_messages); },
     [] { return check_sums(wrap_at_29_bits); }},
    {"SumsThatStopAt29Bits", [] { return check_sums(add_by_messages); },
     [] { return check_sums(stop_at_29_bits); }},
    {"SumsRoundedToF32", [] { return check_sums(add_by_messages); },
     [] { return check_sums(add_as_f32); }},
    {"SumsOfMagnitudes", [] { return check_sums(add_by_messages); },
     [] { return check_sums(add_magnitudes); }},
};

/// GoogleTest's listing shows the name instead of the bytes.
void PrintTo(const Mutant& mutant, std::ostream* out) { *out << mutant.name; }

class Mutants : public testing::TestWithParam<Mutant> {};

TEST_P(Mutants, AreCaught) {
  EXPECT_EQ(GetParam().library(), "") << "the library itself is flagged";
  const std::string found = GetParam().mistake();
  EXPECT_NE(found, "") << GetParam().name << " survives";
  std::cout << "  " << GetParam().name << ": " << found << "\n";
}

INSTANTIATE_TEST_SUITE_P(Planted, Mutants, testing::ValuesIn(kMutants),
                         [](const testing::TestParamInfo<Mutant>& row) {
                           return std::string(row.param.name);
                         });

}  // namespace

}  // namespace atomo::test
