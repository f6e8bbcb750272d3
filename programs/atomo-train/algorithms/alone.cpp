// SPDX-License-Identifier: Apache-2.0
/// \file
/// No exchange at all: what the others have to beat.
///
///   every node i, every step
///   ------------------------
///   x_i <- optimiser(x_i, back-propagation at x_i)

#include "algorithms/algorithms.hpp"
#include "roles/node.hpp"

namespace train {
namespace {

class Alone final : public Node {
 public:
  explicit Alone(Run& run) : Node(run) { begin(); }

  [[nodiscard]] bool train(std::uint32_t step) {
    back_propagate(step);
    take_step(step);
    return end_step(step);
  }
};

}  // namespace

Outcome alone(Run& run) { return run_peer<Alone>(run); }

}  // namespace train
