// SPDX-License-Identifier: Apache-2.0
// Encode, decode and decode_add of every codec, on one thread.
//
// Every figure is in bytes of the f32 tensor a second. `of_memcpy` relates it to a memcpy of the
// same tensor, a byte copied counted once, timed in the same process right before. The 1M tensor
// (4 MB) is worked on again and again and stays in a cache: hot. The 25M one (100 MB) does not fit
// the caches of most machines: cold. The other two sizes are whole models. Seconds are of processor
// time, of all threads together, which other programs on the machine do not lengthen.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <atomo/atomo.hpp>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "models.hpp"
#include "specs.hpp"

namespace {

constexpr const char* kListed[] = {
    "identity",
    "identity:dtype=f16",
    "identity:dtype=bf16",
    "atomo:bits=1",
    "atomo:bits=0.5",
    "atomo:bits=0.25",
    "atomo:atoms=sketch,bits=0.5,rank=4",
    "atomo:atoms=sketch,bits=0.5,rank=8",
    "atomo:atoms=sketch,bits=0.5,rank=32",
    "atomo:atoms=sketch,bits=0.5,rank=64",
    "atomo:atoms=blocks,bits=1",
    "atomo:atoms=blocks,bits=0.25",
    "atomo:atoms=rows,bits=1",
    "atomo:atoms=rows,bits=0.25",
    "atomo:atoms=coordinate,bits=1",
    "atomo:atoms=coordinate,bits=0.25",
    "atomo:atoms=svd,bits=1",
    "atomo:atoms=svd,keep=3,values=f32",
    "qsgd:bits=1",
    "qsgd:bits=2",
    "qsgd:bits=4",
    "qsgd:bits=8",
    "qsgd:bits=4,norm=l2",
    "terngrad",
    "terngrad:clip=2.5",
    "sign",
    "sign:scale=mean",
    "topk:keep=0.01",
    "randomk:keep=0.01",
    "identity+blosc:codec=lz4,shuffle=byte",
    "qsgd:bits=4+blosc:codec=zstd,level=1",
};

struct Size {
  const char* name;
  std::vector<atomo::LayerSpec> layers;
  bool is_model = false;
};

bool is_svd(const std::string& spec) { return spec.find("atoms=svd") != std::string::npos; }

/// The exact SVD of a square matrix of 25 M takes minutes: it gets a flat one.
std::vector<Size> sizes(const std::string& spec) {
  const atomo::Shape cold = is_svd(spec) ? atomo::Shape{512, 48828} : atomo::Shape{5000, 5000};
  return {{"1M_hot", {{"tensor", {1024, 1024}}}},
          {"25M_cold", {{"tensor", cold}}},
          {"resnet50", atomo::bench::resnet50(), true},
          {"gpt2", atomo::bench::gpt2_small(), true}};
}

/// The gradients of the size that was asked for last.
const std::vector<float>& gradients_of(const Size& size) {
  static std::vector<float> values;
  static std::vector<atomo::LayerSpec> made_for;
  const auto same = [](const atomo::LayerSpec& a, const atomo::LayerSpec& b) {
    return a.shape == b.shape;
  };
  if (!std::equal(made_for.begin(), made_for.end(), size.layers.begin(), size.layers.end(), same)) {
    values = {};  // never two big ones at once
    values = atomo::bench::make_gradients(size.layers);
    made_for = size.layers;
  }
  return values;
}

/// A model under one codec, its message and its buffers. One tensor is a model of a layer. Kept for
/// one codec and size at a time.
struct Bench {
  Bench(const std::string& spec_text, const Size& size)
      : spec(spec_text),
        name(size.name),
        model(size.layers, atomo::Policy(atomo::Codec::parse(spec))),
        gradients(gradients_of(size)),
        decoded(gradients.size()),
        message(model.max_encoded_bytes()),
        workspace(std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes())) {
    std::size_t at = 0;
    for (const auto& layer : model.layers()) {
      in.push_back({gradients.data() + at, atomo::DType::f32, layer.shape});
      out.push_back({decoded.data() + at, atomo::DType::f32, layer.shape});
      at += layer.shape.elements();
    }
    const atomo::Status status = encode();
    if (atomo::failed(status)) throw atomo::Error(spec + ": " + std::string(describe(status)));
  }

  atomo::Status encode() {
    return model.encode(in, {.seed = 1}, {message.data(), message.size(), &bytes},
                        {.workspace = workspace});
  }
  atomo::Status decode() { return model.decode(sent(), out, {.workspace = workspace}); }
  atomo::Status decode_add() {
    return model.decode_add(sent(), 0.25f, out, {.workspace = workspace});
  }
  [[nodiscard]] atomo::ConstBytes sent() const {
    return {message.data(), static_cast<std::size_t>(bytes)};
  }
  [[nodiscard]] std::size_t tensor_bytes() const { return gradients.size() * sizeof(float); }

  std::string spec, name;
  atomo::Compressor model;
  const std::vector<float>& gradients;
  std::vector<float> decoded;
  std::vector<std::byte> message, workspace;
  std::vector<atomo::ConstTensorView> in;
  std::vector<atomo::TensorView> out;
  std::uint64_t bytes = 0;
};

Bench& prepared(const std::string& spec, const Size& size) {
  static std::unique_ptr<Bench> last;
  if (!last || last->spec != spec || last->name != size.name) {
    last.reset();  // never two big ones at once
    last = std::make_unique<Bench>(spec, size);
  }
  return *last;
}

/// Seconds of processor time this program has used.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Bytes a second of a memcpy between the two buffers: the median of some copies after a first.
double memcpy_speed(const std::vector<float>& from, std::vector<float>& to) {
  const std::size_t bytes = from.size() * sizeof(float);
  const std::size_t copies = std::max<std::size_t>(5, (std::size_t{1} << 26) / (bytes + 1));
  std::vector<double> seconds;
  std::memcpy(to.data(), from.data(), bytes);
  for (std::size_t i = 0; i < copies; ++i) {
    const double start = processor_seconds();
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
    seconds.push_back(processor_seconds() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(copies / 2),
                   seconds.end());
  return static_cast<double>(bytes) / seconds[copies / 2];
}

void run_codec(benchmark::State& state, const std::string& spec, const Size& size,
               atomo::Status (Bench::*operation)()) {
  Bench& bench = prepared(spec, size);
  const double copy_speed = memcpy_speed(bench.gradients, bench.decoded);
  std::fill(bench.decoded.begin(), bench.decoded.end(), 0.0f);
  const double start = processor_seconds();
  for (auto _ : state) {
    const atomo::Status status = (bench.*operation)();
    if (atomo::failed(status)) {
      state.SkipWithError(std::string(atomo::describe(status)).c_str());
      break;
    }
    benchmark::ClobberMemory();
  }
  const double seconds = processor_seconds() - start;
  const double worked =
      static_cast<double>(bench.tensor_bytes()) * static_cast<double>(state.iterations());
  state.counters["gbs"] = worked / seconds * 1e-9;
  state.counters["memcpy_gbs"] = copy_speed * 1e-9;
  state.counters["of_memcpy"] = worked / seconds / copy_speed;
  state.counters["bits_per_parameter"] =
      8.0 * static_cast<double>(bench.bytes) / static_cast<double>(bench.gradients.size());
}

void register_all() {
  const std::array<std::pair<const char*, atomo::Status (Bench::*)()>, 3> operations = {
      {{"encode", &Bench::encode}, {"decode", &Bench::decode}, {"decode_add", &Bench::decode_add}}};
  for (std::size_t which = 0; which < sizes("").size(); ++which) {
    for (const std::string& spec : atomo::bench::specs_with(kListed, atomo::Device::cpu)) {
      const Size size = sizes(spec)[which];
      for (const auto& [name, operation] : operations) {
        auto* registered = benchmark::RegisterBenchmark(
            (std::string(size.name) + "/" + spec + "/" + name).c_str(),
            [spec, size, operation = operation](benchmark::State& state) {
              run_codec(state, spec, size, operation);
            });
        registered->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
        if (is_svd(spec) || size.is_model) registered->Iterations(1);
        if (is_svd(spec) && size.is_model) registered->Repetitions(1);  // a minute each
      }
    }
  }
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::AddCustomContext("cpu", cpu_model());
  benchmark::AddCustomContext("atomo", atomo::kVersion);
  benchmark::AddCustomContext("compiler", BENCH_COMPILER);
  benchmark::AddCustomContext("build", BENCH_BUILD_TYPE);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  try {
    register_all();
    benchmark::RunSpecifiedBenchmarks();
  } catch (const atomo::Error& error) {
    std::fprintf(stderr, "bench_codecs: %s\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return 0;
}
