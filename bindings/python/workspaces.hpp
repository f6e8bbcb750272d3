// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Scratch memory and threads that an object keeps for its calls.

#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "atomo/thread_pool.hpp"
#include "atomo/types.hpp"

namespace atomo::python {

/// Blocks of memory that are used again: as many as there were calls at once, each as large as the
/// largest call was. Thread-safe.
class WorkspacePool {
  struct Block {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes = 0;
  };

 public:
  /// A block for one call. Goes back to its pool, which must live longer.
  class Lease {
   public:
    Lease(WorkspacePool& pool, Block block, std::size_t bytes) noexcept
        : pool_(&pool), block_(std::move(block)), bytes_(bytes) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { pool_->give_back(std::move(block_)); }
    [[nodiscard]] Bytes bytes() const noexcept { return {block_.data.get(), bytes_}; }

   private:
    WorkspacePool* pool_;
    Block block_;
    std::size_t bytes_;
  };

  /// Memory of any content. Allocates when no block that is free is large enough.
  [[nodiscard]] Lease take(std::size_t bytes) {
    Block block = take_largest();
    if (block.bytes < bytes) {
      block = {};  // before the larger one is taken
      block = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
    }
    return {*this, std::move(block), bytes};
  }

 private:
  Block take_largest() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return {};
    auto largest = free_.begin();
    for (auto i = free_.begin(); i != free_.end(); ++i)
      if (i->bytes > largest->bytes) largest = i;
    std::swap(*largest, free_.back());
    Block block = std::move(free_.back());
    free_.pop_back();
    return block;
  }
  void give_back(Block block) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(block));
    } catch (const std::bad_alloc&) {  // the block is given to the system instead
    }
  }

  std::mutex mutex_;
  std::vector<Block> free_;
};

/// The threads of a model, made again in a process that was forked off: threads do not come along.
class Threads {
 public:
  /// \throws Error like `checked_threads`.
  explicit Threads(unsigned count) : count_(checked_threads(count)) {}
  /// Null for one thread.
  [[nodiscard]] Executor* executor() {
    if (count_ == 1) return nullptr;
    const std::lock_guard lock(mutex_);
    if (const pid_t process = ::getpid(); process != process_) {
      static_cast<void>(
          pool_.release());  // its threads are another process's, nobody can join them
      pool_ = std::make_unique<ThreadPool>(count_);
      process_ = process;
    }
    return pool_.get();
  }
  [[nodiscard]] unsigned count() const noexcept { return count_; }
  ~Threads() {
    if (process_ != ::getpid()) static_cast<void>(pool_.release());
  }

 private:
  unsigned count_;
  std::mutex mutex_;
  std::unique_ptr<ThreadPool> pool_;
  pid_t process_ = 0;
};

}  // namespace atomo::python
