// SPDX-License-Identifier: Apache-2.0
// refused: spill_kernel: [0-9]+ bytes spilled on sm_90
// 256 live values, where 64 registers are a thread's.
__global__ void __launch_bounds__(1024) spill_kernel(const float* x, float* y) {
  float value[256];
#pragma unroll
  for (int i = 0; i < 256; ++i) value[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 256; ++i) y[i * 1024 + threadIdx.x] = value[i] / value[255 - i];
}
