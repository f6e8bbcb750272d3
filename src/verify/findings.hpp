// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Looks at claims, collected from all tensors before any is judged: how sure each must be follows from
/// how many there are.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "atomo/verify.hpp"
#include "verify/bounds.hpp"

namespace atomo::verify {

/// What a look is at.
struct Place {
  std::string claim, what, input;
};

/// A mean that is allowed to be at most `allowed` from 0, or below `allowed`.
struct Look {
  Place place;
  Statistic numbers;
  Span possible;  ///< where every draw is
  double allowed = 0;
  bool upper = false;              ///< only more than `allowed` is wrong
  bool exact = false;              ///< `possible` is claimed, or follows from what is looked at
  bool enumerated = false;         ///< the mean is the expectation
  std::optional<double> variance;  ///< a bound of a draw's, where one is claimed
  /// Where `possible` is not exact: what a jump of one entry that comes at a rate of r a draw, and was not
  /// seen, adds to the mean is at most unseen * r^power.
  double unseen = 0;
  int power = 1;
  double draws = 0;  ///< of tensors behind the numbers; 0: one a number
};

/// The half width of the interval of a look, and how far outside of what is allowed it lies.
struct Judged {
  double band = 0;
  bool holds = true;
  const char* bound = "";
};

class Findings {
 public:
  /// A mean, judged later. Returns its number.
  std::size_t look(Look look);
  /// What is certain at once.
  void compared(Place place, bool holds, double found, double allowed, std::string note = {});

  [[nodiscard]] std::uint64_t looks() const noexcept { return looks_.size(); }
  /// After all looks: each gets an equal share of the error.
  void judge(double family_error);
  [[nodiscard]] const Judged& judged(std::size_t look) const { return judged_[look]; }
  /// One a claim, kind and tensor.
  [[nodiscard]] std::vector<Check> checks() const;

 private:
  std::vector<Look> looks_;
  std::vector<Judged> judged_;
  std::vector<Check> compared_;
};

}  // namespace atomo::verify
