// SPDX-License-Identifier: Apache-2.0
/// \file
/// Rotated blocks of which each entry is sent as one of 2^bits levels, in a code of `bits` bits.
#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <string>

#include "catalogue/rotated_blocks.hpp"

namespace atomo::catalogue {
namespace {

constexpr float kLevels[4][16] = {
    {-0.7978845608f, 0.7978845608f},
    {-1.5104176085f, -0.4527800346f, 0.4527800346f, 1.5104176085f},
    {-2.1519457045f, -1.3439092785f, -0.7560052812f, -0.2450941789f, 0.2450941789f, 0.7560052812f,
     1.3439092785f, 2.1519457045f},
    {-2.7325895710f, -2.0690172265f, -1.6180463860f, -1.2562311973f, -0.9423404565f, -0.6567591185f,
     -0.3880482995f, -0.1283950299f, 0.1283950299f, 0.3880482995f, 0.6567591185f, 0.9423404565f,
     1.2562311973f, 1.6180463860f, 2.0690172265f, 2.7325895710f}};

class RotatedLevels final : public RotatedBlocks {
 public:
  RotatedLevels(unsigned bits, std::size_t block, unsigned rotations, RotatedForm form)
      : RotatedBlocks(block, rotations, form), bits_(bits), levels_(normal_levels(bits)) {
    for (std::size_t j = 0; j + 1 < levels_.size(); ++j) {
      borders_[j] =
          form == RotatedForm::unbiased ? levels_[j + 1] : (levels_[j] + levels_[j + 1]) / 2;
      if (form == RotatedForm::unbiased) over_gap_[j] = 1.0 / (double{levels_[j + 1]} - levels_[j]);
    }
  }

  Traits traits() const override {
    Traits t;
    t.fixed_size = t.bounded = true;
    const double least = levels_[levels_.size() / 2], most = levels_.back();
    const auto length = static_cast<double>(block());
    if (form() == RotatedForm::unbiased) {
      claim_unbiased(t);
      double gap = 0;
      for (std::size_t j = 0; j + 1 < levels_.size(); ++j)
        gap = std::max(gap, double{levels_[j + 1]} - levels_[j]);
      // Each rotated entry errs by gap^2 / 4 at most, and the levels are stretched to the largest.
      t.omega = gap * gap / 4 * std::max(1.0, length / (most * most)) * 1.001;
    }
    // cos^2 of the angle between a vector and its signs is at least 1 / length.
    if (form() == RotatedForm::mse && bits_ == 1)
      t.contraction = 0.9 * (least * least) / (most * most) / length;
    return t;
  }

 private:
  std::size_t codes_of(std::size_t length) const override { return length; }
  std::size_t code_bytes(std::size_t length) const override { return packed_bytes(length, bits_); }

  float choose(std::span<const float> v, double energy, Words& words,
               std::span<Code> codes) const override {
    if (form() == RotatedForm::unbiased) return choose_at_random(v, energy, words, codes);
    const auto to_level = static_cast<float>(1 / std::sqrt(energy));
    double along = 0, squares = 0;
    for (std::size_t i = 0; i < v.size(); ++i) codes[i] = place_of(v[i] * to_level);
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double level = levels_[codes[i]];
      along += v[i] * level;
      squares += level * level;
    }
    return scale_of(along, squares, energy, v.size());
  }

  float choose_at_random(std::span<const float> v, double energy, Words& words,
                         std::span<Code> codes) const {
    const auto length = static_cast<double>(v.size());
    const double stretched = std::max(std::sqrt(energy), largest_of(v) / double{levels_.back()});
    const float scale = rounded_up(stretched / length);
    const double to_level = 1 / (double{scale} * length);
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double u = v[i] * to_level;
      const Code place =
          std::min<Code>(place_of(static_cast<float>(u)), static_cast<Code>(levels_.size() - 2));
      const bool up = words.happens((u - double{levels_[place]}) * over_gap_[place]);
      codes[i] = static_cast<Code>(place + (up ? 1 : 0));
    }
    return scale;
  }

  void put(Writer& out, std::span<const Code> codes) const override {
    put_codes(out, codes, bits_);
  }
  void get(Reader& in, std::span<Code> codes, std::size_t) const override {
    get_codes(in, codes, bits_);
  }
  void expand(std::span<const Code> codes, std::span<float> q) const noexcept override {
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = levels_[codes[i]];
  }

  /// The place of t among the borders, which it is not below.
  Code place_of(float t) const noexcept {
    unsigned place = 0;
    for (std::size_t j = 0; j + 1 < levels_.size(); ++j) place += t > borders_[j] ? 1u : 0u;
    return static_cast<Code>(place);
  }

  unsigned bits_;
  std::span<const float> levels_;
  std::array<float, 16> borders_{};
  std::array<double, 16> over_gap_{};
};

}  // namespace

std::span<const float> normal_levels(unsigned bits) noexcept {
  return {kLevels[bits - 1], std::size_t{1} << bits};
}

double read_rotated_bits(SpecKeys& keys) {
  const double bits = keys.number("bits", 0.02, 4, 2);
  if (bits > 1 && bits != std::floor(bits)) {
    char text[32];
    const auto end = std::to_chars(std::begin(text), std::end(text), bits).ptr;
    throw Error("bits=" + std::string(text, end) + ": a whole number is wanted from 1 on");
  }
  return bits;
}

std::shared_ptr<const OwnCodec> read_rotated_levels(unsigned bits, SpecKeys& keys) {
  const auto block = static_cast<std::size_t>(keys.integer("block", 64, 65536, 16384));
  const auto rotations = static_cast<unsigned>(keys.integer("rotations", 1, 3, 1));
  const auto form = keys.choice("form", {"published", "mse", "unbiased"}, 0);
  return std::make_shared<RotatedLevels>(bits, block, rotations, static_cast<RotatedForm>(form));
}

}  // namespace atomo::catalogue
