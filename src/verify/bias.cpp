// SPDX-License-Identifier: Apache-2.0
/// The first direction is the tensor, the second the sum of its entries; classes of magnitude and
/// stretches of entries follow. Where no range of a decoded entry is claimed, one and a half times what
/// was seen at any entry in any draw stands for it, and an entry may jump as far as any was seen to.
#include "verify/bias.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace atomo::verify {
namespace {

constexpr std::size_t kMostEntries = 1024;  ///< that are looked at one by one
constexpr std::size_t kPlaces = 16;
constexpr int kLowestOctave = -24, kHighestOctave = 24;
constexpr double kSeenMore = 1.5, kJump = 2;
constexpr double kSteps = 4;  ///< of a fixed grid that an entry may decode to
/// Half a step between subnormal numbers, which a rounding of them may add to any entry.
constexpr double kSmallest = 0x1p-149;

double outward(float x, double value) { return std::signbit(x) ? -value : value; }

}  // namespace

BiasLooks::BiasLooks(const Input& input, const Claims& claims) : input_(input), claims_(claims) {
  for (const float x : input.values) {
    const double v = std::fabs(static_cast<double>(x));
    energy_ += v * v;
    magnitudes_ += v;
    largest_ = std::max(largest_, v);
  }
  const std::size_t n = input.values.size();
  rms_ = n == 0 ? 0 : std::sqrt(energy_ / static_cast<double>(n));
  const std::size_t along = add_direction("bias along the tensor", true, true);
  const std::size_t sum = add_direction("bias of the sum", false, false);
  for (std::size_t i = 0; i < n; ++i) {
    assign(along, i);
    assign(sum, i);
  }
  add_classes();
  add_places();
  if (n <= kMostEntries) entries_.resize(n);
  lows_.assign(n, std::numeric_limits<float>::infinity());
  highs_.assign(n, -std::numeric_limits<float>::infinity());
}

std::size_t BiasLooks::add_direction(const char* what, bool is_outward, bool by_energy) {
  Direction direction;
  direction.what = what;
  direction.outward = is_outward;
  direction.by_energy = by_energy;
  directions_.push_back(std::move(direction));
  return directions_.size() - 1;
}

void BiasLooks::assign(std::size_t number, std::size_t i) {
  Direction& d = directions_[number];
  const double v = std::fabs(static_cast<double>(input_.values[i]));
  const double weight = d.by_energy ? v : 1;
  d.entries += 1;
  d.weight += weight;
  d.heaviest = std::max(d.heaviest, weight);
  d.scale += weight * v;
  d.energy += weight * weight;
}

void BiasLooks::add_classes() {
  std::vector<std::size_t> numbers(kHighestOctave - kLowestOctave + 1, 0);
  class_of_.assign(input_.values.size(), 0);
  for (std::size_t i = 0; i < input_.values.size(); ++i) {
    const double v = std::fabs(static_cast<double>(input_.values[i]));
    if (v == 0) continue;
    const int octave = std::clamp(std::ilogb(v / rms_), kLowestOctave, kHighestOctave);
    std::size_t& number = numbers[static_cast<std::size_t>(octave - kLowestOctave)];
    if (number == 0) {
      number = add_direction("bias by magnitude", true, false);
      directions_[number].octave = octave;
    }
    assign(number, i);
    class_of_[i] = static_cast<std::uint32_t>(number);
  }
}

void BiasLooks::add_places() {
  const std::size_t n = input_.values.size();
  place_of_.assign(n, 0);
  if (n < 2 * kPlaces) return;
  for (std::size_t p = 0; p < kPlaces; ++p) {
    const std::size_t number = add_direction("bias by place", true, true);
    for (std::size_t i = n * p / kPlaces; i < n * (p + 1) / kPlaces; ++i) {
      assign(number, i);
      place_of_[i] = static_cast<std::uint32_t>(number);
    }
  }
}

void BiasLooks::add(std::span<const float> y) {
  for (Direction& d : directions_) d.sum = 0;
  const bool by_place = input_.values.size() >= 2 * kPlaces;
  double along = 0, sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float x = input_.values[i];
    const double error = static_cast<double>(y[i]) - static_cast<double>(x);
    const double reached = outward(x, static_cast<double>(y[i])), more = outward(x, error);
    lows_[i] = std::min(lows_[i], y[i]);
    highs_[i] = std::max(highs_[i], y[i]);
    lowest_ = std::min(lowest_, reached);
    highest_ = std::max(highest_, reached);
    along += error * static_cast<double>(x);
    sum += error;
    if (class_of_[i] != 0) directions_[class_of_[i]].sum += more;
    if (by_place) directions_[place_of_[i]].sum += error * static_cast<double>(x);
    if (!entries_.empty()) entries_[i].add(more);
  }
  directions_[0].sum = along;
  directions_[1].sum = sum;
  for (Direction& d : directions_)
    if (d.scale > 0) d.numbers.add(d.sum / d.scale);
}

double BiasLooks::jump() const {
  double most = 0;
  for (std::size_t i = 0; i < lows_.size(); ++i)
    most = std::max(most, static_cast<double>(highs_[i]) - static_cast<double>(lows_[i]));
  return kJump * most;
}

/// The largest magnitude of a decoded entry.
double BiasLooks::reach() const {
  return std::max({highest_, -lowest_, largest_, kSteps * claims_.step});
}

double BiasLooks::slack(double magnitudes, double weights) const {
  return claims_.bias_bound * (magnitudes + weights * reach()) + weights * kSmallest;
}

double BiasLooks::squared_slack() const {
  const double each = claims_.bias_bound * reach() + kSmallest;
  return 2 * (claims_.bias_bound * claims_.bias_bound +
              static_cast<double>(input_.values.size()) * each * each / energy_);
}

void BiasLooks::look(Findings& findings, bool enumerated) {
  looked_.assign(directions_.size(), 0);
  if (energy_ == 0) return look_at_zeros(findings, enumerated);
  const bool exact = claims_.largest.has_value();
  const double most =
      exact ? *claims_.largest * largest_ : std::max(kSeenMore * highest_, kSeenMore * largest_);
  const double least = exact ? -most : kSeenMore * std::min(lowest_, 0.0);
  const double jumps = jump();
  const auto variance = [&](double weights_squared, double scale) -> std::optional<double> {
    if (!claims_.omega) return std::nullopt;
    return *claims_.omega * energy_ * weights_squared / (scale * scale);
  };
  for (std::size_t k = 0; k < directions_.size(); ++k) {
    const Direction& d = directions_[k];
    if (!(d.scale > 0)) continue;
    const double furthest = std::max(most, -least) * d.weight / d.scale + 1;
    const Span possible = d.outward
                              ? Span{least * d.weight / d.scale - 1, most * d.weight / d.scale - 1}
                              : Span{-furthest, furthest};
    looked_[k] = findings.look({{"unbiased", d.what, input_.name},
                                d.numbers,
                                possible,
                                slack(d.scale, d.weight) / d.scale,
                                false,
                                exact,
                                enumerated,
                                variance(d.energy, d.scale),
                                jumps * d.heaviest / d.scale});
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const double v = std::fabs(static_cast<double>(input_.values[i]));
    // In units of the largest entry, since an entry may be 0.
    Statistic numbers = entries_[i];
    numbers.mean /= largest_;
    numbers.squares /= largest_ * largest_;
    numbers.lowest /= largest_;
    numbers.highest /= largest_;
    const double below = v == 0 ? std::min(least, -most) : least;
    findings.look({{"unbiased", "bias by entry", input_.name},
                   numbers,
                   {(below - v) / largest_, (most - v) / largest_},
                   slack(v, 1) / largest_,
                   false,
                   exact,
                   enumerated,
                   variance(1, largest_),
                   jumps / largest_});
  }
}

/// Zeros have no magnitude to be relative to: what is decoded is compared with the largest of it.
void BiasLooks::look_at_zeros(Findings& findings, bool enumerated) {
  const double reach = std::max(highest_, -lowest_);
  for (const Statistic& entry : entries_) {
    if (reach == 0) break;
    Statistic numbers = entry;
    numbers.mean /= reach;
    numbers.squares /= reach * reach;
    numbers.lowest /= reach;
    numbers.highest /= reach;
    findings.look({{"unbiased", "bias by entry", input_.name},
                   numbers,
                   {-1, 1},
                   claims_.bias_bound,
                   false,
                   false,
                   enumerated,
                   std::nullopt,
                   jump() / reach});
  }
}

void BiasLooks::report(const Findings& findings, InputReport& row,
                       std::vector<MagnitudeClass>& classes) const {
  if (energy_ == 0 || looked_.empty()) return;
  row.bias = directions_[0].numbers.mean;
  row.band = findings.judged(looked_[0]).band;
  row.missed = 2 * row.band;
  std::vector<MagnitudeClass> found;
  for (std::size_t k = 0; k < directions_.size(); ++k) {
    const Direction& d = directions_[k];
    if (d.what != "bias by magnitude") continue;
    found.push_back(
        {input_.name, d.octave, d.entries, d.numbers.mean, findings.judged(looked_[k]).band});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.octave < b.octave; });
  classes.insert(classes.end(), found.begin(), found.end());
}

}  // namespace atomo::verify
