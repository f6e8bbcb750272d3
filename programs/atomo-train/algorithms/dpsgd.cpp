// SPDX-License-Identifier: Apache-2.0
/// \file
/// D-PSGD (arXiv 1705.09056): a gradient step and an average with the neighbours at once.
///
///   every node i, every step
///   ------------------------
///   send x_i to the neighbours N(i)
///   g <- back-propagation at x_i, while messages travel
///   y <- optimiser(x_i, g)                          SGD: x_i - gamma (g + weight decay x_i)
///   x_i <- y + sum over j in N(i) of W_ij (x_j - x_i)
///
/// The x of the sum are those that were sent, so with SGD it is x_i <- sum_j W_ij x_j - gamma g
/// with the gradient at the point before the average. Running statistics of batch normalisation are
/// averaged with the same weights. Under a codec every x of the sum is what is decoded, a node's
/// own too, so that the mean over the nodes stays what it is. With a period, the sum is over the
/// neighbours whose slot the step is.

#include "algorithms/algorithms.hpp"
#include "roles/node.hpp"

namespace train {
namespace {

class Dpsgd final : public Node {
 public:
  explicit Dpsgd(Run& run) : Node(run), change_(zeros()) { begin(); }

  [[nodiscard]] bool train(std::uint32_t step) {
    const auto edges = due(step);
    send(step, edges, here(), sent_);
    back_propagate(step);
    change_.clear();
    for (const auto& j : edges) {
      if (receive(j, theirs_)) change_.add_difference(j.weight, theirs_, sent_);
    }
    take_step(step);
    move_by(change_);
    return end_step(step);
  }

 private:
  Point sent_, theirs_, change_;
};

}  // namespace

Outcome dpsgd(Run& run) { return run_peer<Dpsgd>(run); }

}  // namespace train
