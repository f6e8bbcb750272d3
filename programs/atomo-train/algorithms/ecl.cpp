// SPDX-License-Identifier: Apache-2.0
/// \file
/// Edge-consensus learning: PDMM-ISVR and ADMM-ISVR (Niwa et al., "Asynchronous Decentralized
/// Optimization With Implicit Stochastic Variance Reduction", ICML 2021).
///
///   every node i, every step t; A_ij = 1 if j comes before i, else -1; an edge has slots
///   -------------------------------------------------------------------------------------
///   g <- back-propagation at x_i, + weight decay x_i
///   x_i <- (x_i / mu - g + sum over j in N(i) of eta_ij A_ij z_ij) / (1 / mu + sum of eta_ij)
///   for the neighbours j one of whose slots is t mod R, R the period:
///     y_ij <- z_ij - 2 A_ij x_i
///     send y_ij, receive y_ji
///     z_ij <- y_ji             (pdmm)        z_ij <- (z_ij + y_ji) / 2             (admm)
///
/// z starts at 0, mu is the learning rate, and 1 / eta_ij = mu (R d + R - d), at the learning rate
/// of --lr: to first order in 1 / R, what R steps move towards the neighbours is then what one step
/// does with R = 1. Where nothing moves any more, z_ij = y_ji and z_ji = y_ij say that x_i = x_j,
/// here called x, and that A_ij z_ij - x = -(A_ji z_ji - x). So eta_ij (A_ij z_ij - x) and
/// eta_ji (A_ji z_ji - x) cancel, the sum of all of them, which is the sum of the nodes' gradients,
/// is 0, and x is the optimum of all: if eta is the same at both ends of an edge. The paper's d,
/// the degree of the node itself, makes it so only on regular graphs, or with R = 1, where d does
/// not matter; elsewhere its fixed point is not the optimum. So d is here the larger degree of an
/// edge's two ends.
///
/// There is no optimiser besides: --momentum has to be 0. Running statistics of batch normalisation
/// are averaged over an edge with its Metropolis weight. Asynchronously a node takes, in every
/// step, what has come from each neighbour last, passes over those of whom nothing has come, and
/// waits for nobody; of several messages only the last counts. The fixed point is the same. Round a
/// cycle of the graph z may hold a flow that moves no x; asynchronously its size is chance, and x
/// is as exact as z is rounded.

#include <algorithm>
#include <list>
#include <stdexcept>

#include "algorithms/algorithms.hpp"
#include "roles/node.hpp"

namespace train {
namespace {

class EdgeConsensus : public Node {
 public:
  [[nodiscard]] bool train(std::uint32_t step) {
    back_propagate(step);
    check_gradient(gradient_, "step", step);
    if (run_.options.asynchronous)
      for (auto& edge : edges_) take(edge);
    move(step);
    exchange(step);
    return end_step(step);
  }

 protected:
  /// `kept`: the part of z that stays in an exchange.
  EdgeConsensus(Run& run, float kept) : Node(run), kept_(kept), pull_(elements()) {
    const auto& options = run.options;
    if (options.optimizer != "sgd" || options.momentum != 0) {
      throw std::runtime_error("--algorithm " + options.algorithm +
                               " takes steps of its own: add --momentum 0, and no --optimizer but "
                               "sgd");
    }
    for (const auto& j : neighbours())
      edges_.push_back({j, eta_of(j), std::vector<float>(elements())});
    for (auto& edge : edges_)
      keep("z." + std::to_string(edge.to.node + 1), edge.z, Without::zeros, edge.to.node);
    begin();
  }

 private:
  struct EdgeEnd {
    Neighbour to;
    double eta;
    std::vector<float> z;
  };

  [[nodiscard]] double eta_of(const Neighbour& j) const {
    const double period = graph_.period();
    const auto degree = static_cast<double>(
        std::max(graph_.neighbours(transport_.rank()).size(), graph_.neighbours(j.node).size()));
    return 1 / (run_.options.lr * (period * degree + period - degree));
  }

  /// The edges are those of the graph: one that is dropped takes its z along. The others keep
  /// theirs, which are in the units of x, whatever eta is.
  void graph_changed() override {
    edges_.remove_if([this](const EdgeEnd& edge) { return dropped(edge.to); });
    auto edge = edges_.begin();
    for (const auto& j : neighbours()) {
      edge->to = j;
      edge->eta = eta_of(j);
      ++edge;
    }
  }

  /// The step of x. In double precision, so that x is rounded once.
  void move(std::uint32_t step) {
    const auto& options = run_.options;
    const double mu = options.learning_rate(step), scale = options.gradient_scale(step);
    double eta = 0;
    std::fill(pull_.begin(), pull_.end(), 0.0);
    for (const auto& edge : edges_) {
      eta += edge.eta;
      const double factor = edge.eta * edge.to.sign;
      for (std::size_t i = 0; i < pull_.size(); ++i) pull_[i] += factor * edge.z[i];
    }
    auto x = weights();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double own = x[i], g = gradient_[i] / scale + options.weight_decay * own;
      x[i] = static_cast<float>((own + mu * (pull_[i] - g)) / (1 + mu * eta));
    }
    learner_.replica().weights_changed();
  }

  void exchange(std::uint32_t step) {
    const auto x = weights();
    std::uint16_t channel = 0;  // every edge has draws of its own
    for (auto& edge : edges_) {
      if (!graph_.is_due(edge.to, step)) continue;
      y_.weights = edge.z;
      y_.buffers = learner_.replica().buffers();
      const auto twice = static_cast<float>(2 * edge.to.sign);
      for (std::size_t i = 0; i < x.size(); ++i) y_.weights[i] -= twice * x[i];
      send(step, {edge.to}, y_, channel++);
    }
    if (run_.options.asynchronous) return;
    for (auto& edge : edges_)
      if (graph_.is_due(edge.to, step)) take(edge);
    edges_.remove_if([this](const EdgeEnd& edge) { return dropped(edge.to); });
  }

  /// Brings what a neighbour has sent into z.
  void take(EdgeEnd& edge) {
    if (!receive(edge.to, theirs_)) return;
    for (std::size_t i = 0; i < edge.z.size(); ++i)
      edge.z[i] = kept_ * edge.z[i] + (1 - kept_) * theirs_.weights[i];
    if (theirs_.buffers.empty()) return;
    auto own = learner_.replica().buffers();
    const auto weight = static_cast<float>(edge.to.weight);
    for (std::size_t i = 0; i < own.size(); ++i) own[i] += weight * (theirs_.buffers[i] - own[i]);
    learner_.replica().set_buffers(own);
  }

  float kept_;
  std::list<EdgeEnd> edges_;  ///< in the order of the neighbours; checkpoints know where each z is
  std::vector<double> pull_;  ///< sum of eta_ij A_ij z_ij
  Point y_, theirs_;
};

struct Pdmm final : EdgeConsensus {
  explicit Pdmm(Run& run) : EdgeConsensus(run, 0) {}
};
struct Admm final : EdgeConsensus {
  explicit Admm(Run& run) : EdgeConsensus(run, 0.5F) {}
};

}  // namespace

Outcome pdmm(Run& run) { return run_peer<Pdmm>(run); }
Outcome admm(Run& run) { return run_peer<Admm>(run); }

}  // namespace train
