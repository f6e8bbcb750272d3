// SPDX-License-Identifier: Apache-2.0
/// \file
/// Running means begin at 0 and are not corrected for it: the correction is the same number for all
/// entries of a matrix, and what is told is a ratio.

#include "learning/entry_squares.hpp"

#include <algorithm>
#include <atomo/own_codec.hpp>
#include <cmath>
#include <string>
#include <utility>

#include "common/workspace.hpp"

namespace train {
namespace {

/// Larger and smaller ratios are told as this logarithm: e^6 is 400, and the square root of it 20.
constexpr double kMostLogarithm = 6;

}  // namespace

EntrySquares::EntrySquares(std::vector<FactoredLayer> layers, EntrySquaresSettings settings)
    : layers_(std::move(layers)), settings_(settings) {
  std::size_t at = 0;
  for (const FactoredLayer& layer : layers_) {
    begin_.push_back(at);
    at += layer.elements();
  }
  begin_.push_back(at);
  squares_.resize(at);
  const std::size_t messages = settings_.parts * settings_.workers;
  chunk_ = (at + messages - 1) / messages;
  values_.resize(chunk_);
  compressor_ = std::make_unique<atomo::Compressor>(
      std::vector<atomo::LayerSpec>{{"entries", atomo::Shape{static_cast<std::int64_t>(chunk_)}}},
      atomo::Policy::parse("* = atomo:bits=" + std::to_string(settings_.bits) +
                           ",atoms=blocks,content=nearest"));
  message_.resize(compressor_->max_encoded_bytes());
  workspace_.resize(atomo::programs::workspace_bytes(*compressor_));
}

template <class Each>
void EntrySquares::for_each_layer_of(std::size_t message, std::size_t worker, Each each) const {
  const std::size_t part = message % settings_.parts * settings_.workers + worker;
  const std::size_t begin = std::min(part * chunk_, squares_.size());
  const std::size_t end = std::min(begin + chunk_, squares_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::size_t from = std::max(begin, begin_[i]), to = std::min(end, begin_[i + 1]);
    if (from < to) each(i, from - begin_[i], to - from, from - begin);
  }
}

void EntrySquares::add(std::size_t number, std::span<const float> gradient, double scale) {
  const auto layer = std::ranges::lower_bound(layers_, number, {}, &FactoredLayer::layer);
  if (layer == layers_.end() || layer->layer != number) return;
  float* const v = squares_.data() + begin_[static_cast<std::size_t>(layer - layers_.begin())];
  const auto kept = static_cast<float>(settings_.beta2), over = static_cast<float>(1 / scale);
  for (std::size_t e = 0; e < gradient.size(); ++e) {
    const float g = gradient[e] * over, square = g * g;
    if (std::isfinite(square)) v[e] = kept * v[e] + (1 - kept) * square;
  }
}

atomo::ConstBytes EntrySquares::encode(const atomo::Key& key, std::size_t message) {
  std::ranges::fill(values_, 0.0F);
  for_each_layer_of(message, settings_.worker,
                    [&](std::size_t i, std::size_t first, std::size_t count, std::size_t at) {
                      const FactoredLayer& layer = layers_[i];
                      const float* const v = squares_.data() + begin_[i];
                      std::vector<double> rows(layer.rows), columns(layer.columns);
                      double all = 0;
                      for (std::size_t r = 0; r < layer.rows; ++r) {
                        for (std::size_t c = 0; c < layer.columns; ++c) {
                          const double square = v[r * layer.columns + c];
                          rows[r] += square;
                          columns[c] += square;
                        }
                        all += rows[r];
                      }
                      for (std::size_t k = 0; k < count; ++k) {
                        const std::size_t e = first + k;
                        const double said = rows[e / layer.columns] * columns[e % layer.columns];
                        if (!(said > 0)) continue;
                        const double logarithm = std::log(v[e] * all / said);
                        values_[at + k] = static_cast<float>(
                            std::clamp(logarithm, -kMostLogarithm, kMostLogarithm));
                      }
                    });
  const atomo::ConstTensorView view{values_.data(), atomo::DType::f32,
                                    compressor_->layers()[0].shape};
  std::uint64_t bytes = 0;
  const atomo::Status status = compressor_->encode(
      {&view, 1}, key, {message_.data(), message_.size(), &bytes}, {.workspace = workspace_});
  if (atomo::failed(status)) throw atomo::Error(atomo::explain(status));
  return {message_.data(), static_cast<std::size_t>(bytes)};
}

atomo::Status EntrySquares::decode(atomo::ConstBytes bytes, std::size_t message, std::size_t worker,
                                   const See& see) {
  const atomo::TensorView view{values_.data(), atomo::DType::f32, compressor_->layers()[0].shape};
  const atomo::Status status = compressor_->decode(bytes, {&view, 1}, {.workspace = workspace_});
  if (atomo::failed(status)) return status;
  for_each_layer_of(
      message, worker, [&](std::size_t i, std::size_t first, std::size_t count, std::size_t at) {
        see(layers_[i].offset + first, std::span<const float>(values_).subspan(at, count));
      });
  return status;
}

}  // namespace train
