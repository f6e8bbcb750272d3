// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The memory of one layer between its messages (memory_options.hpp, docs/memories.md).

#include <cstdint>
#include <span>
#include <vector>

#include "atomo/types.hpp"
#include "codec/stages.hpp"
#include "format/kind.hpp"

namespace atomo::codec {

/// Made at set-up, which allocates; all zeros at first.
class LayerMemory {
 public:
  LayerMemory() = default;
  LayerMemory(const Stages& stages, std::size_t n);

  [[nodiscard]] const MemoryOptions& options() const noexcept { return options_; }
  /// x <- what the gradient and the memory come to.
  void form(const ConstTensorView& gradient, float* x, Executor* executor) const noexcept;
  /// What the codec is given of x: x itself, or that divided by 1 + omega.
  void scale(float* x, Executor* executor) const noexcept;
  [[nodiscard]] bool scales() const noexcept { return scale_ != 1; }
  /// `left` is what the message left of x.
  void keep(const ConstTensorView& gradient, const float* left, const Key& key,
            Executor* executor) noexcept;

  void clear() noexcept;
  /// What is kept of the layer's entries: e, or v of `dgc`.
  [[nodiscard]] std::vector<float> unsent() const;
  /// All of it, as it is saved.
  [[nodiscard]] ConstBytes bytes() const noexcept;
  /// Whether what may have been `bytes` of such a memory holds finite values alone.
  [[nodiscard]] bool is_sound(ConstBytes bytes) const noexcept;
  /// Takes what `bytes` gave.
  void take(ConstBytes bytes) noexcept;

 private:
  MemoryOptions options_;
  std::size_t n_ = 0;
  float factor_ = 1, scale_ = 1;
  std::vector<float> values_;          ///< e, or u and behind it v
  std::vector<std::uint16_t> halves_;  ///< e in place of it, where it is kept as bf16
};

}  // namespace atomo::codec
