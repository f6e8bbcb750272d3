// SPDX-License-Identifier: Apache-2.0
// refused: bound_kernel: minmax: 1 max\.f32
// Ignores NaN, and does not tell -0 from 0.
__global__ void bound_kernel(const float* x, float* y) { y[threadIdx.x] = fmaxf(x[0], x[1]); }
