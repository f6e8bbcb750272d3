// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The memories of senders (docs/memories.md): what is encoded is formed of a gradient and of what is
/// kept, and what is kept follows from what the message has left out. Each product and each sum is one
/// f32 rounding. Calls run in tasks of 65,536 entries on the executor, which may be null.

#include <cstddef>

#include "atomo/types.hpp"

namespace atomo::cpu {

/// The n values at `view` as f32.
void copy_entries(const ConstTensorView& view, std::size_t n, float* x,
                  Executor* executor) noexcept;
/// x <- g + factor e, in one pass.
void form_with(const ConstTensorView& g, const float* e, std::size_t n, float factor, float* x,
               Executor* executor) noexcept;
/// x <- v + (g + factor u), in one pass.
void form_with(const ConstTensorView& g, const float* u, const float* v, std::size_t n,
               float factor, float* x, Executor* executor) noexcept;
/// x <- scale x.
void scale_entries(float scale, std::size_t n, float* x, Executor* executor) noexcept;
/// to v <- left, to u <- factor u + g where `left` is what v + (g + factor u) was, and 0 elsewhere: there
/// the message took something. `kept` and `to` have u and behind it v, n values each, and may be one.
void keep_unsent(const ConstTensorView& g, const float* left, std::size_t n, float factor,
                 const float* kept, float* to, Executor* executor) noexcept;

}  // namespace atomo::cpu
