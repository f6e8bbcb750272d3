// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A check of what is done about a cap, over every outcome of a layer whose units come out longer
/// where their values come out larger. As in statistics_checks.hpp, the default is the library's
/// rule.

#include <array>
#include <cstdint>
#include <vector>

#include "format/thinning.hpp"
#include "statistics/statistics_checks.hpp"

namespace atomo::test {

using namespace model;

struct CapArithmetic {
  static constexpr bool kDrawsAgain = false;
  static double gain(const format::Thinning& t) { return static_cast<double>(t.gain()); }
  /// Whether the body fits its limit for the start that was drawn, and for every other.
  static bool suffices(bool /*of_this_start*/, bool of_every_start) { return of_every_start; }
};

/// Bits of what stays when `dropped` runs from `start` are left out.
inline int bits_left(const std::vector<int>& runs, std::size_t start, std::size_t dropped) {
  int sum = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const std::size_t behind = (r + runs.size() - start) % runs.size();
    sum += behind < dropped ? 0 : runs[r];
  }
  return sum;
}

/// Adds the outcomes of the start.
template <typename Arithmetic>
void add_thinned(Outcomes& outcomes, double chance, const std::vector<double>& values,
                 const std::vector<int>& bits, int limit) {
  const format::Runs runs = format::Runs::of(values.size());
  const std::size_t count = runs.count();
  std::vector<int> run_bits(count);
  for (std::size_t r = 0; r < count; ++r) {
    for (std::uint64_t u = runs.first_unit(r); u < runs.first_unit(r + 1); ++u)
      run_bits[r] += bits[u];
  }
  for (std::size_t start = 0; start < count; ++start) {
    std::size_t dropped = 1;
    const auto suffices = [&] {
      bool every = true;
      for (std::size_t s = 0; s < count; ++s)
        every = every && bits_left(run_bits, s, dropped) <= limit;
      return Arithmetic::suffices(bits_left(run_bits, start, dropped) <= limit, every);
    };
    while (!suffices()) ++dropped;
    const format::Thinning thinning{runs.log2, static_cast<std::uint32_t>(dropped),
                                    static_cast<std::uint32_t>(start)};
    std::vector<double> y(values.size());
    for (std::size_t r = 0; r < count; ++r) {
      if ((r + count - start) % count < dropped) continue;
      for (std::uint64_t u = runs.first_unit(r); u < runs.first_unit(r + 1); ++u)
        y[u] = values[u] * Arithmetic::gain(thinning);
    }
    outcomes.add(chance / static_cast<double>(count), y);
  }
}

/// E = x whatever the sizes, whenever the cap binds.
template <typename Arithmetic = CapArithmetic>
std::string check_cap() {
  for (const std::size_t units : {4, 5, 7, 8}) {
    for (const int limit : {12, 16, 22, 30}) {
      std::vector<double> truth(units);
      for (std::size_t u = 0; u < units; ++u) truth[u] = static_cast<double>(u) - 2.5;
      Outcomes outcomes(truth);
      const std::uint32_t draws = 1u << units;
      double bound = 0;
      for (std::uint32_t draw = 0; draw < draws; ++draw) {
        std::vector<double> values(units);
        std::vector<int> bits(units);
        int sum = 0;
        for (std::size_t u = 0; u < units; ++u) {
          const bool large = (draw >> u & 1u) != 0;
          values[u] = truth[u] + (large ? 1 : -1);
          bits[u] = static_cast<int>(1 + u % 3) + (large ? 4 : 0);
          sum += bits[u];
        }
        if (sum <= limit) {
          outcomes.add(1.0 / draws, values);
        } else {
          bound += 1.0 / draws;
          if (!Arithmetic::kDrawsAgain)
            add_thinned<Arithmetic>(outcomes, 1.0 / draws, values, bits, limit);
        }
      }
      if (bound == 0 || bound == 1) continue;
      const double again = Arithmetic::kDrawsAgain ? 1 / (1 - bound) : 1;
      for (std::size_t u = 0; u < units; ++u) {
        // What draws that are not drawn again add up to, over their chance. Gains are f32.
        const double bias = outcomes.bias(u) * again;
        if (std::fabs(bias) > 1e-6)
          return complaint(units, " units, limit of ", limit, " bits, which ", bound,
                           " of the draws break: bias ", bias, " of unit ", u);
      }
    }
  }
  return {};
}

}  // namespace atomo::test
