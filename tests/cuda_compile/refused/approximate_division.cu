// SPDX-License-Identifier: Apache-2.0
// refused: ratio_kernel: approximate: 1 div\.approx\.f32
// A division to two units in the last place.
__global__ void ratio_kernel(const float* x, float* y) { y[threadIdx.x] = __fdividef(x[0], x[1]); }
