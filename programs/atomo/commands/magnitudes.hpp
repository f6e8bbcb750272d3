// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a codec does to large and small entries apart, and how the entries of each layer are spread.

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tensors/tensor_io.hpp"

namespace atomo::cli {

/// Entries from 2^k to 2^(k + 1) times the root mean square of their layer are of octave k; those below
/// the lowest octave, but not zero, and those above the highest one count there.
inline constexpr int kLowestOctave = -10, kHighestOctave = 6;

struct MagnitudeClass {
  std::uint64_t entries = 0;
  double energy = 0;   ///< sum of g^2
  double squared = 0;  ///< sum of (decode - g)^2; a mean over draws

  MagnitudeClass& operator+=(const MagnitudeClass& other) noexcept;
};

struct Extremes {
  double largest = -std::numeric_limits<double>::infinity();
  double smallest = std::numeric_limits<double>::infinity();  ///< the most negative
  void add(double value) noexcept;
};

/// Over the layers of one model or of several. Layers with a NaN or an infinity are left out.
struct Magnitudes {
  MagnitudeClass zeros;
  std::array<MagnitudeClass, kHighestOctave - kLowestOctave + 1> octaves;
  Extremes input, decoded;

  /// Counts a model, f32, and one draw of it; `part`: 1 over the draws.
  void add_input(const std::vector<Tensor>& input);
  void add_draw(const std::vector<Tensor>& input, const std::vector<Tensor>& decoded, double part);
  Magnitudes& operator+=(const Magnitudes& other) noexcept;
  /// Below the root mean square, zeros too, or from there on.
  [[nodiscard]] MagnitudeClass small() const noexcept;
  [[nodiscard]] MagnitudeClass large() const noexcept;
};

/// Entries of a layer in units of its root mean square, in bins of 1/8 from -4 to 4; the first and the
/// last bin hold what lies beyond.
struct LayerHistogram {
  static constexpr int kBinsAUnit = 8, kUnits = 4, kBins = 2 * kUnits * kBinsAUnit + 2;
  std::string layer;
  std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(kBins);
  Extremes extremes;  ///< of the entries, not in units

  /// A capture of the layer, f32; each in its own units.
  void add(const Tensor& tensor);
};

/// Adds a model to the histograms of its layers, or begins them. \throws InputError when `label`'s
/// layers are others than before.
void add_histograms(std::vector<LayerHistogram>& histograms, const std::vector<Tensor>& tensors,
                    const std::string& label);

/// The captures in a folder of `atomo-train --dump-gradients`, in the order of their steps: the
/// workers' own gradients, or the means where there are no others. \throws InputError when there are
/// none.
[[nodiscard]] std::vector<std::string> captures_in(const std::string& folder);

}  // namespace atomo::cli
