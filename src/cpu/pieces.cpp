// SPDX-License-Identifier: Apache-2.0
/// The coding and the steps of every class for atoms of one length at one price.
#include "cpu/pieces.hpp"

namespace atomo::cpu {

ClassCodings::ClassCodings(std::uint64_t length, float price, float gain) noexcept
    : range_(range_scale(price)), price_(price * range_), gain_(gain) {
  for (std::size_t c = 0; c < kAtomClassCount; ++c) {
    codings_[c] = pair_coding(kAtomClasses[c].step, escape_bits(length, kAtomClasses[c].reach));
  }
}

VectorScale ClassCodings::scale(std::uint8_t atom_class, std::uint32_t probability) const noexcept {
  const float delta = kAtomClasses[atom_class].delta;
  const ContentScale<float> content =
      probability == 0 ? certain_scale(price_, delta) : uncertain_scale(price_, delta, probability);
  return {range_, content.step * gain_, content.inverse};
}

}  // namespace atomo::cpu
