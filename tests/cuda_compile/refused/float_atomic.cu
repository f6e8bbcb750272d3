// SPDX-License-Identifier: Apache-2.0
// refused: total_kernel: atomic: 1 (atom|red)\.global\.add\.f32
// A sum in the order of arrival.
__global__ void total_kernel(const float* x, float* y) { atomicAdd(y, x[threadIdx.x]); }
