// SPDX-License-Identifier: Apache-2.0
/// \file
/// DSGD: gradient steps of its own, and now and then an average with the neighbours.
///
///   every node i, every step t; an edge (i, j) has slots, R is the period
///   ----------------------------------------------------------------------
///   x_i <- optimiser(x_i, back-propagation at x_i)
///   for the neighbours j with the slot t mod R, all at once:
///     send x_i, receive x_j
///     x_i <- x_i + sum over j of W_ij (x_j - x_i)        Metropolis weights
///
/// The sum is doubly stochastic whichever edges are due. Under a codec every x of the sum is what
/// is decoded, a node's own too. Running statistics of batch normalisation are averaged alike.
/// Asynchronously a node takes what has come from a neighbour last, however old, and passes over
/// those of whom nothing has come yet.

#include <map>
#include <set>

#include "algorithms/algorithms.hpp"
#include "roles/node.hpp"

namespace train {
namespace {

class Dsgd final : public Node {
 public:
  explicit Dsgd(Run& run) : Node(run), change_(zeros()) { begin(); }

  [[nodiscard]] bool train(std::uint32_t step) {
    back_propagate(step);
    take_step(step);
    const auto edges = due(step);
    send(step, edges, here(), sent_);
    change_.clear();
    for (const auto& j : edges) {
      auto& theirs = theirs_[j.node];
      if (receive(j, theirs)) heard_.insert(j.node);
      if (heard_.contains(j.node) && !dropped(j)) change_.add_difference(j.weight, theirs, sent_);
    }
    move_by(change_);
    return end_step(step);
  }

 private:
  Point sent_, change_;
  std::map<int, Point> theirs_;  ///< by node
  std::set<int> heard_;
};

}  // namespace

Outcome dsgd(Run& run) { return run_peer<Dsgd>(run); }

}  // namespace train
