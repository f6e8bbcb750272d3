// SPDX-License-Identifier: Apache-2.0
// refused: power_kernel: approximate: .*ex2\.approx
// Part of a library function: the last bits are its own.
__global__ void power_kernel(const float* x, float* y) { y[threadIdx.x] = exp2f(x[0]); }
