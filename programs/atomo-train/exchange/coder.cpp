// SPDX-License-Identifier: Apache-2.0
/// \file
/// The options decide where a run encodes, and with that which coder it has.

#include "exchange/coder.hpp"

#include "command_line/options.hpp"

namespace train {

std::unique_ptr<Coder> make_coder(const Options& options, const atomo::Policy& policy,
                                  Threads& threads) {
  return options.on_device() ? make_device_coder(policy) : make_host_coder(threads);
}

atomo::Policy policy_of_compressors(const Options& options, const atomo::Policy& policy) {
  return options.on_device() ? policy.without_lossless() : policy;
}

}  // namespace train
