// SPDX-License-Identifier: Apache-2.0
/// \file
/// `make_replica` decides who computes a model: convex.cpp computes the quadratics and softmax
/// regression, and a shared library with torch computes the others. This library lies beside the
/// program and is opened at run time, when a model needs it for the first time.

#include "learning/replica.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <stdexcept>

#include "learning/convex.hpp"
#include "learning/torch_module.hpp"

namespace train {
namespace {

bool is_convex(const std::string& model) { return model == "logistic" || model == "quadratic"; }

/// Loads the module beside the program when it is first asked for.
const TorchModule& torch_module() {
  static const TorchModule* const module = [] {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    const auto file = program.parent_path() / (std::string(kTorchModule) + ".so");
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    const void* const found = library == nullptr ? nullptr : dlsym(library, kTorchModule);
    if (found == nullptr) {
      const char* const reason = dlerror();
      throw std::runtime_error("networks are computed by " + file.string() +
                               ", which does not load: " + (reason == nullptr ? "" : reason));
    }
    return static_cast<const TorchModule*>(found);
  }();
  return *module;
}

}  // namespace

std::unique_ptr<Replica> make_replica(const std::string& model, const std::string& norm,
                                      const InputShape& input, std::uint64_t seed,
                                      std::optional<int> gpu) {
  if (const auto* quadratic = std::get_if<QuadraticShape>(&input))
    return make_quadratic(*quadratic);
  if (is_convex(model)) return make_logistic(std::get<ImageShape>(input), seed);
  return torch_module().make_replica(model, norm, input, seed, gpu);
}

std::string gpu_objection(const std::string& model) {
  if (is_convex(model)) return "";
  return torch_module().gpu_objection();
}

}  // namespace train
