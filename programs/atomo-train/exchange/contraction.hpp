// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What has to be known of a codec C where copies of a tensor follow it by s C(difference).

#include <atomo/atomo.hpp>

namespace train {

/// E|x - s C(x)|^2 <= (1 - delta) |x|^2.
struct Contraction {
  double scale = 0;  ///< s; 0 where nothing says what it should be
  double delta = 0;  ///< not above 0 where s C is not known to contract
};

/// `wanted` is the scale, or 0: then 1 / (1 + omega) for an unbiased codec of variance omega, and 1
/// for a biased one.
[[nodiscard]] Contraction contraction_of(const atomo::Codec& codec, double wanted);

}  // namespace train
