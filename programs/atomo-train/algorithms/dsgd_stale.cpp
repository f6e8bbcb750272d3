// SPDX-License-Identifier: Apache-2.0
/// \file
/// DSGD as asynchronous implementations run it: a node averages at every step with the last models
/// that it has of its neighbours, though new ones come only when an edge's slot is.
///
///   every node i, every step
///   ------------------------
///   for j in N(i) whose slot the step is: exchange, x^_j <- x_j       while the gradient is made
///   x_i <- optimiser(x_i, g)
///   x_i <- x_i + sum over j in N(i) of W_ij (x^_j - x_i)
///
/// What is old holds a node back: with n neighbours of weight 1 / (1 + n) whose models come all at
/// once, every R steps, those R steps move all nodes by 1 / n of a gradient, less (1 + n)^-R of it:
/// about n R times slower than SGD; where their ages are spread, a steps in the mean, 1 + n a times.
/// `dsgd` goes without that.

#include <map>

#include "algorithms/algorithms.hpp"
#include "roles/node.hpp"

namespace train {
namespace {

class DsgdStale final : public Node {
 public:
  explicit DsgdStale(Run& run) : Node(run), change_(zeros()) {
    for (const auto& j : neighbours()) {
      last_[j.node] = here();  // all begin with the same weights
      const std::string name = "last-of-" + std::to_string(j.node + 1);
      keep(name + "-weights", last_[j.node].weights, Without::mean_weights, j.node);
      keep(name + "-buffers", last_[j.node].buffers, Without::mean_buffers, j.node);
    }
    begin();
  }

  [[nodiscard]] bool train(std::uint32_t step) {
    const auto edges = due(step);
    send(step, edges, here());
    back_propagate(step);
    for (const auto& j : edges) receive(j, last_[j.node]);
    take_step(step);
    const Point own = here();
    change_.clear();
    for (const auto& j : neighbours()) change_.add_difference(j.weight, last_[j.node], own);
    move_by(change_);
    return end_step(step);
  }

 private:
  std::map<int, Point> last_;  ///< x^ of each neighbour
  Point change_;
};

}  // namespace

Outcome dsgd_stale(Run& run) { return run_peer<DsgdStale>(run); }

}  // namespace train
