// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The random numbers that tensors are made of: the same on every machine.

#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/philox.hpp"

namespace atomo::verify {

/// Uniform numbers below 1 of a seed and a name.
class Uniform {
 public:
  Uniform(std::uint64_t seed, std::string_view name) : seed_(seed) {
    for (const char c : name) name_ = (name_ ^ static_cast<unsigned char>(c)) * 16777619u;
  }

  double operator()() {
    const core::PhiloxWords words = core::philox4x32(
        {static_cast<std::uint32_t>(next_), 0, name_, 0}, static_cast<std::uint32_t>(seed_),
        static_cast<std::uint32_t>(seed_ >> 32));
    ++next_;
    return (words[0] >> 6) * 0x1p-26 + (words[1] >> 6) * 0x1p-52;
  }
  /// A sum of twelve: normal enough for a tensor, and of additions alone.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += (*this)();
    return sum;
  }

 private:
  std::uint64_t seed_, next_ = 0;
  std::uint32_t name_ = 2166136261u;
};

}  // namespace atomo::verify
