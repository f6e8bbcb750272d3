// SPDX-License-Identifier: Apache-2.0
// refused: limit_kernel: trap: 1 trap
// A constant of the host has no address in a kernel. Where a constexpr function takes one, nvcc says nothing and traps.
#include <algorithm>
inline constexpr double kMost = 8;
constexpr double limited(double x) { return std::min(x, kMost); }
__global__ void limit_kernel(double* x) { *x = limited(*x); }
