// SPDX-License-Identifier: Apache-2.0
// What CUB, Thrust, cuBLAS and cuSOLVER take for work that the codecs also do.
#include <benchmark/benchmark.h>
#include <cublas_v2.h>
#include <cusolverDn.h>
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/transform_reduce.h>

#include <cub/device/device_histogram.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#include <string>

#include "../models.hpp"
#include "yardsticks.hpp"

namespace atomo::bench {
namespace {

constexpr int kEntries = 25'000'000;

using bench::check;

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw Error("cuBLAS: status " + std::to_string(status));
}
void check(cusolverStatus_t status) {
  if (status != CUSOLVER_STATUS_SUCCESS) throw Error("cuSOLVER: status " + std::to_string(status));
}

/// Gradients of 25 M entries on the device.
const DeviceMemory& entries() {
  static const DeviceMemory memory(sizeof(float) * kEntries);
  static const bool filled = [] {
    const auto values = make_gradients({{"tensor", {5000, kEntries / 5000}}});
    check(cudaMemcpy(memory.data, values.data(), memory.bytes, cudaMemcpyHostToDevice));
    return true;
  }();
  static_cast<void>(filled);
  return memory;
}
const float* input() { return static_cast<const float*>(entries().data); }

struct IsLarge {
  __device__ bool operator()(float x) const { return fabsf(x) > 3e-3f; }
};

void add(const Timer& timer, const std::string& name,
         const std::function<Times(const Timer&)>& measure) {
  benchmark::RegisterBenchmark(("peers/" + name).c_str(),
                               [&timer, measure](benchmark::State& state) {
                                 try {
                                   for (auto _ : state) {
                                     const Times times = measure(timer);
                                     state.SetIterationTime(times.median);
                                     state.counters["us"] = 1e6 * times.median;
                                     state.counters["us_least"] = 1e6 * times.least;
                                     state.counters["us_most"] = 1e6 * times.most;
                                   }
                                 } catch (const Error& error) {
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->UseManualTime()
      ->Iterations(1);
}

/// Times a device-wide algorithm of CUB: `call(storage, bytes)` is made once to learn the storage.
template <typename Call>
Times time_cub(const Timer& timer, const Call& call) {
  std::size_t bytes = 0;
  check(call(nullptr, bytes));
  const DeviceMemory storage(bytes + 1);
  return timer.time([&] { check(call(storage.data, bytes)); });
}

void add_cub(const Timer& timer) {
  add(timer, "cub_sort_keys_25M", [](const Timer& on) {
    const DeviceMemory out(entries().bytes);
    return time_cub(on, [&](void* storage, std::size_t& bytes) {
      return cub::DeviceRadixSort::SortKeysDescending(
          storage, bytes, input(), static_cast<float*>(out.data), kEntries, 0, 32, on.stream());
    });
  });
  add(timer, "cub_select_25M", [](const Timer& on) {
    const DeviceMemory out(entries().bytes), count(8);
    return time_cub(on, [&](void* storage, std::size_t& bytes) {
      return cub::DeviceSelect::If(storage, bytes, input(), static_cast<float*>(out.data),
                                   static_cast<int*>(count.data), kEntries, IsLarge{}, on.stream());
    });
  });
  add(timer, "cub_histogram_25M", [](const Timer& on) {
    constexpr int kBins = 2048;
    const DeviceMemory counts(sizeof(int) * kBins);
    return time_cub(on, [&](void* storage, std::size_t& bytes) {
      return cub::DeviceHistogram::HistogramEven(storage, bytes, input(),
                                                 static_cast<int*>(counts.data), kBins + 1, -0.01f,
                                                 0.01f, kEntries, on.stream());
    });
  });
  add(timer, "cub_scan_25M", [](const Timer& on) {
    const DeviceMemory out(entries().bytes);
    return time_cub(on, [&](void* storage, std::size_t& bytes) {
      return cub::DeviceScan::ExclusiveSum(storage, bytes, input(), static_cast<float*>(out.data),
                                           kEntries, on.stream());
    });
  });
}

struct Magnitude {
  __host__ __device__ float operator()(float x) const { return x < 0 ? -x : x; }
};
struct Square {
  __host__ __device__ double operator()(float x) const { return static_cast<double>(x) * x; }
};

/// Thrust takes its storage itself and waits for what it returns: both are in its times.
void add_thrust(const Timer& timer) {
  add(timer, "thrust_sort_magnitudes_25M", [](const Timer& on) {
    const DeviceMemory out(entries().bytes);
    const auto from = thrust::device_pointer_cast(input());
    const auto to = thrust::device_pointer_cast(static_cast<float*>(out.data));
    return on.time([&] {
      const auto policy = thrust::cuda::par.on(on.stream());
      thrust::transform(policy, from, from + kEntries, to, Magnitude());
      thrust::sort(policy, to, to + kEntries, thrust::greater<float>());
    });
  });
  add(timer, "thrust_squares_25M", [](const Timer& on) {
    const auto from = thrust::device_pointer_cast(input());
    return on.time([&] {
      benchmark::DoNotOptimize(thrust::transform_reduce(thrust::cuda::par.on(on.stream()), from,
                                                        from + kEntries, Square(), 0.0,
                                                        thrust::plus<double>()));
    });
  });
}

/// A X of every convolution and matrix of a ResNet-50, in one call of cuBLAS: the first product of
/// a sketch of rank `rank`.
Times time_grouped(const Timer& timer, int rank, bool tf32) {
  std::vector<int> m, n, k, sizes;
  std::vector<const float*> a, b;
  std::vector<float*> c;
  std::vector<LayerSpec> matrices;
  for (const LayerSpec& layer : resnet50())
    if (layer.shape.rank() > 1) matrices.push_back(layer);
  std::size_t elements = 0, widest = 0, rows_of_all = 0;
  for (const LayerSpec& layer : matrices) {
    elements += layer.shape.elements();
    const auto rows = static_cast<std::size_t>(layer.shape[0]);
    widest = std::max(widest, layer.shape.elements() / rows);
    rows_of_all += rows;
  }
  const auto width = static_cast<std::size_t>(rank);
  const DeviceMemory left(4 * elements), right(4 * widest * width), out(4 * rows_of_all * width);
  const auto values = make_gradients(matrices);
  check(cudaMemcpy(left.data, values.data(), left.bytes, cudaMemcpyHostToDevice));
  check(cudaMemcpy(right.data, values.data(), std::min(right.bytes, left.bytes),
                   cudaMemcpyHostToDevice));
  std::size_t at = 0, row = 0;
  for (const LayerSpec& layer : matrices) {  // row-major matrices are columns' transposes
    const auto rows = static_cast<std::size_t>(layer.shape[0]);
    m.push_back(rank);
    n.push_back(static_cast<int>(rows));
    k.push_back(static_cast<int>(layer.shape.elements() / rows));
    sizes.push_back(1);
    a.push_back(static_cast<const float*>(right.data));
    b.push_back(static_cast<const float*>(left.data) + at);
    c.push_back(static_cast<float*>(out.data) + row * width);
    at += layer.shape.elements();
    row += rows;
  }
  const std::size_t count = m.size();
  const DeviceMemory pa(8 * count), pb(8 * count), pc(8 * count);
  check(cudaMemcpy(pa.data, a.data(), pa.bytes, cudaMemcpyHostToDevice));
  check(cudaMemcpy(pb.data, b.data(), pb.bytes, cudaMemcpyHostToDevice));
  check(cudaMemcpy(pc.data, c.data(), pc.bytes, cudaMemcpyHostToDevice));
  const std::vector<cublasOperation_t> plain(count, CUBLAS_OP_N);
  const std::vector<float> ones(count, 1.0f), zeros(count, 0.0f);
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle));
  check(cublasSetStream(handle, timer.stream()));
  const Times times = timer.time([&] {
    check(cublasGemmGroupedBatchedEx(
        handle, plain.data(), plain.data(), m.data(), n.data(), k.data(), ones.data(),
        static_cast<const void* const*>(pa.data), CUDA_R_32F, m.data(),
        static_cast<const void* const*>(pb.data), CUDA_R_32F, k.data(), zeros.data(),
        static_cast<void* const*>(pc.data), CUDA_R_32F, m.data(), static_cast<int>(count),
        sizes.data(), tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F));
  });
  check(cublasDestroy(handle));
  return times;
}

/// Eigenvalues and eigenvectors of one symmetric matrix in f64.
Times time_eigenvectors(const Timer& timer, int order) {
  const auto n = static_cast<std::size_t>(order);
  std::vector<double> symmetric(n * n);
  Draws draws;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j)
      symmetric[i * n + j] = symmetric[j * n + i] = static_cast<double>(draws.even());
  const DeviceMemory source(8 * n * n), matrix(8 * n * n), values(8 * n), info(4);
  check(cudaMemcpy(source.data, symmetric.data(), source.bytes, cudaMemcpyHostToDevice));
  cusolverDnHandle_t handle = nullptr;
  check(cusolverDnCreate(&handle));
  check(cusolverDnSetStream(handle, timer.stream()));
  int work = 0;
  check(cusolverDnDsyevd_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, order,
                                    static_cast<double*>(matrix.data), order,
                                    static_cast<double*>(values.data), &work));
  const DeviceMemory space(8 * static_cast<std::size_t>(work));
  const Times times = timer.time([&] {
    check(cudaMemcpyAsync(matrix.data, source.data, source.bytes, cudaMemcpyDeviceToDevice,
                          timer.stream()));
    check(cusolverDnDsyevd(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, order,
                           static_cast<double*>(matrix.data), order,
                           static_cast<double*>(values.data), static_cast<double*>(space.data),
                           work, static_cast<int*>(info.data)));
  });
  check(cusolverDnDestroy(handle));
  return times;
}

}  // namespace

void register_peers(const Timer& timer) {
  add_cub(timer);
  add_thrust(timer);
  for (const int rank : {8, 64}) {
    for (const bool tf32 : {false, true}) {
      const std::string name = "cublas_products_resnet50_rank" + std::to_string(rank);
      add(timer, name + (tf32 ? "_tf32" : "_f32"),
          [rank, tf32](const Timer& on) { return time_grouped(on, rank, tf32); });
    }
  }
  for (const int order : {64, 512})
    add(timer, "cusolver_eigenvectors_" + std::to_string(order),
        [order](const Timer& on) { return time_eigenvectors(on, order); });
}

}  // namespace atomo::bench
