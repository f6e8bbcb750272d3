// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Several messages added into half tensors: in f32 from the tensors' values on, rounded once.

#include "cuda/container.cuh"
#include "cuda/frame.cuh"

namespace atomo::cuda {

/// Puts the values of half views where the messages are added, and keeps the key of the first
/// message, which is open. Two launches.
void begin_half_sums(const Frame& frame, Split halves, CallScratch<Key> first_key, Queue& queue);
/// Rounds the sums under that key, whatever the last message held. Two launches.
void round_half_sums(const Frame& frame, Split halves, CallScratch<Key> first_key, Queue& queue);

}  // namespace atomo::cuda
