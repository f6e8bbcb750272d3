// SPDX-License-Identifier: Apache-2.0
/// The coding, the steps and the scales of every class for the vectors of atoms at one price.
#include "cpu/atom_vectors.hpp"

#include <cmath>

namespace atomo::cpu {
namespace {

ClassCodings class_codings(std::uint64_t length, bool centred) noexcept {
  ClassCodings codings;
  for (std::size_t c = 0; c < kAtomClassCount; ++c)
    codings[c] =
        duo_coding(kAtomClasses[c].step, escape_bits(length, kAtomClasses[c].reach), centred);
  return codings;
}

}  // namespace

SingleVectors::SingleVectors(const AtomLayout& layout, float price, bool centred,
                             float gain) noexcept
    : layout_(layout),
      shape_{layout.length, layout.last, purposes_of(layout.family).pre_round,
             purposes_of(layout.family).dither},
      codings_(class_codings(layout.length, centred)),
      last_codings_(class_codings(layout.last, centred)),
      range_(range_scale(price)),
      price_(price * range_),
      gain_(gain) {}

VectorScale SingleVectors::scale(std::size_t, const AtomChoice& choice) const noexcept {
  const float delta = kAtomClasses[choice.atom_class].delta;
  const ContentScale<float> content = choice.probability == 0
                                          ? certain_scale(price_, delta)
                                          : uncertain_scale(price_, delta, choice.probability);
  return {range_, content.step * gain_, content.inverse};
}

PairVectors::PairVectors(const PairLayer& layer, float price, bool centred, float gain,
                         int exponent) noexcept
    : frame_(pairs_frame(layer)),
      range_(range_scale(price)),
      root_(std::sqrt(static_cast<double>(layer.view.shorter()))),
      unit_(std::ldexp(static_cast<double>(range_), exponent)) {
  const std::uint64_t m = layer.view.shorter(), n = layer.view.longer();
  shapes_ = {VectorShape{m, m, Purpose::pre_round_u, Purpose::dither_u},
             VectorShape{n, n, Purpose::pre_round_v, Purpose::dither_v}};
  const float scaled_price = price * range_;
  for (std::size_t c = 0; c < kAtomClassCount; ++c) {
    const PairStep step = pair_step(layer.view, c);
    codings_[0][c] = duo_coding(step.shorter.step, step.shorter.escape_bits, centred);
    codings_[1][c] = duo_coding(step.longer.step, step.longer.escape_bits, centred);
    steps_[0][c] = step.shorter.size;
    steps_[1][c] = scaled_price * step.longer.size * gain;
  }
}

VectorScale PairVectors::scale(std::size_t vector, const AtomChoice& choice) const noexcept {
  const float step = steps_[vector][choice.atom_class];
  if (vector == 0) return {1, step, static_cast<float>(root_ / static_cast<double>(step))};
  // Over P 2^-32 when uncertain.
  const double weight =
      choice.probability == 0 ? 1.0 : kTwo32 / static_cast<double>(choice.probability);
  return {1, step, static_cast<float>(weight * unit_ / (root_ * static_cast<double>(step)))};
}

}  // namespace atomo::cpu
