// SPDX-License-Identifier: Apache-2.0
/// \file
/// The scale s and the factor delta follow from the codec's traits. An unbiased codec of variance
/// omega leaves at most (1 - s)^2 + s^2 omega of |x|^2, which is smallest at s = 1 / (1 + omega). A
/// biased codec has a known bound at s = 1 only.

#include "exchange/contraction.hpp"

namespace train {

Contraction contraction_of(const atomo::Codec& codec, double wanted) {
  const auto& traits = codec.traits();
  if (traits.unbiased && traits.omega) {
    const double omega = *traits.omega;
    const double s = wanted > 0 ? wanted : 1 / (1 + omega);
    return {s, 1 - (1 - s) * (1 - s) - s * s * omega};
  }
  if (traits.unbiased) return {wanted, 0};
  const double s = wanted > 0 ? wanted : 1;
  return {s, s == 1 ? traits.contraction.value_or(0) : 0};
}

}  // namespace train
