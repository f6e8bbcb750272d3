// SPDX-License-Identifier: Apache-2.0
#include "learning/optimiser.hpp"

#include <cmath>

namespace train {
namespace {

/// v <- m v + (g + d w);  w <- w - lr v
class Sgd final : public Optimiser {
 public:
  Sgd(const Options& o, std::size_t elements)
      : Optimiser(o, 1, elements),
        momentum_(static_cast<float>(o.momentum)),
        decay_(static_cast<float>(o.weight_decay)) {}

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t) override {
    const auto rate = static_cast<float>(lr);
    auto& v = moments_[0];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      v[i] = momentum_ * v[i] + (gradient[i] + decay_ * weights[i]);
      weights[i] -= rate * v[i];
    }
  }

 private:
  float momentum_, decay_;
};

/// m <- b1 m + (1 - b1) g;  s <- b2 s + (1 - b2) g^2;  w <- w - lr (m^ / (sqrt(s^) + eps) + d w), ^
/// corrected for the zero start.
class AdamW final : public Optimiser {
 public:
  AdamW(const Options& o, std::size_t elements)
      : Optimiser(o, 2, elements), decay_(static_cast<float>(o.weight_decay)) {}

  void step(std::span<float> weights, std::span<const float> gradient, double lr,
            std::uint32_t step) override {
    constexpr float kBeta1 = 0.9F, kBeta2 = 0.999F, kEpsilon = 1e-8F;
    const auto rate = static_cast<float>(lr);
    const auto first = static_cast<float>(1 - std::pow(kBeta1, step + 1.0));
    const auto second = static_cast<float>(1 - std::pow(kBeta2, step + 1.0));
    auto &m = moments_[0], &s = moments_[1];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * gradient[i];
      s[i] = kBeta2 * s[i] + (1 - kBeta2) * gradient[i] * gradient[i];
      weights[i] -=
          rate * (m[i] / first / (std::sqrt(s[i] / second) + kEpsilon) + decay_ * weights[i]);
    }
  }

 private:
  float decay_;
};

}  // namespace

void Optimiser::take_step(std::span<float> weights, std::span<float> gradient,
                          std::uint32_t of_step) {
  const auto scale = static_cast<float>(options_.gradient_scale(of_step));
  if (scale != 1) {
    for (float& g : gradient) g /= scale;
  }
  step(weights, gradient, options_.learning_rate(of_step), of_step);
}

std::unique_ptr<Optimiser> make_optimiser(const Options& options, std::size_t elements) {
  if (options.optimizer == "adamw") return std::make_unique<AdamW>(options, elements);
  return std::make_unique<Sgd>(options, elements);
}

}  // namespace train
