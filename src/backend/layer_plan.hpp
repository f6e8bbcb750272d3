// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A layer as a backend needs it: plain data, made once from a codec and a shape.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "format/kind.hpp"
#include "format/layer_record.hpp"
#include "math/kept_values.hpp"
#include "math/selection.hpp"
#include "price/budget.hpp"
#include "price/price_rule.hpp"

namespace atomo::backend {

/// What the sender keeps of a layer (docs/memories.md), as arithmetic knows it.
struct MemoryPlan {
  enum class Rule : std::uint8_t {
    none = 0,
    residual = 1,  ///< x = g + factor e; e <- what the message left of x
    velocity = 2,  ///< u <- factor u + g; x = v + u; v <- x - c; u <- 0 where c was sent
    sum = 3,       ///< x = g + factor s, factor -1; s <- s + what the message took of x
  };
  Rule rule = Rule::none;
  math::KeptType type = math::KeptType::f32;  ///< of what is kept
  float factor = 1;
  float scale = 1;  ///< the codec is given x times this

  /// That are kept of a layer: e or s, or u and behind it v.
  [[nodiscard]] std::size_t vectors() const noexcept {
    return rule == Rule::none ? 0 : rule == Rule::velocity ? 2 : 1;
  }
  /// Of a layer of n entries.
  [[nodiscard]] std::size_t bytes(std::size_t n) const noexcept {
    return vectors() * math::kept_bytes(type, n);
  }
};

/// Everything about a layer that does not depend on its values.
struct LayerPlan {
  Kind kind;                        ///< what the bodies of the layer are, and its shape
  std::size_t n = 0;                ///< entries
  std::size_t max_body_bytes = 0;   ///< own price included, padding not
  std::size_t min_limit_bytes = 0;  ///< under a cap: what a body can always be thinned to, own
                                    ///< price included; 0 without one
  PriceRule price_rule;             ///< where the price comes from
  unsigned sketch_iterations = 1;   ///< rounds of the iteration that finds a sketch's pairs
  Selection selection = Selection::drawn;  ///< how atoms are kept
  bool learns_rank = false;                ///< of its sketches, in a model
  bool fixed_size = false;                 ///< every body has `max_body_bytes`
  bool bounded = false;                    ///< by `max_body_bytes`, or by its cap
  bool has_cuda = false;                   ///< the codec has a CUDA twin
  MemoryPlan memory;                       ///< in front of the codec

  /// What is encoded is the gradient with what a memory kept.
  [[nodiscard]] bool remembers() const noexcept { return memory.rule != MemoryPlan::Rule::none; }
};

/// Bytes that the body of a message of this layer alone may have under its cap (at least 1, so that
/// a cap without room is seen), 0 without one.
[[nodiscard]] inline std::size_t limit_of(const LayerPlan& plan, std::size_t head) noexcept {
  if (plan.min_limit_bytes == 0) return 0;
  return std::max<std::size_t>(capped_bytes(plan.price_rule.cap_bits, plan.n, head), 1);
}

/// Most bytes of a message of this layer alone, 0 where its cap is too tight.
[[nodiscard]] inline std::size_t max_message_bytes(const LayerPlan& plan,
                                                   std::size_t head) noexcept {
  const std::size_t limit = limit_of(plan, head);
  if (limit > 0 && limit < plan.min_limit_bytes) return 0;
  const std::size_t body = limit > 0 ? std::min(limit, plan.max_body_bytes) : plan.max_body_bytes;
  return head + static_cast<std::size_t>(padded(body));
}

/// Bits that the budget of this layer leaves for its body in a message of its own, whose other parts
/// take `fixed_bits`.
[[nodiscard]] inline double single_body_budget(const LayerPlan& plan, double fixed_bits) noexcept {
  return body_budget(plan.price_rule.budget_bits * static_cast<double>(plan.n), fixed_bits);
}

/// Bytes that a message of this layer alone is expected to take: all of them at a fixed size, its
/// budget where it has one.
[[nodiscard]] inline std::optional<std::uint64_t> expected_message_bytes(
    const LayerPlan& plan, std::size_t head) noexcept {
  if (plan.fixed_size || plan.n == 0) return max_message_bytes(plan, head);
  if (plan.price_rule.pool == Pool::none || plan.price_rule.from != PriceRule::From::budget)
    return std::nullopt;
  const double body = single_body_budget(plan, 8.0 * static_cast<double>(head)) / 8;
  return head + static_cast<std::uint64_t>(body);
}

}  // namespace atomo::backend
