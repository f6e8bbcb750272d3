// SPDX-License-Identifier: Apache-2.0
/// \file
/// The means and sums of squares are computed in f64. Rows and columns of all layers stand one behind the
/// other in one array, so that one price holds for all of them.

#include "learning/second_moment.hpp"

#include <algorithm>
#include <atomo/own_codec.hpp>
#include <cmath>
#include <string>
#include <utility>

#include "common/workspace.hpp"

namespace train {
namespace {

constexpr std::size_t kLeastSide = 4;
constexpr double kLeastShare = 1e-4;  ///< of a row's mean in the mean of all, that is told
constexpr float kMostLogarithm = 20;  ///< that is believed, whatever a message says

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

}  // namespace

std::vector<FactoredLayer> factored_layers(std::span<const atomo::LayerSpec> layers) {
  std::vector<FactoredLayer> factored;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto dims = layers[i].shape.dims();
    const std::size_t elements = layers[i].shape.elements();
    const std::size_t rows = dims.empty() ? 1 : static_cast<std::size_t>(dims[0]);
    const std::size_t columns = rows == 0 ? 0 : elements / rows;
    if (std::min(rows, columns) >= kLeastSide) factored.push_back({i, offset, rows, columns});
    offset += elements;
  }
  return factored;
}

SquaresExchange::SquaresExchange(std::span<const atomo::LayerSpec> layers, std::size_t workers,
                                 double bits)
    : workers_(workers), layers_(factored_layers(layers)) {
  std::size_t at = 0;
  for (const FactoredLayer& layer : layers_) {
    begin_.push_back(at);
    at += layer.rows + layer.columns;
  }
  own_ = all_ = {std::vector<float>(at), std::vector<float>(2 * layers_.size())};
  logarithms_.resize(at);
  const auto size = [](const std::vector<float>& values) {
    return atomo::Shape{static_cast<std::int64_t>(values.size())};
  };
  compressor_ = std::make_unique<atomo::Compressor>(
      std::vector<atomo::LayerSpec>{{"logarithms", size(own_.means)}, {"sums", size(own_.sums)}},
      atomo::Policy::parse("sums = identity\n* = atomo:atoms=blocks,bits=" + std::to_string(bits)));
  message_.resize(compressor_->max_encoded_bytes());
  workspace_.resize(atomo::programs::workspace_bytes(*compressor_));
}

template <class Each>
void SquaresExchange::for_each_side(Each each) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const FactoredLayer& layer = layers_[i];
    each(i, begin_[i], layer.rows, layer.columns);
    each(i, begin_[i] + layer.rows, layer.columns, layer.rows);
  }
}

void SquaresExchange::add(std::size_t number, std::span<const float> gradient, double scale) {
  const auto at = std::ranges::lower_bound(layers_, number, {}, &FactoredLayer::layer);
  if (at == layers_.end() || at->layer != number) return;
  const auto i = static_cast<std::size_t>(at - layers_.begin());
  const FactoredLayer& layer = *at;
  float* const means = own_.means.data() + begin_[i];
  std::vector<double> columns(layer.columns);
  double all = 0;
  for (std::size_t r = 0; r < layer.rows; ++r) {
    double row = 0;
    for (std::size_t c = 0; c < layer.columns; ++c) {
      const double g = gradient[r * layer.columns + c] / scale, square = g * g;
      row += square;
      columns[c] += square;
    }
    means[r] = static_cast<float>(row / static_cast<double>(layer.columns));
    all += row;
  }
  for (std::size_t c = 0; c < layer.columns; ++c)
    means[layer.rows + c] = static_cast<float>(columns[c] / static_cast<double>(layer.rows));
  own_.sums[2 * i] = static_cast<float>(all);
}

atomo::ConstBytes SquaresExchange::encode(const atomo::Key& key, std::span<const float> decoded,
                                          double scale) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const double sum = sum_of_squares(decoded.subspan(layers_[i].offset, layers_[i].elements()));
    own_.sums[2 * i + 1] = static_cast<float>(sum / (scale * scale));
  }
  for_each_side([&](std::size_t i, std::size_t first, std::size_t count, std::size_t) {
    const double mean = own_.sums[2 * i] / static_cast<double>(layers_[i].elements());
    double sum = 0;
    for (std::size_t k = first; k < first + count; ++k) {
      const double share = mean > 0 && std::isfinite(mean) ? own_.means[k] / mean : 1;
      logarithms_[k] = static_cast<float>(std::log(std::max(share, kLeastShare)));
      sum += logarithms_[k];
    }
    for (std::size_t k = first; k < first + count; ++k)
      logarithms_[k] -= static_cast<float>(sum / static_cast<double>(count));
  });
  const auto layers = compressor_->layers();
  const atomo::ConstTensorView views[] = {{logarithms_.data(), atomo::DType::f32, layers[0].shape},
                                          {own_.sums.data(), atomo::DType::f32, layers[1].shape}};
  std::uint64_t bytes = 0;
  const atomo::Status status = compressor_->encode(
      views, key, {message_.data(), message_.size(), &bytes}, {.workspace = workspace_});
  if (atomo::failed(status)) throw atomo::Error(atomo::explain(status));
  return {message_.data(), static_cast<std::size_t>(bytes)};
}

void SquaresExchange::begin() {
  std::ranges::fill(all_.means, 0.0F);
  std::ranges::fill(all_.sums, 0.0F);
}

atomo::Status SquaresExchange::decode_add(atomo::ConstBytes message) {
  const auto layers = compressor_->layers();
  std::vector<float> sums(own_.sums.size());
  const atomo::TensorView views[] = {{logarithms_.data(), atomo::DType::f32, layers[0].shape},
                                     {sums.data(), atomo::DType::f32, layers[1].shape}};
  const atomo::Status status = compressor_->decode(message, views, {.workspace = workspace_});
  if (atomo::failed(status)) return status;
  const double share = 1 / static_cast<double>(workers_);
  for_each_side([&](std::size_t i, std::size_t first, std::size_t count, std::size_t entries) {
    double sum = 0;
    for (std::size_t k = first; k < first + count; ++k) {
      logarithms_[k] = std::clamp(logarithms_[k], -kMostLogarithm, kMostLogarithm);
      sum += std::exp(logarithms_[k]);
    }
    const double scale = share * sums[2 * i] / (sum * static_cast<double>(entries));
    for (std::size_t k = first; k < first + count; ++k)
      all_.means[k] += static_cast<float>(scale * std::exp(logarithms_[k]));
  });
  for (std::size_t k = 0; k < sums.size(); ++k) all_.sums[k] += static_cast<float>(share * sums[k]);
  return status;
}

LayerSquares SquaresExchange::squares(std::size_t i, std::span<const float> average, double scale,
                                      std::uint32_t steps) const {
  const FactoredLayer& layer = layers_[i];
  const auto means = std::span(all_.means).subspan(begin_[i], layer.rows + layer.columns);
  const double w = static_cast<double>(workers_);
  const double of_one = all_.sums[2 * i], of_decoded = all_.sums[2 * i + 1];
  const double of_mean =
      sum_of_squares(average.subspan(layer.offset, layer.elements())) / (scale * scale);
  // |sum c|^2 - sum |c|^2 = W^2 |average|^2 - W (mean of |c|^2).
  const double of_average = of_one / w + of_mean - of_decoded / w;
  return {means.first(layer.rows), means.subspan(layer.rows), of_one, of_average, of_mean, steps};
}

}  // namespace train
