// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What the library's times on a device are held against.

#include "device.hpp"

namespace atomo::bench {

/// Registers machine/NAME: bandwidths, gaps between launches, latencies of instructions.
/// \param timer outlives the benchmarks
void register_machine(const Timer& timer);

/// Registers peers/NAME: sorts, selections, histograms and scans of CUB, products of cuBLAS,
/// eigenvectors of cuSOLVER, of the sizes that the codecs meet.
/// \param timer outlives the benchmarks
void register_peers(const Timer& timer);

}  // namespace atomo::bench
