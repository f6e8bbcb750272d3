// SPDX-License-Identifier: Apache-2.0
// Kernels that are right, and, one at a time, wrong: `planted_bugs NAME` plants the bug of that
// name and must be stopped, by the executor, a sanitizer or a wrong result; `planted_bugs none`
// must pass. The names, and who must see each, are in tests_planted.cmake.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include <mma.h>

#include "calls.hpp"
#include "cuda/cub.cuh"

namespace atomo::cuda {

using namespace model;
namespace {

consteval std::uint64_t bug(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<std::uint64_t>(c)) * 0x100000001B3u;
  return hash;
}
std::uint64_t bug_named(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<std::uint64_t>(c)) * 0x100000001B3u;
  return hash;
}

void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "planted_bugs: wrong: %s\n", what);
  std::exit(1);
}

// ---- one kernel with a bit of everything: 128 threads a block, an entry each

constexpr unsigned kThreads = 128, kWarps = kThreads / kLanes, kRounds = 3;
constexpr std::uint64_t kEntries = 1000;  // the last block is not full

struct Tile {
  unsigned value[kThreads];
  unsigned pair[kThreads];
  unsigned positive;
  unsigned warp_max[kWarps];  // last, so that what lies past it is past the object
};

__device__ unsigned max_of_warp(unsigned m, std::uint64_t planted) {
  if (planted == bug("wrong_mask")) return __reduce_max_sync(0xFFFFu, m);
  if (planted == bug("absent_lane") && lane() < 16) m = max(m, __shfl_sync(0xFFFFu, m, 20));
  if (planted == bug("divergent_shuffle") && lane() == 7) return m;
  return warp_max(m);
}

__device__ unsigned max_of_block(Tile& tile, unsigned m, std::uint64_t planted) {
  m = max_of_warp(m, planted);
  const unsigned warp = warp_in_block();
  if (lane() == 0 && !(planted == bug("uninitialised_shared") && warp == 1)) {
    unsigned* const slot = tile.warp_max;
    slot[planted == bug("shared_overrun") ? warp + 1 : warp] = m;
  }
  if (planted != bug("missing_barrier")) __syncthreads();
  if (planted == bug("divergent_barrier") && threadIdx.x < 100) __syncthreads();
  if (planted == bug("barriers_in_branches")) {
    if (threadIdx.x < 64)
      __syncthreads();
    else
      __syncthreads();
  }
  m = tile.warp_max[0];
  for (unsigned w = 1; w < kWarps; ++w) m = max(m, tile.warp_max[w]);
  return m;
}

// Every round hands values to the thread at the other end.
__device__ unsigned pass_around(Tile& tile, unsigned v, std::uint64_t planted) {
  for (unsigned round = 0; round < kRounds; ++round) {
    tile.value[threadIdx.x] = v;
    if (planted != bug("missing_barrier_before_reading")) __syncthreads();
    v = tile.value[kThreads - 1 - threadIdx.x] + round;
    if (planted != bug("missing_barrier_before_writing")) __syncthreads();
  }
  return v;
}

// And to the neighbour in the warp.
__device__ unsigned pass_to_neighbour(Tile& tile, unsigned v, std::uint64_t planted) {
  tile.pair[threadIdx.x] = v;
  if (planted == bug("shuffle_for_a_barrier"))
    v += __shfl_sync(kAllLanes, 0u, 0);
  else if (planted != bug("missing_syncwarp") &&
           !(planted == bug("missing_syncwarp_of_one") && warp_in_block() == kWarps - 1))
    __syncwarp();
  return tile.pair[threadIdx.x ^ 1];
}

__global__ void everything(const float* x, unsigned* out, unsigned long long* sums, std::uint64_t n,
                           std::uint64_t planted) {
  Tile& tile = shared<Tile>();
  unsigned* const copies = dynamic_shared<unsigned>();
  const unsigned t = threadIdx.x;
  const std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + t;
  if (t == 0) tile.positive = 0;
  const bool reads = planted == bug("read_past_the_end") ? i <= n : i < n;
  const unsigned bits = reads ? __float_as_uint(x[i]) : 0;
  const unsigned largest = max_of_block(tile, bits & 0x7FFFFFFFu, planted);
  if (bits != 0 && bits >> 31 == 0) {
    if (planted == bug("race_on_a_shared_word"))
      ++tile.positive;
    else
      atomicAdd(&tile.positive, 1u);
  }
  copies[t] = bits ^ largest;
  __syncthreads();
  const unsigned around = pass_around(tile, copies[kThreads - 1 - t], planted);
  const unsigned value = pass_to_neighbour(tile, around, planted);
  if (i < n || planted == bug("write_past_the_end")) out[i] = value;
  if (t != 0) return;
  if (planted == bug("race_between_blocks"))
    *sums += tile.positive;
  else
    atomicAdd(sums, tile.positive);
}

std::vector<unsigned> expected(const std::vector<float>& x, unsigned long long& sum) {
  std::vector<unsigned> out(x.size());
  sum = 0;
  for (std::size_t first = 0; first < x.size(); first += kThreads) {
    unsigned bits[kThreads] = {}, largest = 0;
    for (unsigned t = 0; t < kThreads && first + t < x.size(); ++t) {
      bits[t] = __float_as_uint(x[first + t]);
      largest = max(largest, bits[t] & 0x7FFFFFFFu);
      sum += x[first + t] > 0;
    }
    // An odd number of rounds turns the tile round, copying did so before, and neighbours swap.
    for (unsigned t = 0; t < kThreads && first + t < x.size(); ++t)
      out[first + t] = (bits[t ^ 1] ^ largest) + kRounds * (kRounds - 1) / 2;
  }
  return out;
}

// ---- what the host does

struct Device {
  cudaStream_t stream = nullptr;
  std::vector<void*> blocks;

  Device() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  ~Device() {
    for (void* const p : blocks) cudaFree(p);
    cudaStreamDestroy(stream);
  }
  template <typename T>
  T* make(std::size_t count) {
    void* p = nullptr;
    cudaMalloc(&p, count * sizeof(T));
    cudaMemset(p, 0, count * sizeof(T));
    blocks.push_back(p);
    return static_cast<T*>(p);
  }
  template <typename T>
  std::vector<T> get(const T* p, std::size_t count) {
    cudaStreamSynchronize(stream);
    std::vector<T> values(count);
    cudaMemcpy(values.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
};

void run_everything(std::uint64_t planted) {
  Device device;
  std::vector<float> x(kEntries);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 16) % 1000 - 500);
  float* const d_x = device.make<float>(kEntries);
  unsigned* const d_out = device.make<unsigned>(kEntries);
  unsigned long long* const d_sum = device.make<unsigned long long>(1);
  cudaMemcpy(d_x, x.data(), kEntries * sizeof(float), cudaMemcpyHostToDevice);
  const unsigned short_by = planted == bug("dynamic_shared_one_short") ? 1 : 0;
  Queue queue(device.stream);
  queue.launch_blocks(everything, (kEntries + kThreads - 1) / kThreads, kThreads,
                      (kThreads - short_by) * sizeof(unsigned), d_x, d_out, d_sum, kEntries,
                      planted);
  expect(queue.error() == cudaSuccess, "the launch");
  unsigned long long sum = 0;
  expect(expected(x, sum) == device.get(d_out, kEntries), "values");
  expect(device.get(d_sum, 1)[0] == sum, "sum");
}

// ---- small kernels, a bug each

__global__ void vectors(const float* x, float* out, std::uint64_t planted) {
  const float* const from = x + threadIdx.x * 4 + (planted == bug("misaligned_vector") ? 1 : 0);
  const float4 v = *reinterpret_cast<const float4*>(from);
  out[threadIdx.x] = (v.x + v.y) + (v.z + v.w);
}

__global__ void arithmetic(const float* x, unsigned* out, std::uint64_t planted) {
  const unsigned t = threadIdx.x;
  float y = x[t] * 1e30f;
  if (planted != bug("float_to_int")) y = y > 1000.0f ? 1000.0f : y;
  const unsigned below = planted == bug("shift_by_32") ? kAllLanes >> (kLanes - t) : (1u << t) - 1;
  const float product = x[t] * x[t];
  const float difference =
      planted == bug("fused_multiply_add") ? std::fma(x[t], x[t], -product) : x[t] * x[t] - product;
  out[t] = static_cast<unsigned>(static_cast<int>(y)) + __popc(below) +
           static_cast<unsigned>(difference != 0);
}

__global__ void big_index(unsigned* out, int width, std::uint64_t planted) {
  if (threadIdx.x != 0) return;
  const int last = width - 1;  // of 65,536 rows and columns
  if (planted == bug("index_overflow"))
    out[0] = static_cast<unsigned>(static_cast<std::uint64_t>(last * width + last) >> 20);
  else if (planted == bug("unsigned_index_overflow"))
    out[0] = static_cast<unsigned>(width) * static_cast<unsigned>(width) >> 20;
  else
    out[0] = static_cast<unsigned>((std::uint64_t(last) * std::uint64_t(width)) >> 20);
}

__global__ void waits(unsigned* flag, std::uint64_t planted) {
  if (threadIdx.x == 1 && planted != bug("endless_wait") && planted != bug("endless_silent_wait"))
    atomicExch(flag, 1u);
  if (threadIdx.x == 0) {
    while (atomicAdd(flag, 0u) == 0) {
      if (planted != bug("endless_silent_wait")) __nanosleep(100);
    }
  }
  if (planted == bug("warp_never_complete") && threadIdx.x % 32 == 3) {
    __syncthreads();
    return;
  }
  __syncwarp();
  __syncthreads();
}

__global__ void tickets(unsigned* words, unsigned* out, std::uint64_t planted) {
  if (threadIdx.x != 0) return;
  out[1 + blockIdx.x] = blockIdx.x;
  if (planted != bug("missing_fence")) __threadfence();
  if (atomicAdd(words, 1u) != gridDim.x - 1) return;
  if (planted != bug("missing_fence")) __threadfence();
  for (unsigned i = 0; i < gridDim.x; ++i) out[0] += out[1 + i];
}

/// Each block adds up what the blocks of earlier turns have written.
__global__ void turns(unsigned* taken, unsigned* done, unsigned* values, unsigned* out,
                      std::uint64_t planted) {
  if (threadIdx.x != 0) return;
  const unsigned turn = atomicAdd(taken, 1u);
  const auto wait = [done](unsigned other) {
    while (atomicAdd(&done[other], 0u) == 0) __nanosleep(100);
    __threadfence();
  };
  if (planted == bug("waits_for_a_later_turn") && turn + 1 < gridDim.x) wait(turn + 1);
  values[turn] = turn;
  __threadfence();
  atomicExch(&done[turn], 1u);
  for (unsigned i = 0; i < turn; ++i) {
    if (planted != bug("turn_without_a_wait")) wait(i);
    out[turn] += values[i];
  }
}

struct TwoScans {
  cub::WarpScan<unsigned>::TempStorage memory;
};
__global__ void scans(unsigned* out, std::uint64_t planted) {
  auto& memory = shared<TwoScans>().memory;
  unsigned once, twice;
  cub::WarpScan<unsigned>(memory).InclusiveSum(1u, once);
  if (planted != bug("scan_memory_used_again")) __syncwarp();
  cub::WarpScan<unsigned>(memory).InclusiveSum(once, twice);
  out[threadIdx.x] = twice;
}

struct alignas(32) Square {
  float value[16 * 20];
};
/// Matrices of ones, 16 x 8 and 8 x 16.
__global__ void matrices(float* out, std::uint64_t planted) {
  namespace wmma = nvcuda::wmma;
  auto& memory = shared<Square>();
  const float one = planted == bug("more_than_tf32") ? 1.0f + 0x1p-20f : 1.0f;
  for (unsigned i = threadIdx.x; i < 16 * 20; i += kLanes) memory.value[i] = one;
  __syncwarp();
  if (planted == bug("lanes_without_a_matrix") && lane() > 29) return;
  const float* at = memory.value;
  if (planted == bug("misaligned_matrix")) at += 4;
  if (planted == bug("different_matrices") && lane() == 9) at += 8;
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sums;
  wmma::fill_fragment(sums, 0.0f);
  wmma::load_matrix_sync(a, at, planted == bug("matrix_stride") ? 18 : 20);
  wmma::load_matrix_sync(b, at, 20);
  wmma::mma_sync(sums, a, b, sums);
  if (planted != bug("matrix_written_while_read")) __syncwarp();
  wmma::store_matrix_sync(memory.value, sums, 20, wmma::mem_row_major);
  if (planted != bug("matrix_read_while_written")) __syncwarp();
  out[lane()] = memory.value[20 * (lane() % 16) + lane() / 16 * 8];
}

void run_small(std::uint64_t planted) {
  Device device;
  float* const x = device.make<float>(256);
  float* const sums = device.make<float>(64);
  unsigned* const out = device.make<unsigned>(64);
  unsigned* const words = device.make<unsigned>(2);
  std::vector<float> values(256);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + static_cast<float>(i) * 0.1f;
  cudaMemcpy(x, values.data(), 256 * sizeof(float), cudaMemcpyHostToDevice);
  Queue queue(device.stream);
  queue.launch_blocks(vectors, 1, 32, 0, x, sums, planted);
  queue.launch_blocks(arithmetic, 1, 32, 0, x, out, planted);
  std::vector<unsigned> seen = device.get(out, 32);
  for (unsigned t = 0; t < 32; ++t) expect(seen[t] == 1000 + t, "arithmetic");
  queue.launch_blocks(big_index, 1, 32, 0, out, 65536, planted);
  expect(device.get(out, 1)[0] == 4095, "an index");
  queue.launch_blocks(waits, 1, 64, 0, words, planted);
  queue.launch_blocks(scans, 1, 32, 0, out, planted);
  seen = device.get(out, 32);
  for (unsigned t = 0; t < 32; ++t) expect(seen[t] == (t + 1) * (t + 2) / 2, "scans");
  queue.launch_blocks(matrices, 1, 32, 0, sums, planted);
  for (const float sum : device.get(sums, 32)) expect(sum == 8, "a product of matrices");
  cudaMemset(out, 0, 64 * sizeof(unsigned));
  queue.launch_blocks(tickets, 8, 32, 0, words + 1, out, planted);
  expect(device.get(out, 1)[0] == 28, "the last block's sum");
  for (int i = 0; i < 8; ++i) {  // of which some have an order that shows the bug
    cudaMemset(out, 0, 64 * sizeof(unsigned));
    cudaMemset(words, 0, sizeof(unsigned));
    queue.launch_blocks(turns, 16, 32, 0, words, out, out + 16, out + 32, planted);
    seen = device.get(out + 32, 16);
    for (unsigned turn = 1; turn < 16; ++turn)
      expect(seen[turn] == turn * (turn - 1) / 2, "a turn's sum");
  }
  expect(queue.error() == cudaSuccess, "a launch");
}

// ---- bugs of the host

__global__ void add_one(unsigned* p) { p[threadIdx.x] += 1; }
__global__ void add_dynamic(unsigned* p) {
  dynamic_shared<unsigned>()[threadIdx.x] = 1;
  p[threadIdx.x] += dynamic_shared<unsigned>()[threadIdx.x];
}

void run_memory(std::uint64_t planted) {
  Device device;
  unsigned* const p = device.make<unsigned>(32);
  unsigned host[32] = {};
  Queue queue(planted == bug("default_stream") ? nullptr : device.stream);
  hostexec::reset_calls();
  if (planted == bug("use_after_free")) {
    cudaFree(device.blocks.back());
    device.blocks.clear();
  }
  unsigned* const given = planted == bug("host_pointer") ? host : p;
  queue.launch_blocks(add_one, 1, planted == bug("too_many_threads") ? 2048 : 32, 0, given);
  expect(queue.error() == cudaSuccess, "the launch's configuration");
  if (planted == bug("waits_where_it_must_not")) cudaStreamSynchronize(device.stream);
  const auto forbidden = hostexec::forbidden_calls();
  expect(forbidden.empty(), forbidden.empty() ? "" : forbidden.front().c_str());
  if (planted != bug("read_before_it_is_done")) cudaStreamSynchronize(device.stream);
  if (planted == bug("host_reads_device")) host[0] = *static_cast<volatile unsigned*>(p);
  const cudaMemcpyKind kind =
      planted == bug("wrong_direction") ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  expect(cudaMemcpy(host, p, sizeof host, kind) == cudaSuccess, "the copy's direction");
  expect(host[31] == 1, "what the kernel wrote");
  constexpr std::size_t kBytes = 64 * 1024;
  if (planted != bug("shared_size_not_asked_for"))
    cudaFuncSetAttribute(add_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  queue.launch_blocks(add_dynamic, 1, 32, kBytes, p);
  expect(queue.error() == cudaSuccess, "a large dynamic shared memory");
  if (planted == bug("leak")) device.blocks.clear();
}

// Two streams: the second adds to what the first has set, after an event.
void run_streams(std::uint64_t planted) {
  Device first, second;
  unsigned* const p = first.make<unsigned>(32);
  cudaEvent_t done;
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  cudaMemsetAsync(p, 1, 32 * sizeof(unsigned), first.stream);
  cudaEventRecord(done, first.stream);
  if (planted != bug("streams_not_ordered")) cudaStreamWaitEvent(second.stream, done, 0);
  Queue(second.stream).launch_blocks(add_one, 1, 32, 0, p);
  expect(second.get(p, 1)[0] == 0x01010102, "the second stream's sum");
  cudaEventDestroy(done);
}

void run_graph(std::uint64_t planted) {
  Device device;
  unsigned* const p = device.make<unsigned>(32);
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeGlobal);
  Queue(device.stream).launch_blocks(add_one, 1, 32, 0, p);
  if (planted == bug("capture_waits")) cudaStreamSynchronize(device.stream);
  if (planted == bug("capture_allocates")) device.make<unsigned>(1);
  if (planted == bug("capture_on_another_stream")) cudaMemset(p, 0, 32 * sizeof(unsigned));
  if (planted != bug("capture_on_another_stream"))
    cudaMemsetAsync(p + 1, 0, sizeof(unsigned), device.stream);
  expect(cudaStreamEndCapture(device.stream, &graph) == cudaSuccess, "the capture");
  cudaGraphExec_t executable = nullptr;
  cudaGraphInstantiate(&executable, graph, 0);
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(executable, device.stream);
  const std::vector<unsigned> seen = device.get(p, 2);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  expect(seen[0] == 3 && seen[1] == 0, "what the graph wrote");
}

int run(const char* name) {
  const std::uint64_t planted = bug_named(name);
  run_everything(planted);
  run_small(planted);
  run_memory(planted);
  run_streams(planted);
  run_graph(planted);
  return 0;
}

}  // namespace
}  // namespace atomo::cuda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: planted_bugs NAME|none\n", stderr);
    return 2;
  }
  // In a process of its own: an abort must not look to ctest like a crash of the test.
  const pid_t child = fork();
  if (child == 0) return atomo::cuda::run(argv[1]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 2;
  if (status == 0) std::puts("planted_bugs: nothing was found");
  return status == 0 ? 0 : 1;
}
