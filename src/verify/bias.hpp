// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Biases of one tensor: along it, of its sum, by magnitude, by place and by entry. Every draw gives one
/// number a direction, so it does not matter how the errors of entries go together.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "verify/findings.hpp"

namespace atomo::verify {

/// A sum of errors over some entries, each towards its own sign and with its own weight.
struct Direction {
  std::string what;
  bool outward = true;     ///< towards each entry's sign; otherwise towards +
  bool by_energy = false;  ///< weights are the magnitudes; otherwise 1
  std::uint64_t entries = 0;
  double weight = 0;    ///< sum of the weights
  double heaviest = 0;  ///< of the weights
  double scale = 0;     ///< what the sum is relative to
  double slack =
      0;  ///< what roundings may add, before `scale`, a unit of the bias bound and the largest
  double energy = 0;  ///< squares of the weights
  int octave = 0;     ///< of a class of magnitude
  double sum = 0;     ///< of the draw under way
  Statistic numbers;
};

class BiasLooks {
 public:
  BiasLooks(const Input& input, const Claims& claims);

  /// A decoded tensor.
  void add(std::span<const float> y);
  /// All looks. `enumerated`: every outcome was added once.
  void look(Findings& findings, bool enumerated);
  /// After they were judged: the tensor's own row, and its classes.
  void report(const Findings& findings, InputReport& row,
              std::vector<MagnitudeClass>& classes) const;

  [[nodiscard]] double energy() const noexcept { return energy_; }
  [[nodiscard]] double largest() const noexcept { return largest_; }
  /// The largest magnitude that was decoded.
  [[nodiscard]] double decoded() const noexcept { return std::max(highest_, -lowest_); }
  /// Twice the most that an entry was seen to move between draws: so far may any jump, though it was not seen.
  [[nodiscard]] double jump() const;
  /// What roundings may add to the squared bias of all entries, relative to the tensor's.
  [[nodiscard]] double squared_slack() const;

 private:
  void add_classes();
  void add_places();
  std::size_t add_direction(const char* what, bool outward, bool by_energy);
  void assign(std::size_t direction, std::size_t i);
  void look_at_zeros(Findings& findings, bool enumerated);
  [[nodiscard]] double slack(double magnitudes, double weights) const;
  [[nodiscard]] double reach() const;

  const Input& input_;
  const Claims& claims_;
  double energy_ = 0, magnitudes_ = 0, largest_ = 0, rms_ = 0;
  std::vector<Direction> directions_;
  std::vector<std::uint32_t> class_of_, place_of_;  ///< of each entry, its direction
  std::vector<float> lows_, highs_;                 ///< of each entry, decoded
  std::vector<Statistic> entries_;                  ///< of tensors that are not long
  std::vector<std::size_t> looked_;                 ///< a direction's look
  double lowest_ = 0,
         highest_ = 0;  ///< decoded towards the entry's sign, over all entries and draws
};

}  // namespace atomo::verify
