// SPDX-License-Identifier: Apache-2.0
/// Bounds the bits that the dithered content of a vector can take, by weak duality between the
/// lengths of the words and the energy that they need.
#include "format/content_bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "coding/duo_code.hpp"
#include "format/atom_body.hpp"
#include "math/dither.hpp"

namespace atomo::format {
namespace {

constexpr std::size_t kSteps = std::size(kCodingSteps);
constexpr unsigned kLengths = 16;  // of words: 0, for the cells that are escaped, to 15

/// What is added to an entry before it is rounded down: from `least` to `most`.
struct Draw {
  double least, most;

  static Draw of(std::uint32_t level) noexcept {
    const double least = static_cast<double>(level) / 16;
    return {least, least + 1.0 / 16};
  }
};
/// Of centred content.
constexpr Draw kNoDraw{0.5, 0.5};

/// Least squared size, in steps, of an entry that becomes one of `from` .. `to`; the margins are for
/// roundings.
double least_energy(std::int32_t from, std::int32_t to, const Draw& draw) noexcept {
  const double size = from > 0 ? from * (1 - 0x1p-20) - draw.most
                      : to < 0 ? -to * (1 - 0x1p-20) - 1 + draw.least
                               : 0;
  const double least = std::max(size - 0x1p-6, 0.0);
  return least * least;
}

/// Of every word length of a step, the least energy of a pair that has such a word.
struct WordEnergies {
  std::array<double, kLengths> of_length;

  explicit WordEnergies(std::size_t step) noexcept {
    of_length.fill(std::numeric_limits<double>::infinity());
    const DuoCoding coding = duo_coding(step, kMaxEscapeBits);
    for (std::uint32_t level = 0; level < 16; ++level)
      add(coding, level, Draw::of(level), Draw::of(level ^ kMateDither));
    add(duo_coding(step, kMaxEscapeBits, true), 0, kNoDraw, kNoDraw);
  }

 private:
  /// One cell beyond the table on each side stands for all that are.
  void add(const DuoCoding& coding, std::uint32_t level, const Draw& first,
           const Draw& second) noexcept {
    const std::int32_t half = 1 << (coding.width - 1);
    for (std::int32_t h0 = -half - 1; h0 <= half; ++h0) {
      for (std::int32_t h1 = -half - 1; h1 <= half; ++h1) add(coding, level, h0, h1, first, second);
    }
  }
  void add(const DuoCoding& coding, std::uint32_t level, std::int32_t h0, std::int32_t h1,
           const Draw& first, const Draw& second) noexcept {
    const std::int32_t half = 1 << (coding.width - 1), width = 1 << coding.raw;
    const auto energy = [&](std::int32_t h, const Draw& of) {
      const std::int32_t from = h * width - width / 2;
      return least_energy(from, from + width - 1, of);
    };
    unsigned length = 0;
    if (h0 >= -half && h0 < half && h1 >= -half && h1 < half) {
      const auto cell = static_cast<std::uint32_t>(((h0 + half) << coding.width) | (h1 + half));
      const std::uint32_t entry =
          coding.encode[((level & coding.level_mask) << (2 * coding.width)) | cell];
      length = (entry & EncodeEntry::kEscape) != 0 ? 0 : EncodeEntry::length(entry);
    }
    of_length[length] = std::min(of_length[length], energy(h0, first) + energy(h1, second));
  }
};

/// The longest escape word of a step.
unsigned escape_length(std::size_t step) noexcept {
  return kCodeLengths[kCodingSteps[step].table].limit;
}

class Energies {
 public:
  Energies() noexcept {
    for (std::size_t step = 0; step < kSteps; ++step) steps_[step] = WordEnergies(step).of_length;
  }
  [[nodiscard]] const std::array<double, kLengths>& of(std::size_t step) const noexcept {
    return steps_[step];
  }

 private:
  std::array<std::array<double, kLengths>, kSteps> steps_{};
};

}  // namespace

std::uint64_t max_vector_bits(std::size_t step, double reach, std::uint64_t entries) noexcept {
  static const Energies energies;
  const unsigned escaped = escape_length(step) + 2 * escape_bits(entries, reach);
  const auto pairs = static_cast<double>(duos_of(entries));
  const double energy = static_cast<double>(entries) * reach * reach;
  double bits = pairs * max_duo_bits(step, escape_bits(entries, reach));
  for (int k = -16; k <= 16; ++k) {
    const double lambda = std::exp2(0.5 * k) / (reach * reach);
    double longest = 0;
    for (unsigned length = 0; length < kLengths; ++length) {
      const double of_words = length == 0 ? escaped : length + 2 * kCodingSteps[step].raw;
      longest = std::max(longest, of_words - lambda * energies.of(step)[length]);
    }
    bits = std::min(bits, pairs * longest + lambda * energy);
  }
  return static_cast<std::uint64_t>(std::ceil(bits * (1 + 0x1p-30)));
}

}  // namespace atomo::format
