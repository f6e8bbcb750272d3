// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The memories of senders (docs/memories.md): what is encoded is formed of a gradient and of what is
/// kept, and what is kept follows from what the message has left out. Each product and each sum is one
/// f32 rounding; types of fewer bits are rounded at random. Calls run in tasks of 65,536 entries on the
/// executor, which may be null.

#include <cstddef>

#include "atomo/types.hpp"
#include "backend/layer_plan.hpp"

namespace atomo::cpu {

using backend::MemoryPlan;

/// x <- what g and `kept`, as the plan lays it out, come to, in one pass.
void form_with(const MemoryPlan& plan, const ConstTensorView& g, const std::byte* kept,
               std::size_t n, float* x, Executor* executor) noexcept;
/// x <- scale x.
void scale_entries(float scale, std::size_t n, float* x, Executor* executor) noexcept;
/// What is kept next, where the message left `left` of what was formed with `kept`: `left` itself, and of a
/// velocity u what was formed of it, or 0 where the message took something; of a sum the sum with what the message
/// took. `to` may be `kept`.
void keep_unsent(const MemoryPlan& plan, const ConstTensorView& g, const float* left, std::size_t n,
                 const Key& key, const std::byte* kept, std::byte* to, Executor* executor) noexcept;
/// The last vector of `kept`: e, s or v.
void copy_unsent(const MemoryPlan& plan, const std::byte* kept, std::size_t n, float* to) noexcept;

}  // namespace atomo::cpu
