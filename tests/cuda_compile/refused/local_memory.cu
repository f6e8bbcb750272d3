// SPDX-License-Identifier: Apache-2.0
// refused: table_kernel: stack: 128 bytes
// An array that is indexed at run time lies in local memory.
__global__ void table_kernel(const int* x, int* y) {
  int table[32];
  for (int i = 0; i < 32; ++i) table[x[i] & 31] = i;
  y[threadIdx.x] = table[x[32] & 31];
}
