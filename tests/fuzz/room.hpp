// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Memory and threads of the targets.

#include <cstring>
#include <memory>

#include "atomo/thread_pool.hpp"
#include "fuzz/target.hpp"

namespace atomo::fuzz {

/// Memory of exactly this size, so that a sanitizer sees every step beyond it.
class Room {
 public:
  explicit Room(std::size_t bytes, int fill = 0x5A) : memory_(new std::byte[bytes]), bytes_(bytes) {
    if (bytes > 0) std::memset(memory_.get(), fill, bytes);
  }
  [[nodiscard]] Bytes bytes() const { return {memory_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_;
};

inline ThreadPool& pool() {
  static ThreadPool threads(2);
  return threads;
}

}  // namespace atomo::fuzz
