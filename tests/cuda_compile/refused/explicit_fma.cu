// SPDX-License-Identifier: Apache-2.0
// refused: sum_kernel: fused: 1 fma\.rn\.f64
// An fma that no line of allowed.txt speaks of.
__global__ void sum_kernel(const double* x, double* y) { y[threadIdx.x] = fma(x[0], x[1], x[2]); }
