// SPDX-License-Identifier: Apache-2.0
// Encode, decode, decode_add, and decode_add_all of eight messages, of every codec.
//
// Every figure is in bytes of the f32 tensor a second, of eight messages those of eight tensors. `of_memcpy` relates it to a memcpy of the
// same tensor, a byte copied counted once, timed on one thread in the same process before. The
// tensor of 1 M entries is worked on again and again and stays in a cache: hot. That of 25 M is
// flushed from all caches before each call, as are the message and what is written: cold. The other
// sizes are whole models. Their first message is one of a new Compressor, with cold data; later ones
// have learnt ranks and prices, and data as the call before left it. `--plugin=FILE.so` adds the
// codecs of a shared object (docs/own-codec.md), once or several times.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "codec_case.hpp"
#include "target.hpp"

namespace {

using atomo::bench::CodecCase;
using atomo::bench::is_svd;
using atomo::bench::Operation;
using atomo::bench::Size;

struct Options {
  unsigned threads = 1;
  std::string target = "best", size;  // of the tensors; all when empty
};

/// Kept for one codec and size at a time.
struct Prepared {
  std::unique_ptr<CodecCase> made;
  double memcpy_speed = 0;
};

Prepared& prepared(const std::string& spec, const Size& size, const Options& options) {
  static const std::unique_ptr<atomo::ThreadPool> pool =
      options.threads > 1 ? std::make_unique<atomo::ThreadPool>(options.threads) : nullptr;
  static Prepared last;
  if (!last.made || last.made->spec() != spec ||
      std::string_view(last.made->size().name) != size.name) {
    last.made.reset();  // never two big ones at once
    last.made = std::make_unique<CodecCase>(spec, size, pool.get());
    last.memcpy_speed = last.made->memcpy_speed(atomo::bench::Clock(options.threads));
  }
  return last;
}

/// Says on a terminal what is measured now.
void show(const std::string& name) {
  static const bool is_terminal = isatty(STDERR_FILENO) == 1;
  if (is_terminal) std::fprintf(stderr, "\r\033[K  %.100s", name.c_str());
}

void run_codec(benchmark::State& state, const std::string& name, const std::string& spec,
               const Size& size, Operation operation, const Options& options) {
  show(name);
  Prepared& now = prepared(spec, size, options);
  CodecCase& made = *now.made;
  const atomo::bench::Clock clock(options.threads);
  const bool each = made.is_prepared_each(operation);
  made.prepare(operation);
  double seconds = 0;
  double start = clock.now();
  for (auto _ : state) {
    if (each) {
      made.prepare(operation);
      start = clock.now();
    }
    const atomo::Status status = made.run(operation);
    if (atomo::failed(status)) {
      state.SkipWithError(std::string(atomo::describe(status)).c_str());
      break;
    }
    benchmark::ClobberMemory();
    if (each) seconds += clock.now() - start;
  }
  if (!each) seconds = clock.now() - start;
  const std::size_t messages = operation == Operation::decode_add_8 ? atomo::bench::kAdded : 1;
  const double worked =
      static_cast<double>(made.tensor_bytes() * messages) * static_cast<double>(state.iterations());
  state.counters["gbs"] = worked / seconds * 1e-9;
  state.counters["memcpy_gbs"] = now.memcpy_speed * 1e-9;
  state.counters["of_memcpy"] = worked / seconds / now.memcpy_speed;
  state.counters["bits_per_parameter"] = made.bits_per_parameter();
  state.counters["ms"] = 1e3 * seconds / static_cast<double>(state.iterations());
}

/// How often one repetition calls: 0 leaves that to its least time.
benchmark::IterationCount calls_of(const std::string& spec, const Size& size) {
  constexpr std::size_t kLarge = std::size_t{1} << 21;  // entries
  std::size_t entries = 0;
  for (const atomo::LayerSpec& layer : size.layers) entries += layer.shape.elements();
  return is_svd(spec) || entries > kLarge ? 1 : 0;
}

void register_one(const std::string& spec, const Size& size, const Options& options) {
  constexpr std::array<std::pair<const char*, Operation>, 5> kOperations = {
      {{"first", Operation::first},
       {"encode", Operation::encode},
       {"decode", Operation::decode},
       {"decode_add", Operation::decode_add},
       {"decode_add_8", Operation::decode_add_8}}};
  for (const auto& [label, operation] : kOperations) {
    if (operation == Operation::first && (!size.is_model || is_svd(spec))) continue;
    const std::string name = std::string(size.name) + "/" + spec + "/" + label;
    auto* registered = benchmark::RegisterBenchmark(
        name.c_str(), [name, spec, size, operation = operation, options](benchmark::State& state) {
          run_codec(state, name, spec, size, operation, options);
        });
    registered->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();
    if (const auto calls = calls_of(spec, size); calls > 0) registered->Iterations(calls);
    if (is_svd(spec) && size.is_model) registered->Repetitions(1);  // up to half a minute each
  }
}

void register_all(const Options& options) {
  const std::vector<std::string> all =
      atomo::bench::specs_with(atomo::bench::kListed, atomo::Device::cpu);
  std::vector<std::string> main(std::begin(atomo::bench::kMain), std::end(atomo::bench::kMain));
  const std::vector<std::string> own = atomo::bench::own_specs();
  main.insert(main.end(), own.begin(), own.end());
  for (const Size& size : atomo::bench::sizes()) {
    if (!options.size.empty() && options.size != size.name) continue;
    for (const std::string& spec : size.is_model || options.threads > 1 ? main : all) {
      if (is_svd(spec) && options.threads > 1) continue;  // LAPACK has the time, on one thread
      for (const Size& same : atomo::bench::sizes(is_svd(spec)))
        if (std::string_view(same.name) == size.name) register_one(spec, same, options);
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

/// \throws std::runtime_error for a size that there is not.
std::string checked_size(std::string_view wanted) {
  std::string known;
  for (const Size& size : atomo::bench::sizes()) {
    if (wanted == size.name) return std::string(wanted);
    known += known.empty() ? size.name : std::string(", ") + size.name;
  }
  throw std::runtime_error("--size is '" + std::string(wanted) + "'; " + known + " are accepted");
}

/// Takes this program's own options out of the arguments. \throws std::runtime_error for a bad value.
Options take_options(int& argc, char** argv) {
  constexpr std::string_view kThreads = "--threads=", kTarget = "--target=", kSize = "--size=",
                             kPlugin = "--plugin=";
  Options options;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with(kThreads)) {
      const std::string_view value = word.substr(kThreads.size());
      const auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), options.threads);
      if (error != std::errc() || end != value.data() + value.size() || options.threads < 1 ||
          options.threads > 64)
        throw std::runtime_error("--threads is '" + std::string(value) + "'; 1 to 64 are accepted");
    } else if (word.starts_with(kTarget)) {
      options.target = word.substr(kTarget.size());
    } else if (word.starts_with(kSize)) {
      options.size = checked_size(word.substr(kSize.size()));
    } else if (word.starts_with(kPlugin)) {
      atomo::load_codecs(std::string(word.substr(kPlugin.size())));
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = take_options(argc, argv);
    atomo::bench::force_target(options.target);
    benchmark::AddCustomContext("cpu", cpu_model());
    benchmark::AddCustomContext("atomo", atomo::kVersion);
    benchmark::AddCustomContext("compiler", BENCH_COMPILER);
    benchmark::AddCustomContext("build", BENCH_BUILD_TYPE);
    benchmark::AddCustomContext("threads", std::to_string(options.threads));
    benchmark::AddCustomContext("target", options.target);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    register_all(options);
    benchmark::RunSpecifiedBenchmarks();
    if (isatty(STDERR_FILENO) == 1) std::fputs("\r\033[K", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_codecs: %s\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return 0;
}
