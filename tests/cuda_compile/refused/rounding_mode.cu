// SPDX-License-Identifier: Apache-2.0
// refused: ratio_kernel: rounding: 1 div\.rz\.f32
// Rounds towards zero.
__global__ void ratio_kernel(const float* x, float* y) { y[threadIdx.x] = __fdiv_rz(x[0], x[1]); }
