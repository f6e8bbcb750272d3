// SPDX-License-Identifier: Apache-2.0
// refused: root: approximate: 1 rsqrt\.approx\.f32
// A function that is not inlined is looked at too.
__device__ __noinline__ float root(float x) { return __frsqrt_rn(x) + rsqrtf(x); }
__global__ void root_kernel(const float* x, float* y) { y[threadIdx.x] = root(x[0]); }
