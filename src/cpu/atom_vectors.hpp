// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The vectors that dithered atoms consist of, and how each is coded at a price. A row or a block is
/// one vector, a singular pair is two, u and then v. The loops of atoms_encode.cpp and
/// atoms_decode.cpp are written over either.

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/dither_kernels.hpp"
#include "format/pair_body.hpp"
#include "math/selection.hpp"

namespace atomo::cpu {

/// One vector of every atom of a layer.
struct VectorShape {
  std::uint64_t length = 0;  ///< entries of each but the last
  std::uint64_t last = 0;    ///< entries of the last atom's
  Purpose pre_round, dither;
};

/// The steps of every class for vectors of one length.
using ClassCodings = std::array<DuoCoding, kAtomClassCount>;

/// Rows and blocks at one price.
class SingleVectors {
 public:
  static constexpr std::size_t kCount = 1;  ///< of an atom

  /// Decoding multiplies the steps by `gain`.
  SingleVectors(const AtomLayout& layout, float price, bool centred, float gain = 1.0f) noexcept;

  [[nodiscard]] const AtomLayout& frame() const noexcept { return layout_; }
  [[nodiscard]] bool centred() const noexcept { return codings_[0].centred(); }
  [[nodiscard]] const VectorShape& shape(std::size_t) const noexcept { return shape_; }
  /// The last atom may be shorter: its escapes are.
  [[nodiscard]] const DuoCoding& coding(std::size_t, std::uint64_t atom,
                                        const AtomChoice& choice) const noexcept {
    return (atom + 1 == layout_.count ? last_codings_ : codings_)[choice.atom_class];
  }
  /// Decoding needs no probability.
  [[nodiscard]] VectorScale scale(std::size_t, const AtomChoice& choice) const noexcept;

 private:
  AtomLayout layout_;
  VectorShape shape_;
  ClassCodings codings_, last_codings_;
  float range_, price_, gain_;
};

/// Pairs at one price. Vector 0 is u, a unit vector sent as u sqrt m; vector 1 is v, which carries
/// the price and the range scale: sigma v 2^-exponent is sent as sigma v / sqrt m.
class PairVectors {
 public:
  static constexpr std::size_t kCount = 2;  ///< of an atom

  /// Decoding multiplies the steps of v by `gain`, and needs no exponent.
  PairVectors(const PairLayer& layer, float price, bool centred, float gain = 1.0f,
              int exponent = 0) noexcept;

  [[nodiscard]] const AtomLayout& frame() const noexcept { return frame_; }
  [[nodiscard]] bool centred() const noexcept { return codings_[0][0].centred(); }
  [[nodiscard]] const VectorShape& shape(std::size_t vector) const noexcept {
    return shapes_[vector];
  }
  [[nodiscard]] const DuoCoding& coding(std::size_t vector, std::uint64_t,
                                        const AtomChoice& choice) const noexcept {
    return codings_[vector][choice.atom_class];
  }
  /// Decoding needs no probability.
  [[nodiscard]] VectorScale scale(std::size_t vector, const AtomChoice& choice) const noexcept;

  /// What decoded products are multiplied by.
  [[nodiscard]] double unscale() const noexcept { return 1.0 / static_cast<double>(range_); }

 private:
  AtomLayout frame_;
  std::array<VectorShape, kCount> shapes_;
  std::array<ClassCodings, kCount> codings_;
  std::array<std::array<float, kAtomClassCount>, kCount> steps_;
  float range_;
  double root_, unit_;
};

}  // namespace atomo::cpu
