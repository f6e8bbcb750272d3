// SPDX-License-Identifier: Apache-2.0
// refused: sum_kernel: fused: 1 fma\.rn\.f32
// flags: -fmad=true
// A product and a sum that the flag lets nvcc contract.
__global__ void sum_kernel(const float* x, float* y) { y[threadIdx.x] = x[0] * x[1] + x[2]; }
