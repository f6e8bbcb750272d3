// SPDX-License-Identifier: Apache-2.0
/// The rules of memories, in terms of the loops of cpu/memory.hpp.
#include "codec/layer_memory.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/halves.hpp"
#include "cpu/memory.hpp"

namespace atomo::codec {

using Rule = MemoryPlan::Rule;

MemoryPlan memory_plan(const Stages& stages) noexcept {
  const MemoryOptions& options = *stages.memory;
  MemoryPlan plan;
  plan.rule = options.rule == MemoryOptions::Rule::dgc ? Rule::velocity : Rule::residual;
  plan.dtype = options.dtype;
  plan.factor = static_cast<float>(options.factor);
  if (options.contract) plan.scale = static_cast<float>(1 / (1 + *stages.body->traits().omega));
  return plan;
}

std::vector<float> unsent(const MemoryPlan& plan, std::size_t n, ConstBytes bytes) {
  std::vector<float> values(n);
  if (n == 0) return values;
  if (plan.dtype == DType::f32) {
    std::memcpy(values.data(), bytes.last(n * sizeof(float)).data(), n * sizeof(float));
  } else {
    widen_halves(bytes.data(), plan.dtype, n, values.data(), nullptr);
  }
  return values;
}

bool is_sound(const MemoryPlan& plan, ConstBytes bytes) noexcept {
  const std::size_t size = size_of(plan.dtype);
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    // The exponent's bits are the upper ones of both.
    std::uint16_t upper = 0;
    std::memcpy(&upper, bytes.data() + at + size - 2, 2);
    if ((upper & 0x7F80u) == 0x7F80u) return false;
  }
  return true;
}

LayerMemory::LayerMemory(const MemoryPlan& plan, std::size_t n, bool takes_back)
    : plan_(plan), n_(n), kept_(plan.bytes(n)), before_(takes_back ? plan.bytes(n) : 0) {}

void LayerMemory::form(const ConstTensorView& gradient, float* x,
                       Executor* executor) const noexcept {
  if (plan_.dtype != DType::f32) {
    copy_entries(gradient, n_, x, executor);
    add_halves(kept_.data(), plan_.dtype, n_, plan_.factor, x, executor);
  } else if (plan_.rule == Rule::velocity) {
    form_with(gradient, values(), values() + n_, n_, plan_.factor, x, executor);
  } else {
    form_with(gradient, values(), n_, plan_.factor, x, executor);
  }
}

void LayerMemory::scale(float* x, Executor* executor) const noexcept {
  if (scales()) scale_entries(plan_.scale, n_, x, executor);
}

void LayerMemory::keep(const ConstTensorView& gradient, const float* left, const Key& key,
                       Executor* executor) noexcept {
  if (!before_.empty()) kept_.swap(before_);
  const std::byte* const was = before_.empty() ? kept_.data() : before_.data();
  auto* const to = reinterpret_cast<float*>(kept_.data());
  if (plan_.dtype != DType::f32) {
    static_cast<void>(
        round_to_half(left, n_, key, kMemoryDraws, plan_.dtype, kept_.data(), executor));
  } else if (plan_.rule == Rule::velocity) {
    keep_unsent(gradient, left, n_, plan_.factor, reinterpret_cast<const float*>(was), to,
                executor);
  } else {
    copy_entries({left, DType::f32, gradient.shape}, n_, to, executor);
  }
  moved_ = true;
}

void LayerMemory::take_back() noexcept {
  if (moved_) kept_.swap(before_);
  moved_ = false;
}

void LayerMemory::clear() noexcept {
  std::ranges::fill(kept_, std::byte{0});
  moved_ = false;
}

void LayerMemory::take(ConstBytes bytes) noexcept {
  std::ranges::copy(bytes, kept_.begin());
  moved_ = false;
}

}  // namespace atomo::codec
