// SPDX-License-Identifier: Apache-2.0
/// \file
/// The class of an entry follows from the exponent of its ratio to the root mean square of its layer,
/// which is computed in double precision, anew for each model.
#include "commands/magnitudes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <span>
#include <string_view>
#include <tuple>

#include "terminal/failure.hpp"

namespace atomo::cli {
namespace {

std::span<const float> floats_of(const Tensor& tensor) {
  return {reinterpret_cast<const float*>(tensor.data.get()), tensor.shape.elements()};
}

/// Not finite where an entry is not; 0 for no entries.
double root_mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) {
    sum += static_cast<double>(v) * static_cast<double>(v);
  }
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

MagnitudeClass& class_of(Magnitudes& magnitudes, double value, double unit) {
  if (value == 0) {
    return magnitudes.zeros;
  }
  const int octave = std::ilogb(std::abs(value) / unit);
  return magnitudes.octaves[static_cast<std::size_t>(
      std::clamp(octave, kLowestOctave, kHighestOctave) - kLowestOctave)];
}

constexpr std::size_t kFirstLarge = static_cast<std::size_t>(-kLowestOctave);

/// "step12-worker3.safetensors" is of step 12; names of another kind come last.
std::uint64_t step_of(std::string_view name) {
  constexpr std::string_view kStep = "step";
  std::uint64_t step = ~std::uint64_t{0};
  if (name.starts_with(kStep)) {
    std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step);
  }
  return step;
}

}  // namespace

MagnitudeClass& MagnitudeClass::operator+=(const MagnitudeClass& other) noexcept {
  entries += other.entries;
  energy += other.energy;
  squared += other.squared;
  return *this;
}

void Extremes::add(double value) noexcept {
  largest = std::max(largest, value);
  smallest = std::min(smallest, value);
}

void Magnitudes::add_input(const std::vector<Tensor>& model) {
  for (const Tensor& tensor : model) {
    const auto g = floats_of(tensor);
    const double unit = root_mean_square(g);
    if (!std::isfinite(unit)) {
      continue;
    }
    for (const float v : g) {
      const auto x = static_cast<double>(v);
      class_of(*this, x, unit) += {1, x * x, 0};
      input.add(x);
    }
  }
}

void Magnitudes::add_draw(const std::vector<Tensor>& model, const std::vector<Tensor>& drawn,
                          double part) {
  for (std::size_t t = 0; t < model.size(); ++t) {
    const auto g = floats_of(model[t]), d = floats_of(drawn[t]);
    const double unit = root_mean_square(g);
    if (!std::isfinite(unit)) {
      continue;
    }
    for (std::size_t i = 0; i < g.size(); ++i) {
      const auto x = static_cast<double>(g[i]), y = static_cast<double>(d[i]);
      class_of(*this, x, unit).squared += part * (y - x) * (y - x);
      decoded.add(y);
    }
  }
}

Magnitudes& Magnitudes::operator+=(const Magnitudes& other) noexcept {
  zeros += other.zeros;
  for (std::size_t k = 0; k < octaves.size(); ++k) {
    octaves[k] += other.octaves[k];
  }
  for (const auto& [mine, its] : {std::pair{&input, &other.input}, {&decoded, &other.decoded}}) {
    mine->add(its->largest);
    mine->add(its->smallest);
  }
  return *this;
}

MagnitudeClass Magnitudes::small() const noexcept {
  MagnitudeClass sum = zeros;
  for (std::size_t k = 0; k < kFirstLarge; ++k) {
    sum += octaves[k];
  }
  return sum;
}

MagnitudeClass Magnitudes::large() const noexcept {
  MagnitudeClass sum;
  for (std::size_t k = kFirstLarge; k < octaves.size(); ++k) {
    sum += octaves[k];
  }
  return sum;
}

void LayerHistogram::add(const Tensor& tensor) {
  const auto values = floats_of(tensor);
  const double unit = root_mean_square(values);
  if (!std::isfinite(unit)) {
    return;
  }
  for (const float v : values) {
    extremes.add(static_cast<double>(v));
    const double place = unit == 0 ? 0 : static_cast<double>(v) / unit;
    const double within =
        std::clamp(place, -1.0 - kUnits, 1.0 + kUnits);  // a bin beyond either end
    const int bin = static_cast<int>(std::floor(within * kBinsAUnit)) + kUnits * kBinsAUnit + 1;
    ++counts[static_cast<std::size_t>(std::clamp(bin, 0, kBins - 1))];
  }
}

void add_histograms(std::vector<LayerHistogram>& histograms, const std::vector<Tensor>& tensors,
                    const std::string& label) {
  const bool first = histograms.empty();
  for (std::size_t t = 0; first && t < tensors.size(); ++t) {
    histograms.emplace_back();
    histograms.back().layer = tensors[t].name;
  }
  const auto fits = [](const LayerHistogram& h, const Tensor& t) { return h.layer == t.name; };
  if (!std::ranges::equal(histograms, tensors, fits)) {
    throw InputError(
        fmt::format("{}: its tensors are others than those of the files before it", label));
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    histograms[t].add(to_f32(tensors[t]));
  }
}

std::vector<std::string> captures_in(const std::string& folder) {
  namespace fs = std::filesystem;
  constexpr std::string_view kMean = "-mean.safetensors";
  std::vector<std::tuple<std::uint64_t, std::string>> own, means;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) {
      (name.ends_with(kMean) ? means : own).emplace_back(step_of(name), entry.path().string());
    }
  }
  auto& chosen = own.empty() ? means : own;
  if (chosen.empty()) {
    throw InputError(
        fmt::format("{}: is a directory without .safetensors files, as atomo-train "
                    "--dump-gradients writes them",
                    folder));
  }
  std::ranges::sort(chosen);
  std::vector<std::string> paths;
  for (auto& [step, path] : chosen) {
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace atomo::cli
