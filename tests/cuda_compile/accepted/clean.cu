// SPDX-License-Identifier: Apache-2.0
// Sums, products, a quotient and a root, each rounded once; shared memory; nothing to refuse.
#include <cstdint>
#include <span>

namespace {

struct Tile {
  float value[128];
};

template <bool Root>
__global__ void mean_kernel(const float* x, float* y, std::uint64_t n) {
  __shared__ Tile tile;
  const std::uint64_t i = std::uint64_t{blockIdx.x} * 128 + threadIdx.x;
  tile.value[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  const float other = tile.value[threadIdx.x ^ 1];
  if (i < n) y[i] = Root ? sqrtf(x[i] * x[i] + other * other) : (x[i] + other) / 3.0f;
}

__global__ void root_kernel(const double* x, double* y) {
  y[threadIdx.x] = sqrt(x[threadIdx.x]) / (x[threadIdx.x] * x[threadIdx.x] + 1.5);
}

}  // namespace

void launch(const float* x, float* y, double* z, std::uint64_t n) {
  mean_kernel<true><<<1, 128>>>(x, y, n);
  mean_kernel<false><<<1, 128>>>(x, y, n);
  root_kernel<<<1, 32>>>(z, z);
}
