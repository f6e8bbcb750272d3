// SPDX-License-Identifier: Apache-2.0
/// The steps of the factors of pairs, and how long their bodies can become.
#include "format/pair_body.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "coding/duo_code.hpp"
#include "format/atom_body.hpp"
#include "format/content_bound.hpp"

namespace atomo::format {
namespace {

constexpr std::size_t kAspects = std::size(kPairKappa);

/// Margin of a reach over roundings, as in the atoms' table.
constexpr double kReachMargin = 1 + 0x1p-10;

/// Largest rms of the factors of a class, in steps.
struct FactorReach {
  double shorter, longer;
};
FactorReach factor_reach(const MatrixShape& shape, std::size_t atom_class) noexcept {
  const PairSteps steps = kPairSteps[pair_aspect(shape)][atom_class];
  const double shorter = kCodingSteps[steps.shorter].d;
  const double longer = kCodingSteps[steps.longer].d * kClassMiddle[atom_class];
  const double top = top_of_class(atom_class) / longer;
  return {1 / shorter * kReachMargin, top * kReachMargin};
}

}  // namespace

PairStep pair_step(const MatrixShape& shape, std::size_t atom_class) noexcept {
  const std::size_t aspect = pair_aspect(shape);
  const auto m = static_cast<double>(shape.shorter()), n = static_cast<double>(shape.longer());
  // rms of the second factor of a pair that is just certain, in units of the price.
  const double unit = kPairKappa[aspect] * std::sqrt((m + n) / (m * n));
  const PairSteps steps = kPairSteps[aspect][atom_class];
  const double shorter = kCodingSteps[steps.shorter].d;
  const double longer = kCodingSteps[steps.longer].d * kClassMiddle[atom_class];
  const FactorReach reach = factor_reach(shape, atom_class);
  return {
      {steps.shorter, escape_bits(shape.shorter(), reach.shorter), static_cast<float>(shorter)},
      {steps.longer, escape_bits(shape.longer(), reach.longer), static_cast<float>(unit * longer)}};
}

std::size_t pair_aspect(const MatrixShape& shape) noexcept {
  // floor(log2(ratio^2) + 1/2), by the exponent of an f64.
  const double ratio = static_cast<double>(shape.longer()) / static_cast<double>(shape.shorter());
  const double squared = ratio * ratio * 1.4142135623730951;
  const auto octave =
      static_cast<std::size_t>((std::bit_cast<std::uint64_t>(squared) >> 52) - 1023);
  return std::min(octave, kAspects - 1);
}

AtomLayout pairs_frame(const PairLayer& layer) noexcept {
  const MatrixShape& shape = layer.view;
  const std::uint64_t entries = shape.shorter() + shape.longer();
  const std::uint64_t length =
      entries <= kPieceEntries
          ? entries
          : kPieceEntries * (pieces_of(shape.shorter()) + pieces_of(shape.longer()));
  return AtomLayout::rows(layer.count, length);
}

GroupShape group_shape(const MatrixShape& shape) noexcept {
  return GroupShape::of(pairs_frame(PairLayer::all_of(shape)).length);
}

std::size_t max_pairs_body_bytes(const PairLayer& layer) noexcept {
  const MatrixShape& view = layer.view;
  std::uint64_t bits = 0;
  for (std::size_t c = 0; c < kAtomClassCount; ++c) {
    const PairStep of = pair_step(view, c);
    const std::uint64_t u = max_duo_bits(of.shorter.step, of.shorter.escape_bits);
    const std::uint64_t v = max_duo_bits(of.longer.step, of.longer.escape_bits);
    bits = std::max(bits, duos_of(view.shorter()) * u + duos_of(view.longer()) * v);
  }
  const std::uint64_t count = layer.count;
  const std::size_t flags = round_up((count * (1 + kClassBits) + 7) / 8, 2);
  const std::size_t lengths = 2 * group_shape(view).groups(count);
  return round_up(max_marks_bytes(count) + flags + lengths + (count * bits + 7) / 8, 4);
}

std::uint64_t max_pair_content_bits(const MatrixShape& shape) noexcept {
  std::uint64_t bits = 0;
  for (std::size_t c = 0; c < kAtomClassCount; ++c) {
    const PairSteps steps = kPairSteps[pair_aspect(shape)][c];
    const FactorReach reach = factor_reach(shape, c);
    bits = std::max(bits, max_vector_bits(steps.shorter, reach.shorter, shape.shorter()) +
                              max_vector_bits(steps.longer, reach.longer, shape.longer()));
  }
  return bits;
}

}  // namespace atomo::format
