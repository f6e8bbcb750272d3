// SPDX-License-Identifier: Apache-2.0
/// \file
/// CHOCO-SGD (arXiv 1902.00340): gossip of compressed differences to public copies.
///
///   every node i, every step; x^_i is what all neighbours of i believe x_i to be
///   ----------------------------------------------------------------------------
///   x_i <- optimiser(x_i, back-propagation at x_i)
///   send C(x_i - x^_i) to the neighbours N(i)
///   for i and every j in N(i):
///     x^_j <- x^_j + s C(x_j - x^_j)
///   x_i <- x_i + gamma sum over j in N(i) of W_ij (x^_j - x^_i)
///
/// s C has to be a contraction, E|x - s C(x)|^2 <= (1 - delta) |x|^2. An unbiased codec of variance
/// omega is one with s = 1 / (1 + omega), layer by layer; a biased one that is a contraction is
/// taken as it is. All nodes start at the same weights, so public copies start there too.
/// Everybody's copy of x_j has to stay the same, so all edges are due at once: slots are not looked
/// at, and with a period of R all exchange in every R-th step. Running statistics of batch
/// normalisation travel as they are and are averaged with the weights W.

#include <algorithm>
#include <stdexcept>

#include "algorithms/algorithms.hpp"
#include "exchange/contraction.hpp"
#include "roles/node.hpp"

namespace train {
namespace {

/// Theorem 2 of the paper.
double step_of_theory(const Graph::Spectrum& graph, double delta) {
  const double gap = graph.gap, squared = graph.beta * graph.beta;
  return gap * gap * delta /
         (16 * gap + gap * gap + 4 * squared + 2 * gap * squared - 8 * gap * delta);
}

class Choco final : public Node {
 public:
  explicit Choco(Run& run)
      : Node(run), gamma_(run.options.gossip_step), change_(zeros()), copy_(here().weights) {
    double delta = 1;
    const auto& compressor = learner_.compressor();
    for (std::size_t i = 0; i < compressor.layers().size(); ++i) {
      const auto& codec = compressor.codec(i);
      layers_.push_back(contraction_of(codec, run.options.codec_scale));
      delta = std::min(delta, layers_.back().delta);
      if (layers_.back().scale > 0) continue;
      throw std::runtime_error("choco: no bound of the variance (omega) of '" + codec.to_string() +
                               "' is known without the tensor: give --codec-scale and "
                               "--gossip-step, or take another codec, for example qsgd:bits=4");
    }
    if (gamma_ == 0 && !(delta > 0)) {
      throw std::runtime_error(
          "choco: theory gives no --gossip-step here, as nothing says that what is decoded, times "
          "its scale, contracts; give one, for example 0.1");
    }
    delta_ = delta;
    if (gamma_ == 0) gamma_ = step_of_theory(graph_.spectrum(), delta);
    keep("copy", copy_, Without::mean_weights);
    for (const auto& j : neighbours()) {
      copies_[j.node] = copy_;
      keep("copy." + std::to_string(j.node + 1), copies_[j.node], Without::mean_weights, j.node,
           "copy");
    }
    begin();
  }

  [[nodiscard]] bool train(std::uint32_t step) {
    back_propagate(step);
    take_step(step);
    if ((step + 1) % graph_.period() == 0) gossip(step);
    return end_step(step);
  }

 private:
  /// Theory's step is that of the part of the graph that is left here: it is the same at both ends
  /// of an edge.
  void graph_changed() override {
    if (run_.options.gossip_step == 0)
      gamma_ = step_of_theory(graph_.spectrum_around(transport_.rank()), delta_);
  }

  void gossip(std::uint32_t step) {
    auto away = here();
    for (std::size_t i = 0; i < copy_.size(); ++i) away.weights[i] -= copy_[i];
    send(step, neighbours(), away, sent_);
    add(sent_.weights, copy_);
    change_.clear();
    for (const auto& j : neighbours()) {
      if (!receive(j, theirs_)) continue;
      auto& copy = copies_[j.node];
      add(theirs_.weights, copy);
      const auto weight = static_cast<float>(j.weight);
      const auto factor = static_cast<float>(gamma_ * j.weight);
      for (std::size_t i = 0; i < copy.size(); ++i)
        change_.weights[i] += factor * (copy[i] - copy_[i]);
      for (std::size_t i = 0; i < change_.buffers.size(); ++i)
        change_.buffers[i] += weight * (theirs_.buffers[i] - sent_.buffers[i]);
    }
    move_by(change_);
  }

  /// copy <- copy + s decoded: the same arithmetic, so the same bits, wherever the copy is kept.
  void add(std::span<const float> decoded, std::vector<float>& copy) {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const auto s = static_cast<float>(layers_[layer].scale);
      const std::size_t first = learner_.replica().offset(layer);
      const std::size_t last = first + learner_.compressor().layers()[layer].shape.elements();
      for (std::size_t i = first; i < last; ++i) copy[i] += s * decoded[i];
    }
  }

  std::vector<Contraction> layers_;
  double gamma_, delta_ = 1;
  Point sent_, theirs_, change_;
  std::vector<float> copy_;                   ///< what the others believe this node's weights to be
  std::map<int, std::vector<float>> copies_;  ///< and what all believe of its neighbours, by node
};

}  // namespace

Outcome choco(Run& run) { return run_peer<Choco>(run); }

}  // namespace train
