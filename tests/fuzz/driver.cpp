// SPDX-License-Identifier: Apache-2.0
/// The front of a target that needs no libFuzzer: the inputs that once failed, the seeds, then
/// mutations of what gave new sights, for some seconds. The run of a seed is the same everywhere, but
/// for how far it comes.
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "fuzz/mutations.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

namespace fs = std::filesystem;
using namespace atomo::fuzz;  // NOLINT: a program of its own

constexpr const char* kUsage =
    "usage: fuzz_TARGET [--seconds N] [--seed N] [--keep FOLDER] [--write-seeds FOLDER] [PATH...]\n"
    "\n"
    "Runs the inputs of the files and folders, the target's seeds, and mutations for so many "
    "seconds\n"
    "(none unless asked). An input that fails is kept in FOLDER, by default the current one, as\n"
    "crash-NUMBER, and the program ends by the signal of its failure.\n"
    "\n"
    "example: fuzz_decode --seconds 10 tests/fuzz/regressions/decode\n";

/// An input takes a second at most, by far; a sanitizer and a busy machine take their part.
constexpr unsigned kMostSeconds = 60;

struct Options {
  double seconds = 0;
  std::uint64_t seed = 1;
  std::string keep = ".";
  std::vector<fs::path> inputs;
};

Buffer g_current;
std::string g_kept;

/// Writes the input under way; calls what a signal handler may call.
void keep_current() {
  if (g_kept.empty()) return;
  std::FILE* file = std::fopen(g_kept.c_str(), "wb");
  if (file == nullptr) return;
  static_cast<void>(std::fwrite(g_current.data(), 1, g_current.size(), file));
  static_cast<void>(std::fclose(file));
  std::fprintf(stderr, "the input is kept in %s\n", g_kept.c_str());
  g_kept.clear();
}

void on_signal(int signal) {
  if (signal == SIGALRM) std::fprintf(stderr, "the input takes more than %u s\n", kMostSeconds);
  keep_current();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void watch() {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM})
    std::signal(signal, on_signal);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(keep_current);
#endif
}

Buffer read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  return buffer_of(bytes);
}

class Run {
 public:
  explicit Run(const Options& options) : options_(options), draw_(options.seed) {}

  void one(const Buffer& input) {
    g_current = input;
    ++count_;
    g_kept =
        options_.keep + "/crash-" + std::to_string(options_.seed) + "-" + std::to_string(count_);
    alarm(kMostSeconds);
    const std::uint64_t sight = kTarget.run(g_current);
    alarm(0);
    if (sights_.insert(sight).second) pool_.push_back(input);
  }

  void mutations() {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(options_.seconds);
    const std::vector<Buffer> seeds = kTarget.seeds();
    while (Clock::now() < end) {
      // Half of them from seeds, which many sights of one kind would drown.
      Buffer input =
          draw_() % 2 == 0 ? seeds[draw_() % seeds.size()] : pool_[draw_() % pool_.size()];
      const AnyMutation any = [&](Buffer& part, std::size_t most) {
        mutate_bytes(part, most, draw_, pool_[draw_() % pool_.size()],
                     kTarget.tokens == nullptr ? nullptr : &kTarget.tokens());
      };
      for (std::size_t times = 1 + draw_() % 3; times > 0; --times)
        kTarget.mutate(input, any, draw_);
      one(input);
    }
  }

  void report() const {
    std::printf("%llu inputs, %zu sights\n", static_cast<unsigned long long>(count_),
                sights_.size());
  }

 private:
  const Options& options_;
  Draw draw_;
  std::uint64_t count_ = 0;
  std::set<std::uint64_t> sights_;
  std::vector<Buffer> pool_;
};

void write_seeds(const fs::path& folder) {
  fs::create_directories(folder);
  std::size_t number = 0;
  for (const Buffer& seed : kTarget.seeds()) {
    std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
  }
}

void run_inputs(const Options& options) {
  Run run(options);
  for (const fs::path& path : options.inputs) {
    if (!fs::exists(path)) continue;  // a target that no input has broken yet has no folder
    if (!fs::is_directory(path)) {
      run.one(read_file(path));
      continue;
    }
    std::set<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path)) files.insert(entry.path());
    for (const fs::path& file : files) run.one(read_file(file));
  }
  for (const Buffer& seed : kTarget.seeds()) run.one(seed);
  run.mutations();
  run.report();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    const bool known = option == "--seconds" || option == "--seed" || option == "--keep" ||
                       option == "--write-seeds";
    if (!known && !option.starts_with("-")) {
      options.inputs.emplace_back(option);
      continue;
    }
    if (!known || value == nullptr) {
      std::fputs(kUsage, option == "--help" ? stdout : stderr);
      return option == "--help" ? 0 : 2;
    }
    ++i;
    if (option == "--seconds") options.seconds = std::atof(value);
    if (option == "--seed") options.seed = std::strtoull(value, nullptr, 10);
    if (option == "--keep") options.keep = value;
    if (option == "--write-seeds") {
      write_seeds(value);
      return 0;
    }
  }
  try {
    watch();
    run_inputs(options);
  } catch (const std::exception& error) {
    keep_current();
    std::fprintf(stderr, "an exception: %s\n", error.what());
    return 1;
  }
  return 0;
}
