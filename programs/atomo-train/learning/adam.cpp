// SPDX-License-Identifier: Apache-2.0
/// \file
/// A layer's update is found in an array of its own, then the weights move along it, so that a bound on
/// updates and a length that is matched see the whole of it.
#include "learning/adam.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace train {
namespace {

constexpr float kEpsilon = 1e-8F;
constexpr double kLeastShare = 1.0 / 1024;
constexpr double kLeastRoot = 1.0 / 1024;  ///< of the root mean square of a matrix's

double root_mean_square(std::span<const float> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

/// The moments are m, then what the second moment needs: each entry's own, what was told, or both.
Adam::Adam(OptimiserSettings settings, std::span<const atomo::LayerSpec> layers, bool decoupled)
    : Optimiser(std::move(settings), 2, elements_of(layers)), decoupled_(decoupled) {
  largest_update_ = static_cast<float>((1 - settings_.beta1) / std::sqrt(1 - settings_.beta2));
  for (const auto& layer : layers) sizes_.push_back(layer.shape.elements());
  matrices_ = factored_layers(layers);
  if (settings_.second_moment != SecondMoment::own &&
      settings_.second_moment != SecondMoment::exact)
    factored_ = matrices_;
  if (settings_.second_moment == SecondMoment::scaled ||
      settings_.second_moment == SecondMoment::matched)
    moments_.emplace_back(moments_[0].size());
  const std::size_t most = sizes_.empty() ? 0 : *std::ranges::max_element(sizes_);
  update_.resize(most);
  other_.resize(most);
  rows_.resize(most);
  columns_.resize(most);
}

Adam::Told Adam::told(const FactoredLayer& layer) noexcept {
  const std::size_t sides = layer.rows + layer.columns;
  const auto all = std::span(moments_.back()).subspan(layer.offset, sides + 3);
  return {all.first(layer.rows), all.subspan(layer.rows, layer.columns), all[sides], all[sides + 1],
          all[sides + 2]};
}

void Adam::see_squares(std::size_t i, const LayerSquares& squares) {
  if (!std::isfinite(squares.of_one) || !std::isfinite(squares.of_average) ||
      !std::isfinite(squares.of_decoded))
    return;
  const auto kept = static_cast<float>(std::pow(settings_.beta2, settings_.squares_every));
  const auto mix = [kept](float& mean, double value) {
    mean = kept * mean + (1 - kept) * static_cast<float>(value);
  };
  const Told means = told(factored_[i]);
  for (std::size_t r = 0; r < means.rows.size(); ++r) mix(means.rows[r], squares.row_means[r]);
  for (std::size_t c = 0; c < means.columns.size(); ++c)
    mix(means.columns[c], squares.column_means[c]);
  mix(means.of_one, squares.of_one);
  mix(means.of_average, squares.of_average);
  mix(means.of_decoded, squares.of_decoded);
}

void Adam::see_exact(std::span<const float> average) {
  exact_.assign(average.begin(), average.end());
}

void Adam::step(std::span<float> weights, std::span<const float> gradient, double lr,
                std::uint32_t step) {
  std::size_t at = 0;
  auto factored = factored_.begin();
  for (std::size_t layer = 0; layer < sizes_.size(); at += sizes_[layer++]) {
    const std::span<float> w = weights.subspan(at, sizes_[layer]);
    const std::span<const float> g = gradient.subspan(at, w.size());
    const std::span<float> update = std::span(update_).first(w.size());
    const bool is_matrix = factored != factored_.end() && factored->layer == layer;
    if (!find_own_update(layer, at, g, update)) {
      mix_gradient(w, g, at, !is_matrix || settings_.second_moment != SecondMoment::factored);
      if (is_matrix) {
        find_matrix_update(*factored++, step, update);
      } else {
        find_update(at, step, 1, update);
      }
    }
    move(w, update, static_cast<float>(lr));
  }
}

void Adam::mix_gradient(std::span<const float> weights, std::span<const float> gradient,
                        std::size_t at, bool keeps_squares) {
  const float decay = decoupled_ ? 0 : static_cast<float>(settings_.weight_decay);
  const auto b1 = static_cast<float>(settings_.beta1), b2 = static_cast<float>(settings_.beta2);
  float* const m = moments_[0].data() + at;
  float* const s = keeps_squares ? moments_[1].data() + at : nullptr;
  const float* const squared = exact_.empty() ? gradient.data() : exact_.data() + at;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float g = gradient[i] + decay * weights[i];
    m[i] = b1 * m[i] + (1 - b1) * g;
    const float h = squared[i] + decay * weights[i];
    if (s != nullptr) s[i] = b2 * s[i] + (1 - b2) * h * h;
  }
}

void Adam::find_update(std::size_t at, std::uint32_t step, double share,
                       std::span<float> update) const {
  const auto first = static_cast<float>(1 - std::pow(settings_.beta1, step + 1.0));
  const auto second = static_cast<float>((1 - std::pow(settings_.beta2, step + 1.0)) / share);
  for (std::size_t i = 0; i < update.size(); ++i)
    update[i] = moments_[0][at + i] / first / (std::sqrt(moments_[1][at + i] / second) + kEpsilon);
  if (exact_.empty()) return;
  for (float& u : update) u = std::clamp(u, -largest_update_, largest_update_);
}

void Adam::find_factors(const FactoredLayer& layer, std::uint32_t step) {
  const Told means = told(layer);
  const double least = 0.5 / static_cast<double>(settings_.workers);
  const double ratio =
      means.of_one > 0 ? std::clamp<double>(means.of_average / means.of_one, least, 1.0) : 1;
  const double mean =
      std::accumulate(means.rows.begin(), means.rows.end(), 0.0) / static_cast<double>(layer.rows);
  const std::uint32_t seen = step / settings_.squares_every + 1;
  const double second =
      1 - std::pow(settings_.beta2, static_cast<double>(settings_.squares_every) * seen);
  const double common = mean > 0 ? ratio / (mean * second) : 0;
  for (std::size_t r = 0; r < layer.rows; ++r) rows_[r] = std::sqrt(means.rows[r]);
  for (std::size_t c = 0; c < layer.columns; ++c)
    columns_[c] = static_cast<float>(std::sqrt(common * static_cast<double>(means.columns[c])));
}

void Adam::find_factored_update(const FactoredLayer& layer, std::uint32_t step,
                                std::span<float> update) {
  find_factors(layer, step);
  const auto first = static_cast<float>(1 - std::pow(settings_.beta1, step + 1.0));
  const float* const m = moments_[0].data() + layer.offset;
  for (std::size_t r = 0; r < layer.rows; ++r) {
    for (std::size_t c = 0; c < layer.columns; ++c) {
      const std::size_t i = r * layer.columns + c;
      const float u = m[i] / first / (rows_[r] * columns_[c] + kEpsilon);
      update[i] = std::clamp(u, -largest_update_, largest_update_);
    }
  }
}

void Adam::find_own_factors(const FactoredLayer& layer, std::uint32_t step) {
  const double second = 1 - std::pow(settings_.beta2, step + 1.0);
  const float* const s = moments_[1].data() + layer.offset;
  std::vector<double> sums(layer.columns);
  double all = 0;
  for (std::size_t r = 0; r < layer.rows; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < layer.columns; ++c) {
      const double square = s[r * layer.columns + c];
      sum += square;
      sums[c] += square;
    }
    rows_[r] = static_cast<float>(std::sqrt(sum / static_cast<double>(layer.columns) / second));
    all += sum;
  }
  const double per_mean = all > 0 ? static_cast<double>(layer.columns) / all : 0;
  for (std::size_t c = 0; c < layer.columns; ++c)
    columns_[c] = static_cast<float>(std::sqrt(sums[c] * per_mean));
}

/// A matrix has units by row and by column, which leave a product of few factors one. Any other layer has one unit for
/// all of its entries, because its own second moment has the codec's noise in each.
void Adam::find_units(std::uint32_t step, std::span<float> units) {
  if (step == 0) {
    std::ranges::fill(units, 1.0F);
    return;
  }
  std::size_t at = 0;
  auto matrix = matrices_.begin();
  for (std::size_t layer = 0; layer < sizes_.size(); at += sizes_[layer++]) {
    const std::span<float> of_layer = units.subspan(at, sizes_[layer]);
    if (matrix != matrices_.end() && matrix->layer == layer) {
      const std::size_t rows = matrix->rows, columns = matrix->columns;
      factored_.empty() ? find_own_factors(*matrix, step - 1) : find_factors(*matrix, step - 1);
      ++matrix;
      const double typical = root_mean_square(std::span(rows_).first(rows)) *
                             root_mean_square(std::span(columns_).first(columns));
      const auto least = static_cast<float>(typical * kLeastRoot);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < columns; ++c)
          of_layer[r * columns + c] =
              least > 0 ? std::sqrt(std::max(rows_[r] * columns_[c], least)) : 1;
      }
    } else {
      const auto squares = std::span(moments_[1]).subspan(at, of_layer.size());
      const double second = 1 - std::pow(settings_.beta2, static_cast<double>(step));
      const double mean = std::accumulate(squares.begin(), squares.end(), 0.0) /
                          static_cast<double>(of_layer.size());
      const auto unit = static_cast<float>(std::sqrt(std::sqrt(mean / second)));
      std::ranges::fill(of_layer, unit > 0 ? unit : 1);
    }
  }
}

void Adam::find_matrix_update(const FactoredLayer& layer, std::uint32_t step,
                              std::span<float> update) {
  switch (settings_.second_moment) {
    case SecondMoment::own:
    case SecondMoment::exact:  // whose layers are none of the told ones
      return find_update(layer.offset, step, 1, update);
    case SecondMoment::factored:
      return find_factored_update(layer, step, update);
    case SecondMoment::scaled: {
      const Told means = told(layer);
      const double share = means.of_decoded > 0 ? means.of_average / means.of_decoded : 1;
      return find_update(layer.offset, step, std::clamp(share, kLeastShare, 1.0), update);
    }
    case SecondMoment::matched: {
      const auto factored = std::span(other_).first(update.size());
      find_factored_update(layer, step, factored);
      find_update(layer.offset, step, 1, update);
      const double own = root_mean_square(update);
      if (!(own > 0)) return;
      const auto longer = static_cast<float>(root_mean_square(factored) / own);
      for (float& u : update) u *= longer;
    }
  }
}

void Adam::move(std::span<float> weights, std::span<const float> update, float lr) const {
  const float decay = decoupled_ ? static_cast<float>(settings_.weight_decay) : 0;
  float bound = 1;
  if (settings_.max_update > 0) {
    const double rms = root_mean_square(update);
    if (rms > settings_.max_update) bound = static_cast<float>(settings_.max_update / rms);
  }
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] -= lr * (bound * update[i] + decay * weights[i]);
}

}  // namespace train
