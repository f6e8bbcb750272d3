// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What is asked of the entries of every layer before anything else, in one pass.

#include <cstddef>

#include "atomo/types.hpp"

namespace atomo::cpu {

struct EntryScan {
  bool finite = true;     ///< no Inf and no NaN
  std::size_t zeros = 0;  ///< entries that are 0, of either sign
  float largest = 0;      ///< magnitude, where all are finite
};

/// Runs on the executor, which may be null.
[[nodiscard]] EntryScan scan_entries(const float* x, std::size_t n, Executor* executor) noexcept;

}  // namespace atomo::cpu
