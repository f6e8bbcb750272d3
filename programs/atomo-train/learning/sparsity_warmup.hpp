// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The warm-up of Deep Gradient Compression (Lin et al., arXiv 1712.01887, section 3.3): gradients change
/// fast at first, so more of their entries are sent there.

#include <cstdint>
#include <string>

namespace train {

/// The policy with each share `keep=` raised to at least 0.25^(stage + 1): 0.25, 0.0625, 0.015625, ... as
/// `atomo.warm_up` of Python has it. \throws std::runtime_error for a policy without a `keep=`, and for one
/// that is a count.
[[nodiscard]] std::string warmed_up(const std::string& policy, std::uint32_t stage);

}  // namespace train
