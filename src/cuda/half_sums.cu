// SPDX-License-Identifier: Apache-2.0
/// Sums of several messages in half tensors. A warp widens 1,024 entries, 2 bytes read and 4
/// written an entry (the least); the rounding is that of a single message (container_open.cu).
#include "cuda/half_sums.cuh"

#include "cuda/cub.cuh"

namespace atomo::cuda {
namespace {

__global__ void widen_halves(Frame frame, Split halves) {
  if (warp_in_grid() >= halves.units) return;
  const UnitOf at = find_unit(frame, halves, warp_in_grid());
  const LayerState& layer = frame.layer(at.job);
  const Entries x{layer.callers, layer.callers_dtype};
  const std::uint64_t first = at.index * kHalfUnit, n = frame.info(at.job).n;
  const std::uint64_t end = first + kHalfUnit < n ? first + kHalfUnit : n;
  for (std::uint64_t i = first + lane(); i < end; i += kLanes) layer.y[i] = x(i);
}

__global__ void keep_key(Frames frames, CallScratch<FirstKey> kept, bool begins) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  FirstKey first;
  if (!begins) first = *frames.first(kept);
  for (std::uint32_t m = 0; m < frames.count && first.found == 0; ++m) {
    const MessageState& state = frames[m].state();
    if (!failed(static_cast<Status>(state.head_status))) first = {state.key, 1};
  }
  *frames.first(kept) = first;
}

__global__ void restore_key(Frame frame, CallScratch<FirstKey> kept) {
  const FirstKey first = *frame(kept);
  if (first.found == 0) return;
  if (threadIdx.x == 0) frame.state().key = first.key;
  for (std::uint32_t i = threadIdx.x; i < frame.plan.count; i += blockDim.x)
    frame.layer(i).decodes = 1;
}

}  // namespace

void begin_half_sums(const Frame& frame, Split halves, Queue& queue) {
  queue.launch_warps(widen_halves, halves.units, frame, halves);
}

void keep_first_key(const Frames& frames, CallScratch<FirstKey> first_key, bool begins,
                    Queue& queue) {
  queue.launch_warps(keep_key, 1, frames, first_key, begins);
}

void round_half_sums(const Frame& frame, Split halves, CallScratch<FirstKey> first_key,
                     Queue& queue) {
  queue.launch_blocks(restore_key, 1, kScanThreads, 0, frame, first_key);
  round_halves(frame, halves, queue);
}

}  // namespace atomo::cuda
