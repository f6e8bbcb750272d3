// SPDX-License-Identifier: Apache-2.0
// refused: sum_kernel: approximate: 1 add\.rn\.ftz\.f32
// flags: -ftz=true
// Subnormals become zeros.
__global__ void sum_kernel(const float* x, float* y) { y[threadIdx.x] = x[0] + x[1]; }
