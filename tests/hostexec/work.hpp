// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How much each block does: basic blocks of code run by its threads, a count that depends on no
/// clock. For programs whose kernels are compiled with -fsanitize-coverage=trace-pc.

#include <cstdint>
#include <string>
#include <vector>

namespace hostexec {

struct GridWork {
  std::string kernel;
  std::vector<std::uint64_t> blocks;  ///< work of each, in the order they ran
};

/// Forgets what was counted.
void reset_work();
/// The grids that ran since, in their order.
[[nodiscard]] std::vector<GridWork> work();

}  // namespace hostexec
