// SPDX-License-Identifier: Apache-2.0
#include "calls.hpp"

#include <array>
#include <map>
#include <string_view>

#include "runtime.hpp"
#include "settings.hpp"

namespace hostexec {

namespace {

struct Key {
  std::string_view name;
  bool has_stream;
  cudaStream_t stream;
  auto operator<=>(const Key&) const = default;
};
std::map<Key, std::size_t>& counts() {
  static std::map<Key, std::size_t> all;
  return all;
}

struct Noted {
  const void* kernel;
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
std::vector<Noted>& noted() {
  static std::vector<Noted> all;
  return all;
}

bool allocates_or_waits(std::string_view name) {
  constexpr std::array kPrefixes = {"cudaMalloc",       "cudaFree",          "cudaHost",
                                    "cudaStreamCreate", "cudaStreamDestroy", "cudaEventCreate",
                                    "cudaEventDestroy"};
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return name.ends_with("Synchronize") || name.ends_with("Query") || name == "cudaMemcpy" ||
         name == "cudaMemset";
}

}  // namespace

std::recursive_mutex& runtime_lock() {
  static std::recursive_mutex lock;
  return lock;
}

Called::Called(const char* name) : lock_(runtime_lock()) { ++counts()[{name, false, nullptr}]; }
Called::Called(const char* name, cudaStream_t stream) : lock_(runtime_lock()) {
  ++counts()[{name, true, stream}];
}

void note_launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                 cudaStream_t stream) {
  noted().push_back({kernel, grid, block, shared_bytes, stream});
}

std::vector<Call> calls() {
  const std::lock_guard guard(runtime_lock());
  std::vector<Call> all;
  for (const auto& [key, count] : counts())
    all.push_back({std::string(key.name), key.has_stream, key.stream, count});
  return all;
}

std::vector<LaunchRecord> launches() {
  const std::lock_guard guard(runtime_lock());
  std::vector<LaunchRecord> all;
  for (const Noted& n : noted())
    all.push_back({kernel_name(n.kernel), n.grid, n.block, n.shared_bytes, n.stream});
  return all;
}

std::size_t launch_count() {
  const std::lock_guard guard(runtime_lock());
  return noted().size();
}

std::vector<std::string> forbidden_calls() {
  const std::lock_guard guard(runtime_lock());
  std::vector<std::string> found;
  for (const auto& [key, count] : counts()) {
    if (allocates_or_waits(key.name))
      found.emplace_back(key.name);
    else if (key.has_stream && is_default(key.stream))
      found.push_back(std::string(key.name) + " on the default stream");
  }
  return found;
}

void reset_calls() {
  const std::lock_guard guard(runtime_lock());
  counts().clear();
  noted().clear();
}

}  // namespace hostexec
