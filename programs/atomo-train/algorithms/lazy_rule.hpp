// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// When a worker's message is worth sending: LAQ (Sun et al., NeurIPS 2019, section 2.2, condition 7).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace train {

/// A worker skips a round in which what its message changes is small beside the last changes of the
/// weights and the errors of rounding:
///
///   |decode(m)|^2 <= (xi / D) sum over the last D rounds of |w - w before|^2 / rate^2
///                    + 3 (|error now|^2 + |error at its last message|^2)
///
/// D is 10. It never skips its first round, nor more than 100 in a row. Both, and xi = 0.8, are those of the
/// authors' code (github.com/sunjunaimer/LAQ, LAQ.py: D, C and ck). That code gives the changes of its first
/// k < D rounds the weight xi / k, this xi / D from the first, as the condition of the paper (arXiv
/// 1909.07588) is printed. The paper adds gradients up where the trainer takes their mean, so the number of
/// workers is not in the rule.
class LazyRule {
 public:
  static constexpr std::size_t kChanges = 10;       ///< of the weights that are looked at, D
  static constexpr std::size_t kMostSkipped = 100;  ///< rounds in a row

  /// `xi` is the paper's sum of xi_d, all alike. `weights` are those before the first round.
  LazyRule(double xi, std::size_t weights);

  /// A round begins at these weights.
  void begin(std::span<const float> weights);
  /// Whether this round's message is sent: `change` and `error` are the squared norms of what it decodes
  /// to and of what it leaves out. `rate` is the round's learning rate, above 0.
  [[nodiscard]] bool sends(double rate, double change, double error);

  // What a checkpoint keeps.
  [[nodiscard]] std::vector<float>& before() noexcept { return before_; }
  [[nodiscard]] std::vector<float>& numbers() noexcept { return numbers_; }

 private:
  /// In `numbers_`: squared norms of changes, the latest first; then these.
  enum Place : std::size_t { kError = kChanges, kSkipped, kBegun, kPlaces };

  double xi_;
  std::vector<float> before_;   ///< weights of the round before
  std::vector<float> numbers_;  ///< f32, so that a checkpoint has them all
};

}  // namespace train
