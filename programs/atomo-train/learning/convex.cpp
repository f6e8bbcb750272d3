// SPDX-License-Identifier: Apache-2.0
/// \file
/// Softmax regression and the quadratics compute their losses and gradients by hand here, which
/// lets both models run without torch. The regression multiplies matrices through BLAS and hands
/// out the gradient of its bias before that of its matrix, as back-propagation through the layers
/// would.

#include "learning/convex.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace train {
namespace {

/// Weights in host memory; no buffers.
class ConvexReplica : public Replica {
 public:
  const std::vector<atomo::LayerSpec>& layers() const noexcept override { return layers_; }
  std::size_t offset(std::size_t layer) const noexcept override { return offsets_[layer]; }
  std::span<float> weights() noexcept override { return weights_; }
  void weights_changed() override {}
  std::vector<float> buffers() const override { return {}; }
  void set_buffers(std::span<const float>) override {}
  std::chrono::steady_clock::time_point backward_began() const noexcept override {
    return backward_began_;
  }

 protected:
  void add_layer(const char* name, std::initializer_list<std::int64_t> sizes) {
    layers_.push_back({name, atomo::Shape(sizes)});
    offsets_.push_back(weights_.size());
    weights_.resize(weights_.size() + layers_.back().shape.elements());
    gradient_.resize(weights_.size());
  }
  [[nodiscard]] std::span<float> gradient(std::size_t layer) {
    return std::span(gradient_).subspan(offsets_[layer], layers_[layer].shape.elements());
  }
  void begin_backward() { backward_began_ = std::chrono::steady_clock::now(); }

 private:
  std::vector<atomo::LayerSpec> layers_;
  std::vector<std::size_t> offsets_;
  std::vector<float> weights_, gradient_;
  std::chrono::steady_clock::time_point backward_began_;
};

class Logistic final : public ConvexReplica {
 public:
  Logistic(const ImageShape& shape, std::uint64_t seed)
      : pixels_(shape.pixels()), classes_(static_cast<std::size_t>(shape.classes)) {
    add_layer("fc.weight", {shape.classes, static_cast<std::int64_t>(pixels_)});
    add_layer("fc.bias", {shape.classes});
    std::mt19937_64 random(seed);
    const float bound = 1 / std::sqrt(static_cast<float>(pixels_));
    std::ranges::generate(weights(), [&] {
      const auto draw = static_cast<std::int32_t>(random() >> 32);  // uniform in [-2^31, 2^31)
      return static_cast<float>(draw) * 0x1p-31f * bound;
    });
  }

  double backward(const Batch& batch, double scale, const OnGradient& on_gradient) override {
    trained_ = predict(batch);
    begin_backward();
    const std::size_t samples = batch.targets.size();
    const auto part = scale / static_cast<double>(samples);
    const auto to_target = static_cast<float>(1 - batch.smoothing);
    const auto to_all = static_cast<float>(batch.smoothing / static_cast<double>(classes_));
    const auto bias = gradient(1);
    std::ranges::fill(bias, 0.0f);
    for (std::size_t i = 0; i < samples; ++i) {  // probabilities become the loss's slopes
      float* const slopes = probabilities_.data() + i * classes_;
      slopes[batch.targets[i]] -= to_target;
      for (std::size_t c = 0; c < classes_; ++c) {
        slopes[c] = static_cast<float>((slopes[c] - to_all) * part);
        bias[c] += slopes[c];
      }
    }
    on_gradient(1, bias);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, to_int(classes_), to_int(pixels_),
                to_int(samples), 1.0f, probabilities_.data(), to_int(classes_), batch.pixels.data(),
                to_int(pixels_), 0.0f, gradient(0).data(), to_int(pixels_));
    on_gradient(0, gradient(0));
    return ((1 - batch.smoothing) * trained_.loss + batch.smoothing * loss_of_all_) /
           static_cast<double>(samples);
  }

  Score trained() const noexcept override { return trained_; }
  Score evaluate(const Batch& batch, std::vector<Prediction>* each) override {
    const Score score = predict(batch);
    for (std::size_t i = 0; each != nullptr && i < batch.targets.size(); ++i) {
      const std::span probabilities(probabilities_.data() + i * classes_, classes_);
      const auto largest = std::ranges::max_element(probabilities);
      each->push_back({batch.targets[i], largest - probabilities.begin(), *largest});
    }
    return score;
  }

 private:
  static int to_int(std::size_t n) noexcept { return static_cast<int>(n); }

  /// Fills `probabilities_`, samples x classes, and `loss_of_all_`; the score has sums over the
  /// batch.
  Score predict(const Batch& batch) {
    const std::size_t samples = batch.targets.size();
    probabilities_.resize(samples * classes_);
    const auto bias = weights().subspan(offset(1));
    for (std::size_t i = 0; i < samples; ++i)
      std::ranges::copy(bias, probabilities_.data() + i * classes_);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, to_int(samples), to_int(classes_),
                to_int(pixels_), 1.0f, batch.pixels.data(), to_int(pixels_), weights().data(),
                to_int(pixels_), 1.0f, probabilities_.data(), to_int(classes_));
    Score score{.predictions = samples};
    loss_of_all_ = 0;
    for (std::size_t i = 0; i < samples; ++i) {
      const std::span logits(probabilities_.data() + i * classes_, classes_);
      const auto target = static_cast<std::size_t>(batch.targets[i]);
      const auto largest = std::ranges::max_element(logits);
      if (largest == logits.begin() + batch.targets[i]) ++score.correct;
      const float top = *largest, of_target = logits[target];
      if (std::ranges::count_if(logits, [&](float logit) { return logit > of_target; }) < kTop)
        ++score.top5;
      double sum = 0, sum_of_logits = 0;
      for (float& logit : logits) {
        sum_of_logits += logit;
        logit = std::exp(logit - top);
        sum += logit;
      }
      for (float& logit : logits) logit = static_cast<float>(logit / sum);
      score.loss += std::log(sum) + top - of_target;
      loss_of_all_ += std::log(sum) + top - sum_of_logits / static_cast<double>(classes_);
    }
    return score;
  }

  std::size_t pixels_, classes_;
  std::vector<float> probabilities_;
  double loss_of_all_ = 0;  ///< of the batch, the mean over all classes in place of the target's
  Score trained_;
};

class Quadratic final : public ConvexReplica {
 public:
  explicit Quadratic(const QuadraticShape& shape) {
    add_layer("x", {shape.rows, shape.columns});
    std::ranges::copy(shape.start, weights().begin());
  }

  double backward(const Batch& batch, double scale, const OnGradient& on_gradient) override {
    const double loss = take_mean(batch).loss;
    begin_backward();
    const auto g = gradient(0);
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = static_cast<float>(scale * (curvature_[i] * weights()[i] - pull_[i]));
    on_gradient(0, g);
    return loss;
  }

  Score evaluate(const Batch& batch, std::vector<Prediction>*) override { return take_mean(batch); }

 private:
  /// Of the batch's quadratics, and where x is on it.
  Score take_mean(const Batch& batch) {
    curvature_ = mean_of(batch.curvatures);
    pull_ = mean_of(batch.pulls);
    Score score{.predictions = 1};
    for (std::size_t i = 0; i < weights().size(); ++i) {
      const double x = weights()[i], from_optimum = x - pull_[i] / curvature_[i];
      score.loss += (0.5 * curvature_[i] * x - pull_[i]) * x;
      score.squared_distance += from_optimum * from_optimum;
    }
    return score;
  }
  [[nodiscard]] std::vector<double> mean_of(const std::vector<double>& values) {
    const std::size_t n = weights().size(), samples = values.size() / n;
    std::vector<double> mean(n);
    for (std::size_t k = 0; k < values.size(); ++k) mean[k % n] += values[k];
    for (double& value : mean) value /= static_cast<double>(samples);
    return mean;
  }

  std::vector<double> curvature_, pull_;
};

}  // namespace

std::unique_ptr<Replica> make_logistic(const ImageShape& shape, std::uint64_t seed) {
  return std::make_unique<Logistic>(shape, seed);
}

std::unique_ptr<Replica> make_quadratic(const QuadraticShape& shape) {
  return std::make_unique<Quadratic>(shape);
}

}  // namespace train
