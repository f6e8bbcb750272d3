// SPDX-License-Identifier: Apache-2.0
/// \file
/// Each optimiser is a loop over flat arrays of weights, gradients and moments, with its update
/// rule written above its class. The table `kOptimisers` maps the names on the command line to
/// these classes. Weight decay joins the gradient in all of them except adamw, muon and signsgd.

#include "learning/optimiser.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "learning/newton_schulz.hpp"

namespace train {
namespace {

using Layers = std::span<const atomo::LayerSpec>;

std::size_t elements_of(Layers layers) {
  return std::accumulate(
      layers.begin(), layers.end(), std::size_t{0},
      [](std::size_t sum, const auto& layer) { return sum + layer.shape.elements(); });
}

/// v <- m v + (g + d w);  w <- w - lr v, or, as Nesterov has it, w - lr (m v + (g + d w))
class Sgd final : public Optimiser {
 public:
  Sgd(OptimiserSettings settings, Layers layers, bool nesterov)
      : Optimiser(std::move(settings), 1, elements_of(layers)), nesterov_(nesterov) {}

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t) override {
    const auto rate = static_cast<float>(lr);
    const auto momentum = static_cast<float>(settings_.momentum);
    const auto decay = static_cast<float>(settings_.weight_decay);
    auto& v = moments_[0];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float g = gradient[i] + decay * weights[i];
      v[i] = momentum * v[i] + g;
      weights[i] -= rate * (nesterov_ ? momentum * v[i] + g : v[i]);
    }
  }

 private:
  bool nesterov_;
};

/// Layer-wise trust (arXiv 1708.03888): v <- m v + lr t |w| / (|g| + d |w|) (g + d w);  w <- w - v.
/// A layer without weights or gradient, such as biases at their start, has no ratio: 1 instead.
class Lars final : public Optimiser {
 public:
  Lars(OptimiserSettings settings, Layers layers)
      : Optimiser(std::move(settings), 1, elements_of(layers)) {
    for (const auto& layer : layers) sizes_.push_back(layer.shape.elements());
  }

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t) override {
    const auto momentum = static_cast<float>(settings_.momentum);
    const auto decay = static_cast<float>(settings_.weight_decay);
    std::size_t at = 0;
    for (const std::size_t size : sizes_) {
      const auto rate =
          static_cast<float>(lr * ratio(weights.subspan(at, size), gradient.subspan(at, size)));
      for (std::size_t i = at; i < at + size; ++i) {
        auto& v = moments_[0][i];
        v = momentum * v + rate * (gradient[i] + decay * weights[i]);
        weights[i] -= v;
      }
      at += size;
    }
  }

 private:
  [[nodiscard]] double ratio(std::span<const float> weights,
                             std::span<const float> gradient) const {
    constexpr double kTrust = 0.001;
    const double w = norm(weights), g = norm(gradient);
    return w > 0 && g > 0 ? kTrust * w / (g + settings_.weight_decay * w) : 1;
  }
  static double norm(std::span<const float> values) {
    double squares = 0;
    for (const double value : values) squares += value * value;
    return std::sqrt(squares);
  }
  std::vector<std::size_t> sizes_;
};

/// m <- b1 m + (1 - b1) g;  s <- b2 s + (1 - b2) g^2;  w <- w - lr m^ / (sqrt(s^) + eps), ^
/// corrected for the zero start. The decay d w is added to g, or, decoupled, to what lr multiplies.
///
/// Where the second moment of matrices comes from squares that the workers tell (second_moment.hpp),
/// its array has for a matrix the running means of row means R and column means C, of the sum of one
/// worker's squares and of the average's: s^ of entry (i, j) is R_i C_j / mean(R) times the ratio of
/// the last two, which is kept between half of 1 / W, what independent gradients would give, and 1.
/// An entry whose gradient was 0 whenever squares were told would move without bound, so m^ / sqrt(s^)
/// is kept within what Adam's own moments allow: (1 - b1) / sqrt(1 - b2) (arXiv 1412.6980, section 2.1).
class Adam : public Optimiser {
 public:
  Adam(OptimiserSettings settings, Layers layers, bool decoupled)
      : Optimiser(std::move(settings), 2, elements_of(layers)), decoupled_(decoupled) {
    for (const auto& layer : layers) sizes_.push_back(layer.shape.elements());
    if (settings_.squares_every > 0) factored_ = factored_layers(layers);
    const std::size_t most = sizes_.empty() ? 0 : *std::ranges::max_element(sizes_);
    update_.resize(most);
    columns_.resize(most);
  }

  void see_squares(std::size_t i, const LayerSquares& squares) override {
    if (!std::isfinite(squares.of_one) || !std::isfinite(squares.of_average)) return;
    const auto kept = static_cast<float>(std::pow(kBeta2, settings_.squares_every));
    const std::span<float> all = factors(factored_[i]);
    const auto mix = [kept](float& mean, double value) {
      mean = kept * mean + (1 - kept) * static_cast<float>(value);
    };
    const std::size_t rows = factored_[i].rows, columns = factored_[i].columns;
    for (std::size_t r = 0; r < rows; ++r) mix(all[r], squares.row_means[r]);
    for (std::size_t c = 0; c < columns; ++c) mix(all[rows + c], squares.column_means[c]);
    mix(all[rows + columns], squares.of_one);
    mix(all[rows + columns + 1], squares.of_average);
  }

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t step) override {
    std::size_t at = 0;
    auto factored = factored_.begin();
    for (std::size_t layer = 0; layer < sizes_.size(); at += sizes_[layer++]) {
      const std::span<float> w = weights.subspan(at, sizes_[layer]);
      const std::span<float> update = std::span(update_).first(w.size());
      const bool is_factored = factored != factored_.end() && factored->layer == layer;
      if (find_own_update(layer, at, gradient.subspan(at, w.size()), update)) {
        move(w, update, static_cast<float>(lr));
        continue;
      }
      mix_gradient(w, gradient.subspan(at, w.size()), at, is_factored);
      if (is_factored) {
        find_factored_update(*factored++, step, update);
      } else {
        find_update(at, step, update);
      }
      move(w, update, static_cast<float>(lr));
    }
  }

 protected:
  /// A layer that moves in another way: its update, the rate and the decay left out. `at` is where
  /// it begins among the weights. Returns whether it is one.
  virtual bool find_own_update(std::size_t /*layer*/, std::size_t /*at*/,
                               std::span<const float> /*gradient*/, std::span<float> /*update*/) {
    return false;
  }

 private:
  static constexpr float kBeta1 = 0.9F, kBeta2 = 0.999F, kEpsilon = 1e-8F;
  /// (1 - b1) / sqrt(1 - b2).
  static constexpr float kLargestUpdate = 3.1622777F;

  [[nodiscard]] std::span<float> factors(const FactoredLayer& layer) noexcept {
    return std::span(moments_[1]).subspan(layer.offset, layer.rows + layer.columns + 2);
  }
  void mix_gradient(std::span<const float> weights, std::span<const float> gradient, std::size_t at,
                    bool is_factored) {
    const float decay = decoupled_ ? 0 : static_cast<float>(settings_.weight_decay);
    float* const m = moments_[0].data() + at;
    float* const s = is_factored ? nullptr : moments_[1].data() + at;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float g = gradient[i] + decay * weights[i];
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
      if (s != nullptr) s[i] = kBeta2 * s[i] + (1 - kBeta2) * g * g;
    }
  }

  void find_update(std::size_t at, std::uint32_t step, std::span<float> update) const {
    const auto first = static_cast<float>(1 - std::pow(kBeta1, step + 1.0));
    const auto second = static_cast<float>(1 - std::pow(kBeta2, step + 1.0));
    for (std::size_t i = 0; i < update.size(); ++i)
      update[i] =
          moments_[0][at + i] / first / (std::sqrt(moments_[1][at + i] / second) + kEpsilon);
  }

  void find_factored_update(const FactoredLayer& layer, std::uint32_t step,
                            std::span<float> update) {
    const std::span<const float> all = factors(layer);
    const auto rows = all.first(layer.rows), columns = all.subspan(layer.rows, layer.columns);
    const double of_one = all[layer.rows + layer.columns],
                 of_average = all[layer.rows + layer.columns + 1];
    const double least = 0.5 / static_cast<double>(settings_.workers);
    const double ratio = of_one > 0 ? std::clamp(of_average / of_one, least, 1.0) : 1;
    const double mean =
        std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(layer.rows);
    const std::uint32_t seen = step / settings_.squares_every + 1;
    const double second = 1 - std::pow(kBeta2, static_cast<double>(settings_.squares_every) * seen);
    const auto first = static_cast<float>(1 - std::pow(kBeta1, step + 1.0));
    const double common = mean > 0 ? ratio / (mean * second) : 0;
    for (std::size_t c = 0; c < layer.columns; ++c)
      columns_[c] = static_cast<float>(std::sqrt(common * static_cast<double>(columns[c])));
    const float* const m = moments_[0].data() + layer.offset;
    for (std::size_t r = 0; r < layer.rows; ++r) {
      const float row = std::sqrt(rows[r]);
      for (std::size_t c = 0; c < layer.columns; ++c) {
        const std::size_t i = r * layer.columns + c;
        const float u = m[i] / first / (row * columns_[c] + kEpsilon);
        update[i] = std::clamp(u, -kLargestUpdate, kLargestUpdate);
      }
    }
  }

  void move(std::span<float> weights, std::span<const float> update, float lr) const {
    const float decay = decoupled_ ? static_cast<float>(settings_.weight_decay) : 0;
    float bound = 1;
    if (settings_.max_update > 0) {
      double squares = 0;
      for (const double u : update) squares += u * u;
      const double rms = std::sqrt(squares / static_cast<double>(update.size()));
      if (rms > settings_.max_update) bound = static_cast<float>(settings_.max_update / rms);
    }
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] -= lr * (bound * update[i] + decay * weights[i]);
  }

  bool decoupled_;
  std::vector<std::size_t> sizes_;
  std::vector<FactoredLayer> factored_;
  std::vector<float> update_, columns_;  ///< of the layer at hand
};

/// Muon (arXiv 2502.16982, section 2): m <- b m + g;  w <- w - lr (0.2 sqrt(max(rows, columns)) O +
/// d w), where O is g + b m with its singular values brought near 1, so an update's root mean square
/// is about that of AdamW's and one rate serves both. Of a convolution the first dimension makes the
/// rows. Vectors, embeddings and the output layer of the transformer move as AdamW has them.
class Muon final : public Adam {
 public:
  Muon(OptimiserSettings settings, Layers layers) : Adam(std::move(settings), layers, true) {
    for (const auto& layer : layers) rows_.push_back(rows_of(layer));
  }

 protected:
  bool find_own_update(std::size_t layer, std::size_t at, std::span<const float> gradient,
                       std::span<float> update) override {
    constexpr float kMomentum = 0.95F, kScale = 0.2F;
    const std::size_t rows = rows_[layer];
    if (rows == 0) return false;
    const std::size_t columns = gradient.size() / rows;
    float* const m = moments_[0].data() + at;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      m[i] = kMomentum * m[i] + gradient[i];
      update[i] = gradient[i] + kMomentum * m[i];
    }
    orthogonalise(update, rows, columns, work_);
    const float scale = kScale * std::sqrt(static_cast<float>(std::max(rows, columns)));
    for (float& u : update) u *= scale;
    return true;
  }

 private:
  /// 0 where it is no matrix, or one that is looked up in or predicts from.
  static std::size_t rows_of(const atomo::LayerSpec& layer) {
    const auto dims = layer.shape.dims();
    for (const char* table : {"characters", "positions", "head"}) {
      if (layer.name.starts_with(table)) return 0;
    }
    const auto elements = layer.shape.elements();
    const auto rows = dims.size() < 2 ? 0 : static_cast<std::size_t>(dims[0]);
    return rows < 2 || elements / rows < 2 ? 0 : rows;
  }

  std::vector<std::size_t> rows_;  ///< of each layer, 0 where AdamW moves it
  std::vector<float> work_;
};

/// s <- s + g^2;  w <- w - lr g / (sqrt(s) + eps)
class AdaGrad final : public Optimiser {
 public:
  AdaGrad(OptimiserSettings settings, Layers layers)
      : Optimiser(std::move(settings), 1, elements_of(layers)) {}

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t) override {
    constexpr float kEpsilon = 1e-10F;
    const auto rate = static_cast<float>(lr);
    const auto decay = static_cast<float>(settings_.weight_decay);
    auto& s = moments_[0];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float g = gradient[i] + decay * weights[i];
      s[i] += g * g;
      weights[i] -= rate * g / (std::sqrt(s[i]) + kEpsilon);
    }
  }
};

/// s <- r s + (1 - r) g^2;  d = sqrt(u + eps) / sqrt(s + eps) g;  u <- r u + (1 - r) d^2;
/// w <- w - lr d
class AdaDelta final : public Optimiser {
 public:
  AdaDelta(OptimiserSettings settings, Layers layers)
      : Optimiser(std::move(settings), 2, elements_of(layers)) {}

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t) override {
    constexpr float kKept = 0.9F, kEpsilon = 1e-6F;
    const auto rate = static_cast<float>(lr);
    const auto decay = static_cast<float>(settings_.weight_decay);
    auto &s = moments_[0], &u = moments_[1];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float g = gradient[i] + decay * weights[i];
      s[i] = kKept * s[i] + (1 - kKept) * g * g;
      const float change = std::sqrt(u[i] + kEpsilon) / std::sqrt(s[i] + kEpsilon) * g;
      u[i] = kKept * u[i] + (1 - kKept) * change * change;
      weights[i] -= rate * change;
    }
  }
};

/// s <- r s + (1 - r) g^2;  w <- w - lr g / (sqrt(s) + eps)
class RmsProp final : public Optimiser {
 public:
  RmsProp(OptimiserSettings settings, Layers layers)
      : Optimiser(std::move(settings), 1, elements_of(layers)) {}

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t) override {
    constexpr float kKept = 0.99F, kEpsilon = 1e-8F;
    const auto rate = static_cast<float>(lr);
    const auto decay = static_cast<float>(settings_.weight_decay);
    auto& s = moments_[0];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float g = gradient[i] + decay * weights[i];
      s[i] = kKept * s[i] + (1 - kKept) * g * g;
      weights[i] -= rate * g / (std::sqrt(s[i]) + kEpsilon);
    }
  }
};

/// w <- w - lr (sign(g) + d w), the sign of 0 being 0 (signSGD, arXiv 1802.04434; DeMo's step, arXiv
/// 2411.19870, where g is what the workers' messages of their momenta come to).
class SignSgd final : public Optimiser {
 public:
  SignSgd(OptimiserSettings settings, Layers) : Optimiser(std::move(settings), 0, 0) {}

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t) override {
    const auto rate = static_cast<float>(lr);
    const auto decay = static_cast<float>(settings_.weight_decay);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float g = gradient[i];
      const float sign = static_cast<float>(g > 0) - static_cast<float>(g < 0);
      weights[i] -= rate * (sign + decay * weights[i]);
    }
  }
};

using Made = std::unique_ptr<Optimiser>;

struct Entry {
  const char* name;
  Made (*make)(OptimiserSettings settings, Layers layers);
};

template <class T>
Made make(OptimiserSettings settings, Layers layers) {
  return std::make_unique<T>(std::move(settings), layers);
}

template <bool nesterov>
Made make_sgd(OptimiserSettings settings, Layers layers) {
  return std::make_unique<Sgd>(std::move(settings), layers, nesterov);
}

bool has_second_moment(const std::string& name) { return name == "adam" || name == "adamw"; }

template <bool decoupled>
Made make_adam(OptimiserSettings settings, Layers layers) {
  return std::make_unique<Adam>(std::move(settings), layers, decoupled);
}

constexpr Entry kOptimisers[] = {
    {"sgd", make_sgd<false>},     {"nesterov", make_sgd<true>}, {"lars", make<Lars>},
    {"adam", make_adam<false>},   {"adamw", make_adam<true>},   {"adagrad", make<AdaGrad>},
    {"adadelta", make<AdaDelta>}, {"rmsprop", make<RmsProp>},   {"muon", make<Muon>},
    {"signsgd", make<SignSgd>},
};

}  // namespace

void Optimiser::see_squares(std::size_t, const LayerSquares&) {}

void Optimiser::take_step(std::span<float> weights, std::span<float> gradient,
                          std::uint32_t of_step) {
  const auto scale = static_cast<float>(settings_.gradient_scale(of_step));
  if (scale != 1) {
    for (float& g : gradient) g /= scale;
  }
  step(weights, gradient, settings_.learning_rate(of_step), of_step);
}

std::vector<std::string> optimiser_names() {
  std::vector<std::string> names;
  for (const auto& entry : kOptimisers) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Optimiser> make_optimiser(const std::string& name, OptimiserSettings settings,
                                          std::span<const atomo::LayerSpec> layers) {
  if ((settings.squares_every > 0 || settings.max_update > 0) && !has_second_moment(name))
    throw std::runtime_error(
        "a second moment from the workers' squares and a bound on the update go "
        "with adam and adamw, not with " +
        name);
  std::string all;
  for (const auto& entry : kOptimisers) {
    if (name == entry.name) return entry.make(std::move(settings), layers);
    all += std::string(all.empty() ? "" : ", ") + entry.name;
  }
  throw std::runtime_error("no optimiser '" + name + "': there are " + all);
}

}  // namespace train
