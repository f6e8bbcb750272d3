// SPDX-License-Identifier: Apache-2.0
/// Thrust's side of test_device_oracles.cpp.

#include "oracles.hpp"

#include <thrust/count.h>
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/transform_reduce.h>
#include <thrust/tuple.h>

namespace atomo::test {
namespace {

struct Magnitude {
  __host__ __device__ float operator()(float x) const { return x < 0 ? -x : x; }
};
struct WideMagnitude {
  __host__ __device__ double operator()(float x) const { return x < 0 ? -x : x; }
};
using Pair = thrust::tuple<float, float>;
struct IsKept {
  __host__ __device__ bool operator()(const Pair& p) const { return thrust::get<1>(p) != 0; }
};
struct IsChanged {
  __host__ __device__ bool operator()(const Pair& p) const {
    return thrust::get<1>(p) != 0 && thrust::get<1>(p) != thrust::get<0>(p);
  }
};
struct IsSmall {
  float threshold;
  __host__ __device__ bool operator()(const Pair& p) const {
    return thrust::get<1>(p) != 0 && Magnitude()(thrust::get<0>(p)) < threshold;
  }
};
struct IsMissing {
  float threshold;
  __host__ __device__ bool operator()(const Pair& p) const {
    return thrust::get<1>(p) == 0 && Magnitude()(thrust::get<0>(p)) > threshold;
  }
};

}  // namespace

KeptEntries look_at_kept(const float* x, const float* y, std::uint64_t n, std::uint64_t k) {
  const auto from = thrust::device_pointer_cast(x);
  const auto to = thrust::device_pointer_cast(y);
  const auto count = static_cast<std::ptrdiff_t>(n);
  KeptEntries found;
  {
    thrust::device_vector<float> sorted(n);
    thrust::transform(from, from + count, sorted.begin(), Magnitude());
    thrust::sort(sorted.begin(), sorted.end(), thrust::greater<float>());
    found.threshold = sorted[k - 1];
  }
  const auto pairs = thrust::make_zip_iterator(thrust::make_tuple(from, to));
  const auto number = [&](auto predicate) {
    return static_cast<std::uint64_t>(thrust::count_if(pairs, pairs + count, predicate));
  };
  found.kept = number(IsKept{});
  found.changed = number(IsChanged{});
  found.small = number(IsSmall{found.threshold});
  found.missing = number(IsMissing{found.threshold});
  return found;
}

float largest_magnitude(const float* x, std::uint64_t n) {
  const auto from = thrust::device_pointer_cast(x);
  return thrust::transform_reduce(from, from + static_cast<std::ptrdiff_t>(n), Magnitude(), 0.0f,
                                  thrust::maximum<float>());
}

double mean_magnitude(const float* x, std::uint64_t n) {
  const auto from = thrust::device_pointer_cast(x);
  return thrust::transform_reduce(from, from + static_cast<std::ptrdiff_t>(n), WideMagnitude(), 0.0,
                                  thrust::plus<double>()) /
         static_cast<double>(n);
}

}  // namespace atomo::test
