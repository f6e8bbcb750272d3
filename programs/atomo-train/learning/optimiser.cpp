// SPDX-License-Identifier: Apache-2.0
/// \file
/// Each optimiser is a loop over flat arrays of weights, gradients and moments, with its update
/// rule written above its class. The table `kOptimisers` maps the names on the command line to
/// these classes. Weight decay joins the gradient in all of them except adamw, adafactor, muon and
/// signsgd.

#include "learning/optimiser.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "learning/adam.hpp"
#include "learning/finite.hpp"
#include "learning/newton_schulz.hpp"

namespace train {
namespace {

using Layers = std::span<const atomo::LayerSpec>;

constexpr double kMuonMomentum = 0.95;  // of what muon moves as a matrix

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
    constexpr auto kMomentum = static_cast<float>(kMuonMomentum);
    constexpr float kScale = 0.2F;
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

/// Adafactor (arXiv 1804.04235, algorithm 4) with a first moment: V of a matrix is the product of the
/// row and column sums of its running mean of squares over their total, of a vector each entry's own;
/// u = g / sqrt(V^), over max(1, rms(u)) (section 6);  m <- b1 m + (1 - b1) u;  w <- w - lr (m + d w).
/// The rate is the one asked for, in place of the paper's relative one.
class Adafactor final : public Optimiser {
 public:
  Adafactor(OptimiserSettings settings, Layers layers)
      : Optimiser(std::move(settings), 2, elements_of(layers)), factored_(factored_layers(layers)) {
    for (const auto& layer : layers) sizes_.push_back(layer.shape.elements());
    update_.resize(sizes_.empty() ? 0 : *std::ranges::max_element(sizes_));
  }

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t step) override {
    const auto rate = static_cast<float>(lr), decay = static_cast<float>(settings_.weight_decay);
    const auto kept = static_cast<float>(settings_.beta1);
    const double second = 1 - std::pow(settings_.beta2, step + 1.0);
    std::size_t at = 0;
    auto factored = factored_.begin();
    for (std::size_t layer = 0; layer < sizes_.size(); at += sizes_[layer++]) {
      const std::span<const float> g = gradient.subspan(at, sizes_[layer]);
      const std::span<float> u = std::span(update_).first(g.size());
      if (factored != factored_.end() && factored->layer == layer) {
        divide_matrix(*factored++, g, second, u);
      } else {
        divide_entries(at, g, second, u);
      }
      double squares = 0;
      for (const double value : u) squares += value * value;
      const double rms =
          std::sqrt(squares / static_cast<double>(std::max<std::size_t>(1, u.size())));
      const auto clip = static_cast<float>(std::max(1.0, rms));
      for (std::size_t i = 0; i < u.size(); ++i) {
        float& m = moments_[0][at + i];
        m = kept * m + (1 - kept) * u[i] / clip;
        weights[at + i] -= rate * (m + decay * weights[at + i]);
      }
    }
  }

 private:
  static constexpr float kEpsilon = 1e-30F;  ///< joins each square (section 6)

  void divide_entries(std::size_t at, std::span<const float> g, double second,
                      std::span<float> update) {
    const auto kept = static_cast<float>(settings_.beta2);
    for (std::size_t i = 0; i < g.size(); ++i) {
      float& s = moments_[1][at + i];
      s = kept * s + (1 - kept) * (g[i] * g[i] + kEpsilon);
      update[i] = g[i] / std::sqrt(s / static_cast<float>(second));
    }
  }

  void divide_matrix(const FactoredLayer& layer, std::span<const float> g, double second,
                     std::span<float> update) {
    const auto kept = static_cast<float>(settings_.beta2);
    const std::size_t rows = layer.rows, columns = layer.columns;
    const auto r = std::span(moments_[1]).subspan(layer.offset, rows);
    const auto c = std::span(moments_[1]).subspan(layer.offset + rows, columns);
    columns_.assign(columns, 0);
    double total = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < columns; ++j) {
        const double square = g[i * columns + j] * g[i * columns + j] + kEpsilon;
        sum += square;
        columns_[j] += square;
      }
      r[i] = kept * r[i] + (1 - kept) * static_cast<float>(sum);
      total += r[i];
    }
    for (std::size_t j = 0; j < columns; ++j)
      c[j] = kept * c[j] + (1 - kept) * static_cast<float>(columns_[j]);
    for (std::size_t i = 0; i < rows; ++i) {
      const double row = r[i] / (total * second);
      for (std::size_t j = 0; j < columns; ++j)
        update[i * columns + j] = g[i * columns + j] / static_cast<float>(std::sqrt(row * c[j]));
    }
  }

  std::vector<FactoredLayer> factored_;
  std::vector<std::size_t> sizes_;
  std::vector<float> update_;    ///< of the layer at hand
  std::vector<double> columns_;  ///< sums of the squares of the step
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
    {"sgd", make_sgd<false>},       {"nesterov", make_sgd<true>}, {"lars", make<Lars>},
    {"adam", make_adam<false>},     {"adamw", make_adam<true>},   {"adagrad", make<AdaGrad>},
    {"adadelta", make<AdaDelta>},   {"rmsprop", make<RmsProp>},   {"muon", make<Muon>},
    {"adafactor", make<Adafactor>}, {"signsgd", make<SignSgd>},
};

}  // namespace

SecondMoment second_moment_of(const std::string& name) {
  if (name == "factored") return SecondMoment::factored;
  if (name == "scaled") return SecondMoment::scaled;
  if (name == "matched") return SecondMoment::matched;
  if (name == "exact") return SecondMoment::exact;
  return SecondMoment::own;
}

std::size_t elements_of(std::span<const atomo::LayerSpec> layers) {
  return std::accumulate(
      layers.begin(), layers.end(), std::size_t{0},
      [](std::size_t sum, const auto& layer) { return sum + layer.shape.elements(); });
}

void Optimiser::see_squares(std::size_t, const LayerSquares&) {}
void Optimiser::see_exact(std::span<const float>) {}
void Optimiser::find_units(std::uint32_t, std::span<float>) {}

void Optimiser::take_step(std::span<float> weights, std::span<float> gradient,
                          std::uint32_t of_step) {
  const auto scale = static_cast<float>(settings_.gradient_scale(of_step));
  if (scale != 1) {
    for (float& g : gradient) g /= scale;
  }
  check_gradient(gradient, settings_.unit, of_step);
  step(weights, gradient, settings_.learning_rate(of_step), of_step);
}

void check_gradient(std::span<const float> gradient, const std::string& unit,
                    std::uint32_t number) {
  if (all_finite(gradient)) return;
  throw std::runtime_error("the gradient of " + unit + " " + std::to_string(number) +
                           " is not finite: the training diverged; lower --lr or --loss-scale, or "
                           "take a codec with less error");
}

void check_weights(std::span<const float> weights, std::uint32_t done) {
  if (all_finite(weights)) return;
  throw std::runtime_error("the weights are not finite after " + std::to_string(done) +
                           " steps: the training diverged; lower --lr or take a codec with less "
                           "error");
}

bool has_momentum(const std::string& name) {
  return name == "sgd" || name == "nesterov" || name == "lars";
}

double first_moment_of(const std::string& name, double momentum, double beta1) {
  if (has_momentum(name)) return momentum;
  if (name == "adam" || name == "adamw" || name == "adafactor") return beta1;
  return name == "muon" ? kMuonMomentum : 0;
}

std::vector<std::string> optimiser_names() {
  std::vector<std::string> names;
  for (const auto& entry : kOptimisers) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Optimiser> make_optimiser(const std::string& name, OptimiserSettings settings,
                                          std::span<const atomo::LayerSpec> layers) {
  if ((settings.second_moment != SecondMoment::own || settings.max_update > 0) &&
      !has_second_moment(name))
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
