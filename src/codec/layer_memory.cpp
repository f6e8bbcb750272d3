// SPDX-License-Identifier: Apache-2.0
/// The rules of memories, in terms of the loops of cpu/memory.hpp.
#include "codec/layer_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/halves.hpp"
#include "cpu/memory.hpp"

namespace atomo::codec {

LayerMemory::LayerMemory(const Stages& stages, std::size_t n)
    : options_(*stages.memory), n_(n), factor_(static_cast<float>(options_.factor)) {
  if (options_.contract) scale_ = static_cast<float>(1 / (1 + *stages.body->traits().omega));
  if (options_.dtype == DType::f32) {
    values_.resize(options_.values() * n);
  } else {
    halves_.resize(n);
  }
}

void LayerMemory::form(const ConstTensorView& gradient, float* x,
                       Executor* executor) const noexcept {
  copy_entries(gradient, n_, x, executor);
  if (options_.dtype != DType::f32) {
    add_halves(halves_.data(), options_.dtype, n_, factor_, x, executor);
  } else if (options_.rule == MemoryOptions::Rule::dgc) {
    add_kept(values_.data(), values_.data() + n_, n_, factor_, x, executor);
  } else {
    add_kept(values_.data(), n_, factor_, x, executor);
  }
}

void LayerMemory::scale(float* x, Executor* executor) const noexcept {
  if (scales()) scale_entries(scale_, n_, x, executor);
}

void LayerMemory::keep(const ConstTensorView& gradient, const float* left, const Key& key,
                       Executor* executor) noexcept {
  if (options_.dtype != DType::f32) {
    static_cast<void>(
        round_to_half(left, n_, key, kMemoryDraws, options_.dtype, halves_.data(), executor));
  } else if (options_.rule == MemoryOptions::Rule::dgc) {
    keep_unsent(gradient, left, n_, factor_, values_.data(), values_.data() + n_, executor);
  } else {
    copy_entries({left, DType::f32, gradient.shape}, n_, values_.data(), executor);
  }
}

void LayerMemory::clear() noexcept {
  std::ranges::fill(values_, 0.0f);
  std::ranges::fill(halves_, std::uint16_t{0});
}

std::vector<float> LayerMemory::unsent() const {
  if (options_.dtype == DType::f32) {
    return {values_.end() - static_cast<std::ptrdiff_t>(n_), values_.end()};
  }
  std::vector<float> values(n_);
  widen_halves(halves_.data(), options_.dtype, n_, values.data(), nullptr);
  return values;
}

ConstBytes LayerMemory::bytes() const noexcept {
  return options_.dtype == DType::f32 ? std::as_bytes(std::span(values_))
                                      : std::as_bytes(std::span(halves_));
}

bool LayerMemory::is_sound(ConstBytes bytes) const noexcept {
  const std::size_t size = size_of(options_.dtype);
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    // The exponent's bits are the upper ones of both.
    std::uint16_t upper = 0;
    std::memcpy(&upper, bytes.data() + at + size - 2, 2);
    if ((upper & 0x7F80u) == 0x7F80u) return false;
  }
  return true;
}

void LayerMemory::take(ConstBytes bytes) noexcept {
  void* const to = options_.dtype == DType::f32 ? static_cast<void*>(values_.data())
                                                : static_cast<void*>(halves_.data());
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

}  // namespace atomo::codec
