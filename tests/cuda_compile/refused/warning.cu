// SPDX-License-Identifier: Apache-2.0
// refused: variable "unused" was declared
// A warning is an error.
__global__ void idle_kernel(int* y) {
  int unused;
  y[0] = 1;
}
