// SPDX-License-Identifier: Apache-2.0
/// \file
/// One budget for the steps of a run. A step at rate r whose message has b bits adds about
/// r^2 b^-p to the error of the weights. Of all ways to spend the same bits in a run the sum is least
/// where its derivative by each step's bits is the same: b in proportion to r^(2 / (1 + p)). What noise
/// does to an optimiser's moments outlives the step, so no step has less than a later one: a warm-up has
/// what its end has.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "atomo/compressor.hpp"
#include "codec/spec.hpp"

namespace atomo {
namespace {

[[noreturn]] void refuse(const char* what, double value, const char* expected) {
  throw Error(what + (" is " + codec::format_number(value)) + "; expected " + expected);
}

}  // namespace

std::vector<double> budget_shares(std::span<const double> rates, double power, double least) {
  if (!(power >= 0 && power <= 4)) refuse("the power of the rates", power, "0 to 4");
  if (!(least > 0 && least <= 1)) refuse("the least share of a step", least, "above 0, at most 1");
  if (rates.empty()) return {};
  for (const double rate : rates) {
    if (!(std::isfinite(rate) && rate >= 0)) refuse("a rate", rate, "a number from 0 on");
  }
  const double highest = *std::ranges::max_element(rates);
  if (highest == 0) throw Error("all rates are 0; expected one above 0");
  std::vector<double> shares(rates.size());
  double later = 0;
  for (std::size_t step = rates.size(); step-- > 0;) {
    later = std::max(later, rates[step]);
    shares[step] = std::max(least, std::pow(later / highest, power));
  }
  const double mean =
      std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
  for (double& share : shares) share /= mean;
  return shares;
}

}  // namespace atomo
