// SPDX-License-Identifier: Apache-2.0
/// \file
/// Viterbi's search. A step first halves the scores of states, once for each bit that leaves: of two states that differ in
/// their lowest bit the better one goes on. Then every state that the new bits can make takes what its row of the table adds.
#include "catalogue/viterbi.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "catalogue/body.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "catalogue/viterbi.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef ATOMO_CATALOGUE_VITERBI_ONCE
#define ATOMO_CATALOGUE_VITERBI_ONCE
namespace atomo::catalogue {
namespace {

using Choices = std::uint16_t;               ///< which of two states goes on, a bit each
constexpr std::size_t kChoices = 16;         ///< of a word
constexpr std::size_t kMostEntries = 64;     ///< of a step
constexpr std::uint64_t kSeed = 0x61746F6D;  ///< of the table

/// One step.
struct Step {
  const float* entries;
  std::size_t count;
  const float* columns;  ///< `count` and more of them, `half` floats each
  const float* costs;    ///< half of the squared norm of each of the lower states' rows, times a
  std::size_t half;
};

/// The entries of step t of `steps`: [first_of(t), first_of(t + 1)).
std::size_t first_of(std::size_t t, std::size_t steps, std::size_t entries) noexcept {
  return static_cast<std::size_t>(std::uint64_t{t} * entries / steps);
}

/// Entry i of the table: the sum of 8 uniform bytes less its mean, over its standard deviation. That is near normal, and the
/// same everywhere.
float entry_of_table(std::uint64_t i) noexcept {
  constexpr std::uint64_t kBytes = 0x00FF00FF00FF00FF, kSum = 0x0001000100010001;
  const std::uint64_t word = mixed(kSeed, i);
  const std::uint64_t pairs = (word & kBytes) + (word >> 8 & kBytes);
  return static_cast<float>(static_cast<int>(pairs * kSum >> 48) - 1020) / 209.02f;
}

/// The place of a bit's choices among those of a step.
std::size_t first_choice(std::size_t states, unsigned bit) noexcept {
  return (states - (states >> bit)) / kChoices;
}

}  // namespace
}  // namespace atomo::catalogue
#endif

HWY_BEFORE_NAMESPACE();
namespace atomo::catalogue {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Scores = hn::CappedTag<float, kChoices>;

/// The larger of each two of 2n scores, the first where they are equal. `to` may be `from`.
HWY_INLINE void halve(const float* from, std::size_t n, float* to, Choices* choices) {
  const Scores d;
  for (std::size_t j = 0; j < n; j += kChoices) {
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < kChoices; k += hn::Lanes(d)) {
      hn::Vec<Scores> first, second;
      hn::LoadInterleaved2(d, from + 2 * (j + k), first, second);
      std::uint8_t bits[8] = {};
      hn::StoreMaskBits(d, hn::Gt(second, first), bits);
      word |= (bits[0] | std::uint32_t{bits[1]} << 8) << k;
      hn::StoreU(hn::Max(first, second), d, to + j + k);
    }
    choices[j / kChoices] = static_cast<Choices>(word);
  }
}

/// The scores of all states, those of `n` states before the new bits being `before`.
HWY_INLINE void add_rows(const Step& step, const float* HWY_RESTRICT before, std::size_t n,
                         float* HWY_RESTRICT scores) {
  const Scores d;
  for (std::size_t s = 0; s < step.half; s += hn::Lanes(d)) {
    auto along = hn::Zero(d);
    const float* column = step.columns + s;
    for (std::size_t i = 0; i < step.count; ++i, column += step.half)
      along = hn::Add(along, hn::Mul(hn::Set(d, step.entries[i]), hn::LoadU(d, column)));
    const auto base = hn::Sub(hn::LoadU(d, before + s % n), hn::LoadU(d, step.costs + s));
    hn::StoreU(hn::Add(base, along), d, scores + s);
    hn::StoreU(hn::Sub(base, along), d, scores + step.half + s);
  }
}

void advance(const Step& step, unsigned bits, float* scores, float* kept, Choices* choices) {
  const std::size_t states = 2 * step.half;
  for (unsigned bit = 0; bit < bits; ++bit)
    halve(bit == 0 ? scores : kept, states >> (bit + 1), kept, choices + first_choice(states, bit));
  add_rows(step, kept, states >> bits, scores);
}

}  // namespace HWY_NAMESPACE
}  // namespace atomo::catalogue
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atomo::catalogue {
HWY_EXPORT(advance);

Trellis::Trellis(std::size_t states, double bits, std::size_t longest)
    : state_bits_(static_cast<unsigned>(std::bit_width(states)) - 1),
      step_bits_(bits < 1 ? 1 : static_cast<unsigned>(bits)),
      bits_(bits),
      longest_(longest) {
  require(std::has_single_bit(states) && states >= kFewestStates && states <= kMostStates,
          "states= has to be a power of two from 256 to 4096");
}

std::vector<float> Trellis::table() const {
  std::size_t most = 1;
  for (std::size_t n = 1; n <= longest_; ++n) {
    const std::size_t steps = steps_of(n);
    most = std::max(most, (n + steps - 1) / steps);
  }
  std::vector<float> columns(most * half());
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = entry_of_table(i);
  return columns;
}

std::size_t Trellis::steps_of(std::size_t entries) const noexcept {
  if (bits_ >= 1) return entries;
  const double further = bits_ * static_cast<double>(entries) - state_bits_;
  const std::size_t steps = 1 + (further > 0 ? static_cast<std::size_t>(further) : 0);
  return std::clamp(steps, (entries + kMostEntries - 1) / kMostEntries, entries);
}

void Trellis::find(std::span<const float> v, float unit, std::span<Code> path) const {
  std::call_once(made_, [&] { columns_ = table(); });
  const std::size_t steps = path.size(), states = 2 * half();
  const std::size_t longest = (v.size() + steps - 1) / steps;
  // 1 - 4^-bits, below a bit a fraction that is near it.
  const double share = bits_ < 1 ? 1.386 * bits_ / (1 + 0.848 * bits_)
                                 : 1 - std::ldexp(1.0, -2 * static_cast<int>(step_bits_));
  const auto half_of_a = static_cast<float>(std::sqrt(share) / 2);
  std::vector<float> fewer(half()),
      more(half());  // costs of steps of the two lengths that there are
  for (std::size_t i = 0; i < longest; ++i) {
    if (i + 1 == longest) fewer = more;
    for (std::size_t s = 0; s < half(); ++s) {
      const float q = columns_[i * half() + s];
      more[s] += half_of_a * q * q;
    }
  }
  std::vector<float> entries(longest), scores(states), kept(states);
  const std::size_t of_step = first_choice(states, step_bits_);
  std::vector<Choices> choices(steps * of_step);
  for (std::size_t t = 0; t < steps; ++t) {
    const std::size_t first = first_of(t, steps, v.size());
    const std::size_t count = first_of(t + 1, steps, v.size()) - first;
    for (std::size_t i = 0; i < count; ++i) entries[i] = v[first + i] * unit;
    const Step step{entries.data(), count, columns_.data(),
                    count == longest ? more.data() : fewer.data(), half()};
    HWY_DYNAMIC_DISPATCH(advance)
    (step, step_bits_, scores.data(), kept.data(), choices.data() + t * of_step);
  }
  auto state = static_cast<std::size_t>(std::ranges::max_element(scores) - scores.begin());
  for (std::size_t t = steps; t-- > 1;) {
    path[t] = static_cast<Code>(state >> (state_bits_ - step_bits_));
    state &= (states >> step_bits_) - 1;
    for (unsigned bit = step_bits_; bit-- > 0;) {
      const Choices* const of_bit = &choices[t * of_step + first_choice(states, bit)];
      state = 2 * state + (of_bit[state / kChoices] >> state % kChoices & 1);
    }
  }
  path[0] = static_cast<Code>(state);
}

void Trellis::expand(std::span<const Code> path, std::span<float> q) const noexcept {
  std::size_t state = path[0];
  for (std::size_t t = 0; t < path.size(); ++t) {
    if (t > 0) state = state >> step_bits_ | std::size_t{path[t]} << (state_bits_ - step_bits_);
    const float sign = state < half() ? 1.0f : -1.0f;
    const std::size_t first = first_of(t, path.size(), q.size()),
                      end = first_of(t + 1, path.size(), q.size());
    std::uint64_t place = state % half();
    for (std::size_t i = first; i < end; ++i, place += half()) q[i] = sign * entry_of_table(place);
  }
}

}  // namespace atomo::catalogue
#endif
