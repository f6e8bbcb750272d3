// SPDX-License-Identifier: Apache-2.0
// Encode, decode, decode_add, and decode_add of eight messages, of every codec with a CUDA twin, on
// the current device.
//
// MODEL/SPEC/OPERATION: medians of 15 calls between two events, the L2 cache emptied before each,
// - `us`: as a caller's stream sees it, launches by the host included,
// - `graph_us`: captured once and replayed,
// - `of_limit`: the graph's share of what the device's memory allows, if each byte of the tensors
//   and of the messages were moved once at the speed of a copy (`copy_gbs`, bytes read plus bytes
//   written, timed in the same process),
// - `gbs`: bytes of the f32 tensors a second, by the graph.
// MODEL/SPEC/OPERATION/kernels: the time of each launch in microseconds, by its place and name.
// machine/NAME: what the device itself can do (machine.cu). peers/NAME: what others' libraries take
// for comparable work (peers.cu).
//
// The model `tiny` shows that all of this runs; its times say nothing.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <array>
#include <atomo/atomo.hpp>
#include <atomo/cuda.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "../models.hpp"
#include "../specs.hpp"
#include "device.hpp"
#ifdef BENCH_ON_DEVICE  // not the host executor
#include "launch_times.hpp"
#include "yardsticks.hpp"
#endif

namespace {

using atomo::bench::check;
using atomo::bench::DeviceMemory;
using atomo::bench::Timer;
using atomo::bench::Times;

constexpr std::uint16_t kWorkers = 8;

struct Model {
  std::string name;
  std::vector<atomo::LayerSpec> layers;
};

const Timer& timer() {
  static const Timer one;
  return one;
}

std::size_t bytes_of(const Model& model) {
  std::size_t elements = 0;
  for (const auto& layer : model.layers) elements += layer.shape.elements();
  return 4 * elements;
}

/// A model's gradients on the device.
struct Gradients {
  explicit Gradients(const Model& model) : name(model.name), memory(bytes_of(model)) {
    const auto values = atomo::bench::make_gradients(model.layers);
    check(cudaMemcpy(memory.data, values.data(), memory.bytes, cudaMemcpyHostToDevice));
  }
  std::string name;
  DeviceMemory memory;
};

/// A model of layers under one codec, the messages of eight workers and its buffers.
struct Bench {
  Bench(const std::string& spec_text, const Model& of, const Gradients& made)
      : spec(spec_text),
        model(of.layers, atomo::Policy(atomo::Codec::parse(spec)), {.device = atomo::Device::cuda}),
        handles(atomo::make_handles()),
        gradients(made.memory),
        decoded(gradients.bytes),
        workspace(std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes())),
        encoded(model.max_encoded_bytes()),
        words(64) {
    check(cudaMemset(decoded.data, 0, decoded.bytes));
    std::size_t at = 0;
    for (const auto& layer : model.layers()) {
      in.push_back({static_cast<float*>(gradients.data) + at, atomo::DType::f32, layer.shape,
                    atomo::Device::cuda});
      out.push_back({static_cast<float*>(decoded.data) + at, atomo::DType::f32, layer.shape,
                     atomo::Device::cuda});
      at += layer.shape.elements();
    }
    // Messages are kept apart from what is encoded later: a model that learns ranks sends others then.
    for (std::uint16_t worker = 0; worker < kWorkers; ++worker) {
      encode(worker);
      std::uint64_t bytes = 0;
      check(cudaStreamSynchronize(timer().stream()));
      check(cudaMemcpy(&bytes, words.data, sizeof bytes, cudaMemcpyDeviceToHost));
      messages.push_back(std::make_unique<DeviceMemory>(static_cast<std::size_t>(bytes)));
      sent[worker] = messages.back()->span();
      check(cudaMemcpyAsync(messages.back()->data, encoded.data, sent[worker].size(),
                            cudaMemcpyDeviceToDevice, timer().stream()));
    }
    expect_done();
  }

  static void expect(atomo::Status status) {
    if (atomo::failed(status)) throw atomo::Error(std::string(describe(status)));
  }
  /// What the last call says on the device. \throws atomo::Error when it failed there.
  void expect_done() const {
    atomo::Status status{};
    check(cudaStreamSynchronize(timer().stream()));
    check(cudaMemcpy(&status, status_word(), sizeof status, cudaMemcpyDeviceToHost));
    expect(status);
  }
  [[nodiscard]] atomo::Status* status_word() const {
    return reinterpret_cast<atomo::Status*>(static_cast<std::uint64_t*>(words.data) + 1);
  }
  [[nodiscard]] atomo::Context context() const {
    atomo::Context context;
    context.status = status_word();
    context.stream = timer().stream();
    context.workspace = workspace.span();
    context.handles = handles.get();
    return context;
  }
  void encode(std::uint16_t worker) {
    expect(model.encode(in, {.seed = 1, .worker = worker},
                        {static_cast<std::byte*>(encoded.data), encoded.bytes,
                         static_cast<std::uint64_t*>(words.data)},
                        context()));
  }
  void encode() { encode(0); }
  void decode() { expect(model.decode(sent[0], out, context())); }
  void decode_add() { expect(model.decode_add(sent[0], 0.25f, out, context())); }
  void decode_add_8() { expect(model.decode_add_all(sent, 0.125f, out, context())); }

  [[nodiscard]] std::size_t message_bytes(std::size_t count) const {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += sent[i].size();
    return sum;
  }

  std::string spec;
  atomo::Compressor model;
  atomo::HandlesPtr handles;
  const DeviceMemory& gradients;
  DeviceMemory decoded, workspace, encoded;
  DeviceMemory words;  ///< the bytes of the last message, the status of the last call
  std::vector<std::unique_ptr<DeviceMemory>> messages;
  std::array<atomo::ConstBytes, kWorkers> sent;  ///< by rank
  std::vector<atomo::ConstTensorView> in;
  std::vector<atomo::TensorView> out;
};

struct Operation {
  const char* name;
  void (Bench::*call)();
  std::size_t tensors;   ///< how often the tensors are read or written at least
  std::size_t messages;  ///< how many messages are read or written
};
constexpr Operation kOperations[] = {{"encode", &Bench::encode, 1, 1},
                                     {"decode", &Bench::decode, 1, 1},
                                     {"decode_add", &Bench::decode_add, 2, 1},
                                     {"decode_add_8", &Bench::decode_add_8, 2, kWorkers}};

/// What was asked for last is kept: one model's gradients and one codec's buffers at a time.
class Prepared {
 public:
  Bench& get(const std::string& spec, const Model& model) {
    if (!gradients_ || gradients_->name != model.name) {
      bench_.reset();
      gradients_.reset();
      gradients_ = std::make_unique<Gradients>(model);
    }
    if (!bench_ || bench_->spec != spec) {
      bench_.reset();
      bench_ = std::make_unique<Bench>(spec, model, *gradients_);
    }
    return *bench_;
  }

 private:
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<Bench> bench_;
};

/// Seconds of a copy of the model's gradients.
double copy_seconds(const Bench& bench) {
  return timer()
      .time([&] {
        check(cudaMemcpyAsync(bench.decoded.data, bench.gradients.data, bench.gradients.bytes,
                              cudaMemcpyDeviceToDevice, timer().stream()));
      })
      .median;
}

void measure(benchmark::State& state, Bench& bench, const Operation& operation) {
  const double tensor = static_cast<double>(bench.gradients.bytes);
  const double copied = 2 * tensor / copy_seconds(bench);
  check(cudaMemsetAsync(bench.decoded.data, 0, bench.decoded.bytes, timer().stream()));
  const auto call = [&] { (bench.*operation.call)(); };
  Times stream, graph;
  for (auto _ : state) {
    stream = timer().time(call);
    state.SetIterationTime(stream.median);
  }
  bench.expect_done();
  graph = stream;
  if (atomo::Codec::parse(bench.spec).traits().capturable) {
    const atomo::bench::Graph replayed(timer().stream(), call);
    graph = timer().time([&] { replayed.launch(timer().stream()); });
    bench.expect_done();
    state.counters["graph_us"] = 1e6 * graph.median;
    state.counters["graph_us_least"] = 1e6 * graph.least;
    state.counters["graph_us_most"] = 1e6 * graph.most;
  }
  const double least = static_cast<double>(operation.tensors) * tensor +
                       static_cast<double>(bench.message_bytes(operation.messages));
  state.counters["us"] = 1e6 * stream.median;
  state.counters["us_least"] = 1e6 * stream.least;
  state.counters["us_most"] = 1e6 * stream.most;
  state.counters["gbs"] = 1e-9 * tensor / graph.median;
  state.counters["copy_gbs"] = 1e-9 * copied;
  state.counters["of_limit"] = least / copied / graph.median;
  state.counters["bits_per_parameter"] =
      32.0 * static_cast<double>(bench.message_bytes(1)) / tensor;
}

#ifdef BENCH_ON_DEVICE
void measure_kernels(benchmark::State& state, Bench& bench, const Operation& operation) {
  const auto times = atomo::bench::launch_times(timer(), [&] { (bench.*operation.call)(); });
  double sum = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < times.size(); ++i) {
      std::string place = std::to_string(i);
      place.insert(0, 3 - std::min<std::size_t>(3, place.size()), '0');
      state.counters[place + " " + times[i].first] = 1e6 * times[i].second;
      sum += times[i].second;
    }
    state.SetIterationTime(sum);
  }
}
#endif

using Measure = void (*)(benchmark::State&, Bench&, const Operation&);

void register_all(Prepared& prepared) {
  const auto add = [&prepared](const std::string& name, Measure function, const std::string& spec,
                               const Model& model, const Operation& operation) {
    const auto run = [=, &prepared](benchmark::State& state) {
      try {
        function(state, prepared.get(spec, model), operation);
      } catch (const atomo::Error& error) {
        state.SkipWithError(error.what());  // the other figures are kept
      }
    };
    benchmark::RegisterBenchmark(name.c_str(), run)
        ->Unit(benchmark::kMicrosecond)
        ->UseManualTime()
        ->Iterations(1);
  };
  const Model models[] = {{"tiny", {{"matrix", {48, 40}}, {"bias", {48}}}},
                          {"25M", {{"tensor", {5000, 5000}}}},
                          {"resnet50", atomo::bench::resnet50()},
                          {"gpt2", atomo::bench::gpt2_small()}};
  for (const Model& model : models) {
    for (const std::string& spec :
         atomo::bench::specs_with(atomo::bench::kListedOnGpu, atomo::Device::cuda)) {
      for (const Operation& operation : kOperations) {
        const std::string name = model.name + "/" + spec + "/" + operation.name;
        add(name, measure, spec, model, operation);
#ifdef BENCH_ON_DEVICE
        add(name + "/kernels", measure_kernels, spec, model, operation);
#endif
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
    Prepared prepared;
    register_all(prepared);
#ifdef BENCH_ON_DEVICE
    atomo::bench::register_machine(timer());
    atomo::bench::register_peers(timer());
#endif
    benchmark::RunSpecifiedBenchmarks();
  } catch (const atomo::Error& error) {
    std::fprintf(stderr, "bench_gpu: %s\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return 0;
}
