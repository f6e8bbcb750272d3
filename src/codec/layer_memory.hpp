// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The memory of one layer between its messages (memory_options.hpp, docs/memories.md).

#include <vector>

#include "atomo/types.hpp"
#include "backend/layer_plan.hpp"
#include "codec/stages.hpp"

namespace atomo::codec {

/// The memory in front of a codec that has one.
[[nodiscard]] MemoryPlan memory_plan(const Stages& stages) noexcept;

/// What is kept of a layer's n entries: e, v of `dgc`, s of `ef21`. `bytes`: as they are saved. Allocates.
[[nodiscard]] std::vector<float> unsent(const MemoryPlan& plan, std::size_t n, ConstBytes bytes);
/// Whether what may be the bytes of such a memory holds finite values alone.
[[nodiscard]] bool is_sound(const MemoryPlan& plan, std::size_t n, ConstBytes bytes) noexcept;

/// On the CPU. Made at set-up, which allocates; all zeros at first.
class LayerMemory {
 public:
  LayerMemory() = default;
  /// `takes_back`: what was kept before the last message is kept too.
  LayerMemory(const MemoryPlan& plan, std::size_t n, bool takes_back);

  /// x <- what the gradient and the memory come to.
  void form(const ConstTensorView& gradient, float* x, Executor* executor) const noexcept;
  /// What the codec is given of x: x itself, or that divided by 1 + omega.
  void scale(float* x, Executor* executor) const noexcept;
  [[nodiscard]] bool scales() const noexcept { return plan_.scale != 1; }
  /// `left` is what the message left of x.
  void keep(const ConstTensorView& gradient, const float* left, const Key& key,
            Executor* executor) noexcept;
  /// What the last message moved becomes what it was before: once, and only of a message that moved it.
  void take_back() noexcept { kept_.swap(before_); }

  void clear() noexcept;
  /// All of it, as it is saved.
  [[nodiscard]] ConstBytes bytes() const noexcept { return kept_; }
  /// Of all that it takes.
  [[nodiscard]] std::size_t size() const noexcept { return kept_.size() + before_.size(); }
  /// Takes what `bytes` gave.
  void take(ConstBytes bytes) noexcept;

 private:
  MemoryPlan plan_;
  std::size_t n_ = 0;
  std::vector<std::byte> kept_,
      before_;  ///< e or s, or u and behind it v; and the same of the message before
};

}  // namespace atomo::codec
