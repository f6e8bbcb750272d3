// SPDX-License-Identifier: Apache-2.0
/// The rules of memories, in terms of the loops of cpu/memory.hpp.
#include "codec/layer_memory.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/memory.hpp"

namespace atomo::codec {

using Rule = MemoryPlan::Rule;

MemoryPlan memory_plan(const Stages& stages) noexcept {
  const MemoryOptions& options = *stages.memory;
  MemoryPlan plan;
  const auto rule = options.rule;
  plan.rule = rule == MemoryOptions::Rule::dgc    ? Rule::velocity
              : rule == MemoryOptions::Rule::ef21 ? Rule::sum
                                                  : Rule::residual;
  plan.type = options.type;
  plan.factor = plan.rule == Rule::sum ? -1.0f : static_cast<float>(options.factor);
  if (options.contract) plan.scale = static_cast<float>(1 / (1 + *stages.body->traits().omega));
  return plan;
}

std::vector<float> unsent(const MemoryPlan& plan, std::size_t n, ConstBytes bytes) {
  std::vector<float> values(n);
  copy_unsent(plan, bytes.data(), n, values.data());
  return values;
}

namespace {

/// f32 or bf16 of `size` bytes, without Inf and NaN. The exponent's bits are the upper ones of both.
bool are_finite(ConstBytes values, std::size_t size) noexcept {
  for (std::size_t at = 0; at < values.size(); at += size) {
    std::uint16_t upper = 0;
    std::memcpy(&upper, values.data() + at + size - 2, 2);
    if ((upper & 0x7F80u) == 0x7F80u) return false;
  }
  return true;
}

/// Scales and codes as rounding to int8 gives them.
bool are_blocks(ConstBytes scales, ConstBytes codes) noexcept {
  if (!are_finite(scales, sizeof(float))) return false;
  for (std::size_t at = sizeof(float) - 1; at < scales.size(); at += sizeof(float)) {
    if ((scales[at] & std::byte{0x80}) != std::byte{0}) return false;
  }
  return std::ranges::find(codes, std::byte{0x80}) == codes.end();
}

}  // namespace

bool is_sound(const MemoryPlan& plan, std::size_t n, ConstBytes bytes) noexcept {
  for (std::size_t vector = 0; vector < plan.vectors(); ++vector) {
    const std::size_t scales = math::scale_bytes(plan.type, n),
                      values = math::value_bytes(plan.type, n);
    const ConstBytes own = bytes.subspan(vector * (scales + values), scales + values);
    if (plan.type == math::KeptType::int8 ? !are_blocks(own.first(scales), own.last(values))
                                          : !are_finite(own, math::value_bytes(plan.type, 1)))
      return false;
  }
  return true;
}

LayerMemory::LayerMemory(const MemoryPlan& plan, std::size_t n, bool takes_back)
    : plan_(plan), n_(n), kept_(plan.bytes(n)), before_(takes_back ? plan.bytes(n) : 0) {}

void LayerMemory::form(const ConstTensorView& gradient, float* x,
                       Executor* executor) const noexcept {
  form_with(plan_, gradient, kept_.data(), n_, x, executor);
}

void LayerMemory::scale(float* x, Executor* executor) const noexcept {
  if (scales()) scale_entries(plan_.scale, n_, x, executor);
}

void LayerMemory::keep(const ConstTensorView& gradient, const float* left, const Key& key,
                       Executor* executor) noexcept {
  if (!before_.empty()) kept_.swap(before_);
  const std::byte* const was = before_.empty() ? kept_.data() : before_.data();
  keep_unsent(plan_, gradient, left, n_, key, was, kept_.data(), executor);
}

void LayerMemory::clear() noexcept { std::ranges::fill(kept_, std::byte{0}); }

void LayerMemory::take(ConstBytes bytes) noexcept { std::ranges::copy(bytes, kept_.begin()); }

}  // namespace atomo::codec
