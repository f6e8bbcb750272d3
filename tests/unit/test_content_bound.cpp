// SPDX-License-Identifier: Apache-2.0
/// The most bits that content can take, against vectors that are made to be long.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "coding/duo_code.hpp"
#include "format/atom_body.hpp"
#include "format/content_bound.hpp"
#include "math/dither.hpp"

namespace atomo::detail {

using namespace model;
namespace {

/// Bits of a vector's pairs at random levels; `entries` in steps.
std::uint64_t bits_of(std::size_t step, unsigned escape, const std::vector<double>& entries,
                      std::mt19937_64& generator) {
  const DuoCoding coding = duo_coding(step, escape);
  std::vector<std::byte> buffer(64);
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < entries.size(); i += 2) {
    const auto level = static_cast<std::uint32_t>(generator() % 16);
    std::int32_t q[2];
    for (std::size_t k = 0; k < 2; ++k) {
      const EntryDraw draw{k == 0 ? level : level ^ kMateDither,
                           static_cast<std::uint32_t>(generator() & 0xFFFFu)};
      const double y = i + k < entries.size() ? entries[i + k] : 0;
      q[k] = quantise(static_cast<float>(y), 1.0f, draw);
    }
    BitWriter out(buffer.data(), buffer.size());
    put_duo(out, coding, duo_entry(coding, level, q[0], q[1]), q[0], q[1]);
    bits += out.position();
  }
  return bits;
}

/// `large` of the entries share a part of the energy, the rest have the rest of it.
std::vector<double> mixture(std::size_t n, double reach, std::size_t large, double part,
                            std::mt19937_64& generator) {
  const double energy = static_cast<double>(n) * reach * reach;
  std::vector<double> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double own = i < large ? energy * part / static_cast<double>(large)
                                 : energy * (1 - part) / static_cast<double>(n - large);
    x[i] = std::sqrt(own) * (generator() % 2 == 0 ? 1 : -1);
  }
  if (generator() % 2 == 0) std::shuffle(x.begin(), x.end(), generator);
  return x;
}

struct Longest {
  double of_bound = 0, of_pair = 0;  ///< parts of the bound, and of that of single pairs
  std::uint64_t bits = 0;
};

Longest longest_of_class(const AtomClass& c, std::size_t n, int tries) {
  std::mt19937_64 generator(n);
  const double reach = c.reach / (1 + 0x1p-10);
  const unsigned escape = escape_bits(n, c.reach);
  const auto bound = static_cast<double>(max_vector_bits(c.step, c.reach, n));
  Longest longest;
  for (int i = 0; i < tries; ++i) {
    const std::size_t large =
        1 + generator() % (i % 3 == 0 ? n - 1 : std::min<std::size_t>(n - 1, 20));
    const double part = i % 5 == 0 ? static_cast<double>(large) / static_cast<double>(n)
                                   : std::uniform_real_distribution<double>(0, 1)(generator);
    const auto bits = bits_of(c.step, escape, mixture(n, reach, large, part, generator), generator);
    longest.bits = std::max(longest.bits, bits);
  }
  longest.of_bound = static_cast<double>(longest.bits) / bound;
  longest.of_pair = bound / (static_cast<double>(duos_of(n)) * max_duo_bits(c.step, escape));
  return longest;
}

TEST(ContentBound, NoVectorExceedsIt) {
  double closest = 0;
  for (const std::size_t n : {2u, 17u, 32u, 100u, 256u, 1025u, 4096u}) {
    for (const AtomClass& c : kAtomClasses) {
      const Longest longest = longest_of_class(c, n, n > 300 ? 60 : 300);
      ASSERT_LE(longest.of_bound, 1) << "class " << &c - kAtomClasses << ", " << n << " entries";
      ASSERT_LE(longest.of_pair, 1);
      closest = std::max(closest, longest.of_bound);
    }
  }
  EXPECT_GT(closest, 0.75) << "vectors that are long, or the bound says nothing";
}

/// Uncertain atoms may hold many escapes of small integers; others have no energy for long ones.
TEST(ContentBound, IsFarBelowThatOfSinglePairs) {
  for (const std::size_t n : {100u, 256u, 1024u}) {
    EXPECT_LT(longest_of_class(kAtomClasses[0], n, 1).of_pair, 0.9) << n;
    for (std::size_t c = 1; c < 9; ++c)
      EXPECT_LT(longest_of_class(kAtomClasses[c], n, 1).of_pair, 0.6) << "class " << c;
  }
}

/// A bound that took every atom for an uncertain one would be exceeded.
TEST(ContentBound, GrowsWithTheClass) {
  const std::uint64_t uncertain = max_vector_bits(kAtomClasses[0].step, kAtomClasses[0].reach, 256);
  for (std::size_t c = 20; c < kAtomClassCount; ++c)
    EXPECT_GT(longest_of_class(kAtomClasses[c], 256, 50).bits, uncertain) << "class " << c;
}

}  // namespace
}  // namespace atomo::detail
