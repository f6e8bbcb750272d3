// SPDX-License-Identifier: Apache-2.0
/// \file
/// The shares are changed in the policy's text, so that all else of it stays as it was written. A share has
/// a point or an exponent, a count has neither, as specs of codecs have it.

#include "learning/sparsity_warmup.hpp"

#include <charconv>
#include <cmath>
#include <regex>
#include <stdexcept>

namespace train {

std::string warmed_up(const std::string& policy, std::uint32_t stage) {
  static const std::regex pattern(R"(\bkeep=((?:[0-9.]|e[+-]?(?=[0-9]))+))");
  const double least = std::pow(0.25, stage + 1.0);
  std::string text;
  auto rest = policy.cbegin();
  for (std::smatch found; std::regex_search(rest, policy.cend(), found, pattern);) {
    const std::string share = found[1];
    if (share.find_first_of(".e") == std::string::npos) {
      throw std::runtime_error("keep=" + share +
                               " is a count: a share is expected, such as keep=0.01");
    }
    if (std::stod(share) < least) {
      char number[32];
      const auto end = std::to_chars(number, number + sizeof number, least);
      text.append(rest, found[1].first).append(number, end.ptr);
    } else {
      text.append(rest, found[1].second);
    }
    rest = found[1].second;
  }
  if (rest == policy.cbegin()) {
    throw std::runtime_error(
        "the policy has no keep=: a codec that keeps a share is expected, such as "
        "dgc+topk:keep=0.01");
  }
  return text.append(rest, policy.cend());
}

}  // namespace train
