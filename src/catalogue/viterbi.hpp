// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Vectors as paths through a trellis: Marcellin, Fischer, "Trellis Coded Quantization of Memoryless and Gauss-Markov Sources",
/// IEEE Transactions on Communications 38 (1990), with the shift register and the random table of "QTIP: Quantization with
/// Trellises and Incoherence Processing", NeurIPS 2024 (arXiv 2406.11235), section 3.
///
/// A state is L bits. A step shifts the state down by k bits and puts k new ones on top; it stands for the next few entries,
/// which are the state's row of a table of near normal numbers. So each entry depends on the L last bits of the path, not on k
/// alone, and the error comes near the least that any code of that length has. The nearest path is found by Viterbi's search.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace atomo::catalogue {

class Trellis {
 public:
  using Code = std::uint16_t;

  static constexpr std::size_t kFewestStates = 256, kMostStates = 4096;

  /// Paths of at most `bits` bits an entry, below 1 or 1 to 4, for vectors of at most `longest` entries. \throws Error unless
  /// `states` is a power of two from kFewestStates to kMostStates.
  Trellis(std::size_t states, double bits, std::size_t longest);

  /// The steps of a path for so many entries, 1 at least and at most one an entry. The first has `state_bits` bits, each other
  /// `step_bits`. Below a bit an entry those are at most the bits asked for, but where one step would have more than 64 entries
  /// or the first alone has more bits.
  [[nodiscard]] std::size_t steps_of(std::size_t entries) const noexcept;
  [[nodiscard]] unsigned state_bits() const noexcept { return state_bits_; }
  [[nodiscard]] unsigned step_bits() const noexcept { return step_bits_; }

  /// The path of least |unit v - a q|^2, q being what it stands for and a^2 the share of normal entries' energy that so many
  /// bits can hold. `path` has steps_of(v.size()) codes. Allocates `states` bits a step and more; the first call makes the table.
  void find(std::span<const float> v, float unit, std::span<Code> path) const;
  /// What a path stands for, of any codes of their bits. Without the table: the work is that of its entries.
  void expand(std::span<const Code> path, std::span<float> q) const noexcept;

 private:
  [[nodiscard]] std::size_t half() const noexcept { return std::size_t{1} << (state_bits_ - 1); }
  [[nodiscard]] std::vector<float> table() const;

  unsigned state_bits_, step_bits_;
  double bits_;
  std::size_t longest_;
  mutable std::once_flag made_;
  /// The k-th entry of each state of the lower half; those of the upper have the other sign.
  mutable std::vector<float> columns_;
};

}  // namespace atomo::catalogue
