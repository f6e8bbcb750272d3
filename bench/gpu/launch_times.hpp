// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Times of single kernels of the library, whose launches the linker hands to this program
/// (`--wrap=cudaLaunchKernelExC`).

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"

namespace atomo::bench {

/// Kernels in the order of their launches, with the median time of each in seconds: from the event
/// behind the launch before (or before all) to the event behind its own, so about a microsecond of
/// an event is in each. Work that is queued first keeps the device busy until all are launched.
std::vector<std::pair<std::string, double>> launch_times(const Timer& timer,
                                                         const std::function<void()>& work);

}  // namespace atomo::bench
