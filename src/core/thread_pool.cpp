// SPDX-License-Identifier: Apache-2.0
/// Threads that wait for tasks and share them one by one; the caller's thread takes part.
#include "atomo/thread_pool.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace atomo {

namespace {

/// A layer is a dozen runs of tasks that follow each other at once: who waits looks again for about as
/// long as waking up takes, before it sleeps.
constexpr auto kLooks = std::chrono::microseconds(40);

template <typename Done>
void look_for(Done done) noexcept {
  const auto end = std::chrono::steady_clock::now() + kLooks;
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

struct ThreadPool::Impl {
  std::mutex one_run;  // held for a whole run
  std::mutex mutex;    // guards what follows
  std::condition_variable wake, done;
  void (*task)(void*, std::size_t) = nullptr;
  void* state = nullptr;
  std::size_t count = 0;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<std::size_t> busy{0};  // workers inside the current run
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;

  // Here, so that a pool whose threads could not all be started ends those that were.
  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (auto& thread : threads) thread.join();
  }

  void work() noexcept {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) task(state, i);
  }

  void loop() noexcept {
    std::uint64_t seen = 0;
    const auto called = [&] { return stop || generation != seen; };
    for (std::unique_lock lock(mutex);;) {
      lock.unlock();
      look_for(called);
      lock.lock();
      wake.wait(lock, called);
      if (stop) return;
      seen = generation;
      lock.unlock();
      work();
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(unsigned threads) : impl_(std::make_unique<Impl>()) {
  if (threads == 0)
    throw Error("a thread pool of 0 threads: it needs at least 1, the calling thread");
  try {
    for (unsigned i = 1; i < threads; ++i)
      impl_->threads.emplace_back([impl = impl_.get()] { impl->loop(); });
  } catch (const std::system_error& e) {
    throw Error("a thread pool of " + std::to_string(threads) + " threads: the system started " +
                std::to_string(impl_->threads.size()) + " and no more (" + e.what() +
                "); ask for fewer");
  }
}

ThreadPool::~ThreadPool() = default;

std::size_t ThreadPool::threads() const noexcept { return impl_->threads.size() + 1; }

void ThreadPool::run(std::size_t count, void (*task)(void* state, std::size_t i),
                     void* state) noexcept {
  std::lock_guard run_lock(impl_->one_run);
  {
    std::lock_guard lock(impl_->mutex);
    impl_->task = task;
    impl_->state = state;
    impl_->count = count;
    impl_->next = 0;
    impl_->busy = impl_->threads.size();
    ++impl_->generation;
  }
  impl_->wake.notify_all();
  impl_->work();
  const auto finished = [&] { return impl_->busy == 0; };
  look_for(finished);
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, finished);
}

}  // namespace atomo
