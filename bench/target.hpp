// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Which of Highway's instruction sets a program of the benchmarks uses.

#include <hwy/highway.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>

namespace atomo::bench {

/// The name of one target as the command line has it, such as `avx2`.
inline std::string target_name(std::int64_t target) {
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

/// Makes all loops use this instruction set alone; `best` leaves the choice to the processor. To be
/// called before any other work. \throws std::runtime_error where the processor has no such set.
inline void force_target(const std::string& wanted) {
  if (wanted == "best") return;
  std::string known = "best";
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target_name(target) == wanted) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().DeInit();
      return;
    }
    known += ", " + target_name(target);
  }
  throw std::runtime_error("--target is '" + wanted + "'; this processor has " + known);
}

}  // namespace atomo::bench
