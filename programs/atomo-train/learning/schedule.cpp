// SPDX-License-Identifier: Apache-2.0
/// \file
/// The five schedules of the learning rate are computed here: half a cosine that ends at 0, a
/// constant, a constant that falls along a line to 0 at the end, a constant that falls by a factor
/// at shares of the run, and a power of the step. All of them begin with the same linear warm-up.

#include "learning/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <stdexcept>

namespace train {

double Schedule::operator()(std::uint32_t step) const {
  const double rise = step < warmup ? (step + 1.0) / warmup : 1.0;
  return rise * rate * left(step);
}

double Schedule::left(std::uint32_t step) const {
  if (name == "cosine") return 0.5 * (1 + std::cos(std::numbers::pi * step / steps));
  if (name == "exponential") return std::pow(decay, step);
  if (name == "trapezoid") {
    const double falls_at = decay_at.front();
    return std::min(1.0, (1 - static_cast<double>(step) / steps) / (1 - falls_at));
  }
  double factor = 1;
  if (name == "step") {
    for (const double share : decay_at) {
      if (step >= share * steps) factor *= decay;
    }
  }
  return factor;
}

std::vector<double> parse_decay_at(const std::string& text) {
  std::vector<double> shares;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    std::size_t used = 0;
    double share = 0;
    try {
      share = std::stod(part, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || used != part.size() || !(share > 0 && share < 1)) {
      throw std::runtime_error("'" + part +
                               "' is not a share of the run, between 0 and 1; write "
                               "for example 0.5,0.75");
    }
    if (!shares.empty() && share <= shares.back()) {
      throw std::runtime_error("'" + part +
                               "' is not above the share before it; write for "
                               "example 0.5,0.75");
    }
    shares.push_back(share);
  }
  return shares;
}

}  // namespace train
