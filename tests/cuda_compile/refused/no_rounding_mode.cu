// SPDX-License-Identifier: Apache-2.0
// refused: sum_kernel: contractable: 1 mul\.f32
// ptxas may contract what has no rounding mode.
__global__ void sum_kernel(const float* x, float* y) {
  float product;
  asm("mul.f32 %0, %1, %2;" : "=f"(product) : "f"(x[0]), "f"(x[1]));
  y[threadIdx.x] = product;
}
