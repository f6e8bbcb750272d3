// SPDX-License-Identifier: Apache-2.0
#include "launch_times.hpp"

#include <cxxabi.h>

#include <cstdlib>

namespace {

/// The launches that are looked at now, or null.
struct Launches {
  std::vector<const void*> kernels;
  std::vector<cudaEvent_t> behind;
};
Launches* recorded = nullptr;

}  // namespace

extern "C" {

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments);
/// Launches the kernel, and an event behind it where launches are looked at.
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments) {
  const cudaError_t launched = __real_cudaLaunchKernelExC(config, kernel, arguments);
  if (recorded == nullptr || launched != cudaSuccess) return launched;
  cudaEvent_t event = nullptr;
  if (const cudaError_t made = cudaEventCreate(&event); made != cudaSuccess) return made;
  recorded->kernels.push_back(kernel);
  recorded->behind.push_back(event);
  return cudaEventRecord(event, config->stream);
}

}  // extern "C"

namespace atomo::bench {
namespace {

/// The kernel's name without namespaces and parameters.
std::string name_of(const void* kernel) {
  const char* mangled = nullptr;
  check(cudaFuncGetName(&mangled, kernel));
  int status = 0;
  char* const demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  const std::string unnamed = "(anonymous namespace)::";
  for (std::size_t at = name.find(unnamed); at != std::string::npos; at = name.find(unnamed))
    name.erase(at, unnamed.size());
  name = name.substr(0, name.find('('));
  // What stands before the last "::" that no template's argument holds.
  const std::size_t arguments = std::min(name.find('<'), name.size());
  const std::size_t scope = name.rfind("::", arguments);
  if (scope != std::string::npos) name.erase(0, scope + 2);
  return name.substr(0, name.find('<'));
}

}  // namespace

std::vector<std::pair<std::string, double>> launch_times(const Timer& timer,
                                                         const std::function<void()>& work) {
  constexpr std::size_t kRounds = 7, kFlushes = 40;
  cudaEvent_t begin = nullptr;
  check(cudaEventCreate(&begin));
  std::vector<const void*> kernels;
  std::vector<std::vector<double>> times;
  work();
  for (std::size_t round = 0; round < kRounds; ++round) {
    timer.flush(kFlushes);
    check(cudaEventRecord(begin, timer.stream()));
    Launches launches;
    recorded = &launches;
    try {
      work();
    } catch (...) {
      recorded = nullptr;
      throw;
    }
    recorded = nullptr;
    check(cudaStreamSynchronize(timer.stream()));
    if (round == 0) {
      kernels = launches.kernels;
      times.resize(kernels.size());
    } else if (kernels != launches.kernels) {
      throw Error("two calls launched other kernels");
    }
    cudaEvent_t before = begin;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, before, launches.behind[i]));
      times[i].push_back(1e-3 * milliseconds);
      before = launches.behind[i];
    }
    for (const cudaEvent_t event : launches.behind) check(cudaEventDestroy(event));
  }
  check(cudaEventDestroy(begin));
  std::vector<std::pair<std::string, double>> found;
  for (std::size_t i = 0; i < kernels.size(); ++i)
    found.emplace_back(name_of(kernels[i]), Times::of(times[i]).median);
  return found;
}

}  // namespace atomo::bench
