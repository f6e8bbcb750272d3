// SPDX-License-Identifier: Apache-2.0
// refused: architecture.cu asks for __CUDA_ARCH__
__global__ void architecture(int* out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  *out = 9;
#else
  *out = 8;
#endif
}
