// SPDX-License-Identifier: Apache-2.0
// Encode, decode and decode_add of every codec with a CUDA twin, on the current device.
//
// Every figure is in bytes of the f32 tensor a second, timed with CUDA events around one call; the
// L2 cache is flushed before each by writing twice its size. `of_copy` relates it to a
// device-to-device copy of the same tensor, timed in the same way in the same process, a byte
// copied counted once.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomo/atomo.hpp>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr const char* kSpecs[] = {"identity",
                                  "identity:dtype=bf16",
                                  "atomo:atoms=blocks,bits=1",
                                  "atomo:atoms=blocks,bits=0.25",
                                  "atomo:atoms=rows,bits=1",
                                  "atomo:atoms=coordinate,bits=1",
                                  "qsgd:bits=2",
                                  "qsgd:bits=4",
                                  "qsgd:bits=8",
                                  "terngrad",
                                  "sign",
                                  "sign:scale=mean",
                                  "topk:keep=0.01",
                                  "randomk:keep=0.01"};

void check(cudaError_t error) {
  if (error != cudaSuccess) throw atomo::Error(cudaGetErrorString(error));
}

struct DeviceMemory {
  explicit DeviceMemory(std::size_t size) : bytes(size) { check(cudaMalloc(&data, size)); }
  ~DeviceMemory() { static_cast<void>(cudaFree(data)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  [[nodiscard]] atomo::Bytes span() const { return {static_cast<std::byte*>(data), bytes}; }
  void* data = nullptr;
  std::size_t bytes;
};

/// A stream, two events, and what empties the L2 cache.
class Timer {
 public:
  Timer() : flush_(2 * l2_bytes()) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  double seconds(const std::function<void()>& work) const {
    check(cudaMemsetAsync(flush_.data, 1, flush_.bytes, stream_));
    check(cudaEventRecord(begin_, stream_));
    work();
    check(cudaEventRecord(end_, stream_));
    check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e-3 * milliseconds;
  }
  double median_seconds(const std::function<void()>& work) const {
    std::vector<double> all(11);
    for (double& one : all) one = seconds(work);
    std::nth_element(all.begin(), all.begin() + 5, all.end());
    return all[5];
  }

 private:
  static std::size_t l2_bytes() {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
    return std::max<std::size_t>(static_cast<std::size_t>(bytes), std::size_t{1} << 20);
  }
  DeviceMemory flush_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

const Timer& timer() {
  static const Timer one;
  return one;
}

/// Rows of different scales, entries of a bell, as in bench_codecs.cpp.
std::vector<float> make_gradient(std::size_t n, std::size_t width) {
  std::vector<float> values(n);
  std::uint64_t state = 0x9E3779B97F4A7C15u;
  float scale = 1;
  for (std::size_t i = 0; i < n; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    if (i % width == 0) scale = 1e-3f * std::exp2(static_cast<float>(state % 1024) / 256.0f);
    const std::uint64_t sum =
        (state & 0xFFFF) + (state >> 16 & 0xFFFF) + (state >> 32 & 0xFFFF) + (state >> 48);
    values[i] = scale * (static_cast<float>(sum) / 65536.0f - 2.0f);
  }
  return values;
}

/// A model of layers under one codec, its message and its buffers. One tensor is a model of a
/// layer.
struct Bench {
  Bench(const std::string& spec_text, std::vector<atomo::LayerSpec> layers)
      : spec(spec_text),
        model(std::move(layers), atomo::Policy(atomo::Codec::parse(spec)),
              {.device = atomo::Device::cuda}),
        gradient(4 * model.elements()),
        decoded(4 * model.elements()),
        message(model.max_encoded_bytes()),
        workspace(model.workspace_bytes()),
        words(64) {
    const auto values = make_gradient(model.elements(), 1024);
    check(cudaMemcpy(gradient.data, values.data(), gradient.bytes, cudaMemcpyHostToDevice));
    check(cudaMemset(decoded.data, 0, decoded.bytes));
    std::size_t at = 0;
    for (const auto& layer : model.layers()) {
      in.push_back({static_cast<float*>(gradient.data) + at, atomo::DType::f32, layer.shape,
                    atomo::Device::cuda});
      out.push_back({static_cast<float*>(decoded.data) + at, atomo::DType::f32, layer.shape,
                     atomo::Device::cuda});
      at += layer.shape.elements();
    }
    expect(encode());
    check(cudaStreamSynchronize(timer().stream()));
    check(cudaMemcpy(&bytes, words.data, sizeof bytes, cudaMemcpyDeviceToHost));
  }

  static void expect(atomo::Status status) {
    if (atomo::failed(status)) throw atomo::Error(std::string(describe(status)));
  }
  [[nodiscard]] atomo::Context context() const {
    atomo::Context context;
    context.stream = timer().stream();
    context.workspace = workspace.span();
    return context;
  }
  atomo::Status encode() {
    return model.encode(in, {.seed = 1},
                        {static_cast<std::byte*>(message.data), message.bytes,
                         static_cast<std::uint64_t*>(words.data)},
                        context());
  }
  atomo::Status decode() {
    return model.decode(message.span().first(static_cast<std::size_t>(bytes)), out, context());
  }
  atomo::Status decode_add() {
    return model.decode_add(message.span().first(static_cast<std::size_t>(bytes)), 0.25f, out,
                            context());
  }

  std::string spec;
  atomo::Compressor model;
  DeviceMemory gradient, decoded, message, workspace, words;
  std::vector<atomo::ConstTensorView> in;
  std::vector<atomo::TensorView> out;
  std::uint64_t bytes = 0;
};

void run(benchmark::State& state, const std::string& spec,
         const std::vector<atomo::LayerSpec>& layers, atomo::Status (Bench::*operation)()) {
  Bench bench(spec, layers);
  const double copy = timer().median_seconds([&] {
    check(cudaMemcpyAsync(bench.decoded.data, bench.gradient.data, bench.gradient.bytes,
                          cudaMemcpyDeviceToDevice, timer().stream()));
  });
  double seconds = 0;
  for (auto _ : state) {
    const double one = timer().seconds([&] { Bench::expect((bench.*operation)()); });
    state.SetIterationTime(one);
    seconds += one;
  }
  const double size = static_cast<double>(bench.gradient.bytes);
  const double mean = seconds / static_cast<double>(state.iterations());
  state.counters["gbs"] = size / mean * 1e-9;
  state.counters["copy_gbs"] = size / copy * 1e-9;
  state.counters["of_copy"] = copy / mean;
  state.counters["bits_per_parameter"] =
      8.0 * static_cast<double>(bench.bytes) / static_cast<double>(bench.model.elements());
}

/// The convolutions and norms of a ResNet-50.
std::vector<atomo::LayerSpec> resnet50() {
  std::vector<atomo::LayerSpec> layers;
  const auto add = [&](std::int64_t out, std::int64_t in, std::int64_t side) {
    const std::string name = "conv" + std::to_string(layers.size());
    layers.push_back({name, {out, in, side, side}});
    layers.push_back({name + ".norm.weight", {out}});
    layers.push_back({name + ".norm.bias", {out}});
  };
  add(64, 3, 7);
  std::int64_t in = 64;
  const std::int64_t blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t inner = std::int64_t{64} << stage;
    for (std::int64_t b = 0; b < blocks[stage]; ++b) {
      add(inner, in, 1);
      add(inner, inner, 3);
      add(4 * inner, inner, 1);
      if (b == 0) add(4 * inner, in, 1);
      in = 4 * inner;
    }
  }
  layers.push_back({"head.weight", {1000, 2048}});
  layers.push_back({"head.bias", {1000}});
  return layers;
}

void register_all() {
  const std::pair<const char*, std::vector<atomo::LayerSpec>> models[] = {
      {"16M", {{"tensor", {4096, 4096}}}}, {"resnet50", resnet50()}};
  const std::pair<const char*, atomo::Status (Bench::*)()> operations[] = {
      {"encode", &Bench::encode}, {"decode", &Bench::decode}, {"decode_add", &Bench::decode_add}};
  for (const auto& [size, layers] : models) {
    for (const std::string spec : kSpecs) {
      for (const auto& [name, operation] : operations) {
        benchmark::RegisterBenchmark(
            (std::string(size) + "/" + spec + "/" + name).c_str(),
            [spec, layers = layers, operation = operation](benchmark::State& state) {
              try {
                run(state, spec, layers, operation);
              } catch (const atomo::Error& error) {
                state.SkipWithError(error.what());  // the other figures are kept
              }
            })
            ->Unit(benchmark::kMicrosecond)
            ->UseManualTime();
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "bench_gpu: no CUDA device\n");
    return 2;
  }
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess)
    benchmark::AddCustomContext("gpu", properties.name);
  benchmark::AddCustomContext("atomo", atomo::kVersion);
  benchmark::AddCustomContext("build", BENCH_BUILD_TYPE);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  try {
    register_all();
    benchmark::RunSpecifiedBenchmarks();
  } catch (const atomo::Error& error) {
    std::fprintf(stderr, "bench_gpu: %s\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return 0;
}
