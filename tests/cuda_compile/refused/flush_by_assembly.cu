// SPDX-License-Identifier: Apache-2.0
// refused: sum_kernel: approximate: 1 add\.rn\.ftz\.f32
// Subnormals become zeros here, whatever the flags.
__global__ void sum_kernel(const float* x, float* y) {
  float sum;
  asm("{ add.rn.ftz.f32 %0, %1, %2; }" : "=f"(sum) : "f"(x[0]), "f"(x[1]));
  y[threadIdx.x] = sum;
}
