// SPDX-License-Identifier: Apache-2.0
/// \file
/// The means and sums of squares are computed in f64 and kept one behind the other in one array, so
/// that a `Compressor` of small layers encodes them as they stand.

#include "learning/second_moment.hpp"

#include <algorithm>
#include <atomo/own_codec.hpp>
#include <string>

#include "common/workspace.hpp"

namespace train {
namespace {

constexpr std::size_t kLeastSide = 4;

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

SquaresExchange::SquaresExchange(std::span<const atomo::LayerSpec> layers, std::size_t workers)
    : workers_(workers), layers_(factored_layers(layers)) {
  std::vector<atomo::LayerSpec> parts;
  const auto add_part = [&](std::string name, std::size_t size) {
    parts.push_back({std::move(name), atomo::Shape{static_cast<std::int64_t>(size)}});
    shapes_.push_back(parts.back().shape);
  };
  std::size_t at = 0;
  for (const FactoredLayer& layer : layers_) {
    begin_.push_back(at);
    add_part("rows " + std::to_string(layer.layer), layer.rows);
    add_part("columns " + std::to_string(layer.layer), layer.columns);
    at += layer.rows + layer.columns;
  }
  sums_at_ = at;
  add_part("sums", 2 * layers_.size());
  own_.resize(at + 2 * layers_.size());
  mean_.resize(own_.size());
  compressor_ = std::make_unique<atomo::Compressor>(
      std::move(parts), atomo::Policy::parse("sums = identity\n* = natural"));
  message_.resize(compressor_->max_encoded_bytes());
  workspace_.resize(atomo::programs::workspace_bytes(*compressor_));
}

void SquaresExchange::add(std::size_t number, std::span<const float> gradient, double scale) {
  const auto at = std::ranges::lower_bound(layers_, number, {}, &FactoredLayer::layer);
  if (at == layers_.end() || at->layer != number) return;
  const auto i = static_cast<std::size_t>(at - layers_.begin());
  const FactoredLayer& layer = *at;
  std::vector<double> columns(layer.columns);
  double all = 0;
  for (std::size_t r = 0; r < layer.rows; ++r) {
    double row = 0;
    for (std::size_t c = 0; c < layer.columns; ++c) {
      const double g = gradient[r * layer.columns + c] / scale, square = g * g;
      row += square;
      columns[c] += square;
    }
    of_rows(own_, i)[r] = static_cast<float>(row / static_cast<double>(layer.columns));
    all += row;
  }
  for (std::size_t c = 0; c < layer.columns; ++c)
    of_columns(own_, i)[c] = static_cast<float>(columns[c] / static_cast<double>(layer.rows));
  own_[sums_at_ + 2 * i] = static_cast<float>(all);
}

atomo::ConstBytes SquaresExchange::encode(const atomo::Key& key, std::span<const float> decoded,
                                          double scale) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const double sum = sum_of_squares(decoded.subspan(layers_[i].offset, layers_[i].elements()));
    own_[sums_at_ + 2 * i + 1] = static_cast<float>(sum / (scale * scale));
  }
  std::vector<atomo::ConstTensorView> views;
  std::size_t at = 0;
  for (const atomo::Shape& shape : shapes_) {
    views.push_back({own_.data() + at, atomo::DType::f32, shape});
    at += shape.elements();
  }
  std::uint64_t bytes = 0;
  const atomo::Status status = compressor_->encode(
      views, key, {message_.data(), message_.size(), &bytes}, {.workspace = workspace_});
  if (atomo::failed(status)) throw atomo::Error(atomo::explain(status));
  return message_;
}

std::vector<atomo::Status> SquaresExchange::decode(atomo::ConstBytes messages) {
  std::ranges::fill(mean_, 0.0F);
  std::vector<atomo::TensorView> views;
  std::size_t at = 0;
  for (const atomo::Shape& shape : shapes_) {
    views.push_back({mean_.data() + at, atomo::DType::f32, shape});
    at += shape.elements();
  }
  std::vector<atomo::ConstBytes> of_workers;
  for (std::size_t k = 0; k < workers_; ++k)
    of_workers.push_back(messages.subspan(k * message_.size(), message_.size()));
  std::vector<atomo::Status> statuses(workers_, atomo::Status::wrong_stage);
  const atomo::Status status =
      compressor_->decode_add_all(of_workers, 1.0F / static_cast<float>(workers_), views,
                                  {.workspace = workspace_, .statuses = statuses.data()});
  std::ranges::replace(statuses, atomo::Status::wrong_stage, status);
  return statuses;
}

LayerSquares SquaresExchange::squares(std::size_t i, std::span<const float> average,
                                      double scale) const {
  const FactoredLayer& layer = layers_[i];
  const std::span<const float> all(mean_);
  const double w = static_cast<double>(workers_);
  const double of_one = all[sums_at_ + 2 * i], of_decoded = all[sums_at_ + 2 * i + 1];
  const double of_mean =
      sum_of_squares(average.subspan(layer.offset, layer.elements())) / (scale * scale);
  // |sum c|^2 - sum |c|^2 = W^2 |average|^2 - W (mean of |c|^2).
  const double of_average = of_one / w + of_mean - of_decoded / w;
  return {all.subspan(begin_[i], layer.rows), all.subspan(begin_[i] + layer.rows, layer.columns),
          of_one, of_average, of_mean};
}

}  // namespace train
