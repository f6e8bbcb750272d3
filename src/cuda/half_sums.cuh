// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Several messages added into half tensors: in f32 from the tensors' values on, rounded once.

#include "cuda/container.cuh"
#include "cuda/frame.cuh"

namespace atomo::cuda {

/// Of the first message whose head holds.
struct FirstKey {
  Key key;
  std::uint32_t found = 0;
};

/// Puts the values of half views where the messages are added.
void begin_half_sums(const Frame& frame, Split halves, Queue& queue);
/// Keeps the key of the first of these messages, which are open, where none was kept before; `begins`: none was.
void keep_first_key(const Frames& frames, CallScratch<FirstKey> first_key, bool begins,
                    Queue& queue);
/// Rounds the sums under that key, whatever the last messages held; without one nothing was added. Two launches.
void round_half_sums(const Frame& frame, Split halves, CallScratch<FirstKey> first_key,
                     Queue& queue);

}  // namespace atomo::cuda
