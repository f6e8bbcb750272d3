// SPDX-License-Identifier: Apache-2.0
/// \file
/// One budget for the steps of a run. A step whose gradient moves the weights at rate r in the end and whose
/// message has b bits adds about r^2 b^-p to the error of the weights. Of all ways to spend the same bits in a
/// run the sum is least where its derivative by each step's bits is the same: b in proportion to
/// r^(2 / (1 + p)).

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

/// The rate at which a step's gradient moves the weights in the end: an optimiser's first moment holds the
/// gradient of step t in step t + k with the weight (1 - m) m^k / (1 - m^(t + k)), steps counted from 1.
std::vector<double> felt_rates(std::span<const double> rates, double momentum) {
  std::vector<double> felt(rates.size());
  double later = 0;
  for (std::size_t step = rates.size(); step-- > 0;) {
    const double corrected = 1 - std::pow(momentum, static_cast<double>(step + 1));
    later = (momentum * later) + ((1 - momentum) * rates[step] / corrected);
    felt[step] = later;
  }
  return felt;
}

}  // namespace

std::vector<double> budget_shares(std::span<const double> rates, double power, double least,
                                  double momentum) {
  if (!(power >= 0 && power <= 4)) refuse("the power of the rates", power, "0 to 4");
  if (!(least > 0 && least <= 1)) refuse("the least share of a step", least, "above 0, at most 1");
  if (!(momentum >= 0 && momentum < 1)) refuse("the momentum", momentum, "from 0, below 1");
  if (rates.empty()) return {};
  for (const double rate : rates) {
    if (!(std::isfinite(rate) && rate >= 0)) refuse("a rate", rate, "a number from 0 on");
  }
  if (*std::ranges::max_element(rates) == 0) throw Error("all rates are 0; expected one above 0");
  const std::vector<double> felt = felt_rates(rates, momentum);
  const double most = *std::ranges::max_element(felt);
  std::vector<double> shares(rates.size());
  std::ranges::transform(felt, shares.begin(), [&](double rate) {
    return std::max(least, std::pow(rate / most, power));
  });
  const double mean =
      std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
  for (double& share : shares) share /= mean;
  return shares;
}

}  // namespace atomo
