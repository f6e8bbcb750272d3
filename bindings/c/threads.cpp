// SPDX-License-Identifier: Apache-2.0
// What contexts refer to: threads (atomo/thread_pool.hpp) and CUDA handles (atomo/cuda.hpp).
#include "boundary.hpp"

using atomo::c::given;
using atomo::c::handed_out;

namespace {

constexpr std::uint32_t kMaxThreads = 4096;

/// Threads of the caller's.
class CallersThreads final : public atomo::Executor {
 public:
  CallersThreads(atomo_run runs, void* user) : run_(runs), user_(user) {}
  void run(std::size_t count, void (*task)(void*, std::size_t), void* state) noexcept override {
    run_(user_, count, task, state);
  }

 private:
  atomo_run run_;
  void* user_;
};

}  // namespace

atomo_status atomo_threads_create(uint32_t count, atomo_threads** threads) {
  return handed_out(threads, [&] {
    if (count == 0 || count > kMaxThreads) {
      throw atomo::Error("count is " + std::to_string(count) + ": expected 1 to " +
                         std::to_string(kMaxThreads) + " threads, the calling one included");
    }
    return std::make_unique<atomo::ThreadPool>(count);
  });
}

atomo_status atomo_threads_from(atomo_run run, void* user, atomo_threads** threads) {
  return handed_out(threads, [&] {
    if (run == nullptr) throw atomo::Error("run is NULL: this call needs it");
    return std::make_unique<CallersThreads>(run, user);
  });
}

void atomo_threads_destroy(atomo_threads* threads) { delete threads; }

atomo_status atomo_handles_create(atomo_handles** handles) {
  return handed_out(handles, [] { return atomo::make_handles(); });
}

void atomo_handles_destroy(atomo_handles* handles) { delete handles; }
