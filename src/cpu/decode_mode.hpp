// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How decoded values meet the output.

#include "core/namespaces.hpp"

namespace atomo::cpu {

/// How decoded values meet the output.
struct DecodeMode {
  bool add = false;  ///< false: y[i] = v, zeros where no atom was kept; true: y[i] = y[i] + (alpha
                     ///< * v), two roundings
  float alpha = 1.0f;    ///< unused unless `add`
  float gain = 1.0f;     ///< of the steps: what makes up for atoms that a size cap left out
  bool centred = false;  ///< content has no dither
};

}  // namespace atomo::cpu
