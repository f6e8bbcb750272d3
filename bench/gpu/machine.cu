// SPDX-License-Identifier: Apache-2.0
// What the device itself can do: the constants that predictions of kernels' times rest on.
#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

#include "yardsticks.hpp"

namespace atomo::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 30;
constexpr unsigned kThreads = 256;
constexpr int kSteps = 1024;  // of a chain of dependent instructions

__global__ void nothing() {}

__global__ void read_all(const float4* from, std::size_t count, float* sum) {
  float found = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const float4 v = from[i];
    found += v.x + v.y + v.z + v.w;
  }
  if (found == 12345.0f) *sum = found;  // never: the reads are kept
}

__global__ void write_all(float4* to, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    to[i] = make_float4(1, 2, 3, 4);
}

__global__ void add_to_one_word(unsigned long long* word) { atomicAdd(word, 1ull); }

/// Chains of one thread: each step needs the one before. The result keeps them alive.
enum class Chain {
  f64_division,
  f64_multiply_add,
  f32_multiply_add,
  shared_compare_and_swap,
  l2_load,
  fence
};

template <Chain kChain>
__global__ void walk(double* value, unsigned* words, long long* cycles) {
  __shared__ unsigned place;
  if (kChain == Chain::shared_compare_and_swap) place = 0;
  double x = *value, one = 1.0 + 1e-9 * x;
  float y = static_cast<float>(x), f = static_cast<float>(one);
  unsigned at = static_cast<unsigned>(x);
  const long long begin = clock64();
#pragma unroll 1
  for (int i = 0; i < kSteps; ++i) {
    if (kChain == Chain::f64_division) x = one / x;
    if (kChain == Chain::f64_multiply_add) x = __fma_rn(x, one, one);
    if (kChain == Chain::f32_multiply_add) y = __fmaf_rn(y, f, f);
    if (kChain == Chain::shared_compare_and_swap) at = atomicCAS(&place, at, at + 1);
    if (kChain == Chain::l2_load) at = __ldcg(words + at);
    if (kChain == Chain::fence) __threadfence();
  }
  *cycles = clock64() - begin;
  *value = x + static_cast<double>(y) + at;
}

using Function = std::function<void(benchmark::State&)>;

void add(const std::string& name, const Function& function) {
  benchmark::RegisterBenchmark(("machine/" + name).c_str(), [function](benchmark::State& state) {
    try {
      for (auto _ : state) function(state);
    } catch (const Error& error) {
      state.SkipWithError(error.what());
    }
  })->Iterations(1);
}

/// Blocks that fill the device several times over.
unsigned blocks() {
  int device = 0, multiprocessors = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  return 16 * static_cast<unsigned>(multiprocessors);
}

template <Chain kChain>
void add_chain(const Timer& timer, const std::string& name) {
  add(name, [&timer](benchmark::State& state) {
    constexpr std::size_t kWords = 1 << 16;
    const DeviceMemory value(8), words(4 * kWords), cycles(8);
    std::vector<unsigned> next(kWords);
    for (std::size_t i = 0; i < kWords; ++i) next[i] = static_cast<unsigned>((i + 4099) % kWords);
    check(cudaMemcpy(words.data, next.data(), words.bytes, cudaMemcpyHostToDevice));
    check(cudaMemset(value.data, 0, value.bytes));
    for (int warm = 0; warm < 3; ++warm)
      walk<kChain><<<1, 1, 0, timer.stream()>>>(static_cast<double*>(value.data),
                                                static_cast<unsigned*>(words.data),
                                                static_cast<long long*>(cycles.data));
    check(cudaGetLastError());
    check(cudaStreamSynchronize(timer.stream()));
    long long found = 0;
    check(cudaMemcpy(&found, cycles.data, sizeof found, cudaMemcpyDeviceToHost));
    state.counters["cycles"] = static_cast<double>(found) / kSteps;
  });
}

/// Launches of an empty kernel, one after another, the dependent ones told so or not.
void launch_nothing(const Timer& timer, int count, bool programmatic) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = timer.stream();
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  for (int i = 0; i < count; ++i) check(cudaLaunchKernelEx(&config, nothing));
}

}  // namespace

void register_machine(const Timer& timer) {
  add("copy", [&timer](benchmark::State& state) {
    const DeviceMemory from(kBytes), to(kBytes);
    check(cudaMemset(from.data, 1, kBytes));
    const double seconds = timer
                               .time([&] {
                                 check(cudaMemcpyAsync(to.data, from.data, kBytes,
                                                       cudaMemcpyDeviceToDevice, timer.stream()));
                               })
                               .median;
    state.counters["gbs"] = 2e-9 * static_cast<double>(kBytes) / seconds;
  });
  add("read", [&timer](benchmark::State& state) {
    const DeviceMemory from(kBytes), sum(4);
    check(cudaMemset(from.data, 1, kBytes));
    const double seconds = timer
                               .time([&] {
                                 read_all<<<blocks(), kThreads, 0, timer.stream()>>>(
                                     static_cast<const float4*>(from.data), kBytes / 16,
                                     static_cast<float*>(sum.data));
                                 check(cudaGetLastError());
                               })
                               .median;
    state.counters["gbs"] = 1e-9 * static_cast<double>(kBytes) / seconds;
  });
  add("write", [&timer](benchmark::State& state) {
    const DeviceMemory to(kBytes);
    const double seconds = timer
                               .time([&] {
                                 write_all<<<blocks(), kThreads, 0, timer.stream()>>>(
                                     static_cast<float4*>(to.data), kBytes / 16);
                                 check(cudaGetLastError());
                               })
                               .median;
    state.counters["gbs"] = 1e-9 * static_cast<double>(kBytes) / seconds;
  });
  add("atomic_adds_to_one_word", [&timer](benchmark::State& state) {
    const DeviceMemory word(8);
    const unsigned grid = blocks();
    const double seconds = timer
                               .time([&] {
                                 add_to_one_word<<<grid, kThreads, 0, timer.stream()>>>(
                                     static_cast<unsigned long long*>(word.data));
                                 check(cudaGetLastError());
                               })
                               .median;
    state.counters["ns"] = 1e9 * seconds / (double{kThreads} * grid);
  });
  for (const bool programmatic : {false, true}) {
    const std::string name = programmatic ? "programmatic_launch_gap" : "launch_gap";
    constexpr int kLaunches = 100;
    add(name, [&timer, programmatic](benchmark::State& state) {
      const auto work = [&] { launch_nothing(timer, kLaunches, programmatic); };
      state.counters["stream_us"] = 1e6 * timer.time(work).median / kLaunches;
      const Graph graph(timer.stream(), work);
      state.counters["graph_us"] =
          1e6 * timer.time([&] { graph.launch(timer.stream()); }).median / kLaunches;
    });
  }
  add_chain<Chain::f64_division>(timer, "f64_division");
  add_chain<Chain::f64_multiply_add>(timer, "f64_multiply_add");
  add_chain<Chain::f32_multiply_add>(timer, "f32_multiply_add");
  add_chain<Chain::shared_compare_and_swap>(timer, "shared_compare_and_swap");
  add_chain<Chain::l2_load>(timer, "l2_load");
  add_chain<Chain::fence>(timer, "fence");
}

}  // namespace atomo::bench
