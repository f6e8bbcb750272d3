// SPDX-License-Identifier: Apache-2.0
// refused: print_kernel: call: 1 call vprintf
// A kernel prints nothing.
#include <cstdio>
__global__ void print_kernel(int x) { printf("%d\n", x); }
