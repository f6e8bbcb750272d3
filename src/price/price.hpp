// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The price: one number `a` for all layers of a message, the rms amplitude of an atom that is only
/// just certain to be kept. What one bit must save in variance follows from it, so every atom
/// chooses its own bits (FORMAT.md).
///
/// The price is a float whose low 16 bits are zero, so it has a 16-bit code; codes are ordered as
/// prices are. From a budget it is the smallest price whose expected bits fit, found by bisection
/// over codes, but never one above the largest at which a message is worth sending: its expected
/// kept atoms count at least 16 entries, a shorter atom counting as 16. Amplitudes enter as integer
/// bins of 1/128 octave with integer weights, costs as integers in 1/256 bit: the result does not
/// depend on the order of layers or atoms, nor on threads or devices.

#include <array>
#include <cstdint>
#include <span>

#include "core/namespaces.hpp"
#include "math/selection.hpp"

namespace atomo::price {

/// Atoms of about one amplitude. `weight` is what the cost of content is proportional to: entries,
/// an odd length rounded up to even.
struct PriceBin {
  std::uint64_t weight = 0;  ///< of all its atoms together
  std::uint64_t count = 0;   ///< atoms
  std::uint32_t key = 0;     ///< upper 16 bits of float(rms), at least 1
};

/// The cost of an atom in 1/256 bit.
struct PriceCosts {
  static constexpr int kClasses = 32;  ///< uncertain, then 31 finer and finer ones
  static constexpr int kParts = 8;     ///< of a class
  /// A unit of weight, by class and by where r stands in the eight equal parts of its class; class
  /// 0 is uncertain.
  std::array<std::array<std::uint32_t, kParts>, kClasses> unit{};
  std::uint32_t uncertain = 0;  ///< a kept uncertain atom, beside its content
  std::uint32_t certain = 0;    ///< a certain atom, beside its content
  /// Entries that a kept atom counts for where a message has to be worth sending: those of the
  /// layer's first atom, at least 16.
  std::uint32_t entries = 16;

  // Variance, in units of what 1/256 bit must save, a unit of weight.
  std::array<std::array<std::uint32_t, kParts>, kClasses> noise{};  ///< of certain atoms, as `unit`
  std::uint32_t uncertain_noise = 0;  ///< of an atom with ratio r below 1: r times this ...
  std::uint32_t signal = 0;           ///< ... less r^2 times this
  /// Without draws atoms below `kNearestClass` are lost: r^2 times `signal` in class 0, `noise` in
  /// class 1.
  Selection selection = Selection::drawn;
};
/// The costs of atoms that are kept in this way, from those of drawn ones.
[[nodiscard]] PriceCosts costs_of(Selection selection, PriceCosts drawn) noexcept;

/// One family of atoms of one layer.
struct PriceLayer {
  std::span<const PriceBin> bins;     ///< in ascending order of key, each key once
  const PriceCosts* costs = nullptr;  ///< not null when there are bins
  std::uint64_t atoms = 0;            ///< zero atoms too: they cost a mark
  double max_rms = 0;                 ///< of the largest atom, exactly
};

/// The expected size of layers at a price, in integers that add up over layers.
struct Expected {
  std::uint64_t bits_256 = 0;  ///< of their bodies, in 1/256 bit; at most 2^64 - 1
  /// Entries that the kept atoms count for, in 2^-32; of each layer at most `kWorthSending`.
  std::uint64_t worth = 0;
};
/// The least `worth` of a message worth sending: 16 entries, in 2^-32.
inline constexpr std::uint64_t kWorthSending = std::uint64_t{16} << 32;

/// A way to send a layer at a price. Of two ways the better one has less `loss_256`: expected bits,
/// and what the expected variance is worth in bits at that price. In 1/256 bit, at most 2^64 - 1.
struct Weighed {
  Expected expected;
  std::uint64_t loss_256 = 0;
};

/// The expected size of one family of atoms at the price `a`.
[[nodiscard]] Expected expected(const PriceLayer& layer, float a) noexcept;
/// The same with its loss.
[[nodiscard]] Weighed weigh(const PriceLayer& layer, float a) noexcept;

}  // namespace atomo::price
