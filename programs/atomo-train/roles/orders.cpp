// SPDX-License-Identifier: Apache-2.0
/// \file
/// Servers and workers have to agree on a few facts and derive them from the options instead of
/// sending them: whether the options go together, by which policy changes of weights are encoded,
/// and how many steps a round has.

#include "roles/orders.hpp"

#include <algorithm>
#include <stdexcept>

namespace train {

void check_server_options(const Options& options, int workers) {
  if (options.aggregate > static_cast<std::uint32_t>(workers)) {
    throw std::runtime_error("--aggregate " + std::to_string(options.aggregate) + ": there are " +
                             std::to_string(workers) + " workers");
  }
  if (options.double_buffer && options.aggregate != 0) {
    throw std::runtime_error(
        "--double-buffer does not go with --aggregate: a worker that is a step ahead cannot skip "
        "forward");
  }
}

std::string down_policy(const Plan& plan, const Options& options) {
  if (!options.down_policy.empty()) return options.down_policy;
  return plan.compresses_down ? options.policy : "";
}

atomo::Policy shard_policy(const Plan& plan, const Options& options) {
  const std::string down = down_policy(plan, options);
  return atomo::Policy::parse(down.empty() ? options.policy : down);
}

std::uint32_t steps_of_round(const Plan& plan, const Options& options, std::uint32_t step) {
  if (plan.rounds != Rounds::of_local_steps) return 1;
  return std::min(options.local_steps, options.steps - step);
}

}  // namespace train
