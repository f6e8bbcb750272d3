// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/namespaces.hpp"

namespace atomo::cuda {

/// Warps that share a block in `Queue::launch_warps`, 1 to 8. Tests change it: results must not.
inline unsigned warps_per_block = 4;

}  // namespace atomo::cuda
