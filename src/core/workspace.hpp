// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One carving routine both counts and places a workspace: run on an empty span it counts, on a
/// real one it places.

#include <cstddef>
#include <cstdint>

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo::core {

/// Hands out consecutive pieces aligned to 64 bytes. `bytes()` is what a workspace of any alignment
/// must hold.
class Carver {
 public:
  Carver() = default;  ///< counts only
  explicit Carver(Bytes memory) noexcept : memory_(memory), places_(true) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    skip_ = static_cast<std::size_t>((64 - address % 64) % 64);
  }

  /// Room for `count` values of T; null data when counting or when the memory does not suffice (see
  /// `fits`).
  template <typename T>
  std::span<T> take(std::size_t count) noexcept {
    const std::size_t at = used_;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    if (!places_ || !fits()) return {};
    return {reinterpret_cast<T*>(memory_.data() + skip_ + at), count};
  }
  Bytes take_bytes(std::size_t count) noexcept { return take<std::byte>(count); }

  [[nodiscard]] bool fits() const noexcept {
    return !places_ || used_ == 0 || skip_ + used_ <= memory_.size();
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return used_ == 0 ? 0 : used_ + 63; }

 private:
  Bytes memory_{};
  bool places_ = false;
  std::size_t skip_ = 0, used_ = 0;
};

}  // namespace atomo::core
