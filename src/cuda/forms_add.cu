// SPDX-License-Identifier: Apache-2.0
/// Values that messages left apart (FramePlan::apart), added in order: those of sketches, and of layers that
/// choose their form.
///
/// The mathematics. y becomes y + (alpha * v) message by message, two roundings. Of a sketch
/// v = f32(s * scale) + rest, as low_rank.cu has it, rest 0 in rows that are not sent; of blocks and rows v is
/// what was kept apart, where the atom is kept, and of coordinates it is so everywhere.
///
/// Mapping. A warp owns a square of 32 x 32 entries, a lane 8 rows of 4 columns, and adds one message of the
/// turn after the other to it: sums of pairs stay in registers, and with those of the tensor too an SM
/// would have a third fewer warps. Four rows are read before one of them is written. A tensor that is no matrix
/// is one of 32 columns.
///
/// Traffic in bytes an entry: 8 for the tensor, from the second message of a turn on from the L2 cache, and
/// 4 a message for those of its entries that are sent by themselves; vectors come from the caches, 1/4 byte an
/// entry and pair. The instructions are those of the pairs' sums, 1.3 a product.
///
/// Shared memory: none. Determinism: every entry is one lane's, in order of messages and of pairs.
/// Alignment: vectors stand at multiples of 128 bytes and are filled up with zeros, and so do the values of
/// a layer; y is aligned to its entries, and 16 bytes are read and written at once where it allows it.

#include "cuda/atoms_decode.cuh"
#include "cuda/lane_square.cuh"

namespace atomo::cuda::atoms {
namespace {

/// A sketch, whose rows are the matrix's.
__device__ void add_sketch(const Frame& frame, const DecodePlan& plan, const FormsJob& job,
                           const LanePlace& place, std::uint32_t slot, const KeptAtoms& kept,
                           const LaneSquare& square, float* y, float alpha) {
  const OuterJob& outer = frame(plan.outer.jobs)[job.outer];
  const OuterState& state = frame(plan.outer.states)[job.outer];
  const std::uint32_t rows = kept.rows(place.row, square.whole());
  float sum[kOwnRows][kOwnColumns] = {};
  sum_square(LaneVectors(frame, outer, place, slot), state.count, sum,
             [](float s, float l, float r) { return fmaf(l, r, s); });
  if (square.put_sketch<true>(sum, static_cast<float>(state.scale), frame.apart(job.layer, slot),
                              rows, y, alpha))
    frame.notice(Status::overflow);
}

/// Message `slot` of a turn.
__device__ void add_message(const Frame& frame, const DecodePlan& plan, const FormsJob& job,
                            const LanePlace& place, std::uint32_t slot, const LaneSquare& square,
                            float* y, float alpha) {
  const LayerState& layer = frame.layer(job.layer);
  if (layer.decodes == 0) return;
  const std::uint32_t form = form_of(layer);
  const bool everywhere = job.chooses != 0 && form == format::kGridForm;
  KeptAtoms kept;
  if (!everywhere) {
    // Nothing is added of a body without bytes.
    if (layer.bytes == 0 || form >= FormsJob::kForms || job.jobs[form] == FormsJob::kNone) return;
    const bool blocks = job.chooses != 0 && form == format::kBlocksForm;
    kept =
        KeptAtoms(frame, plan.bodies, job.jobs[form], blocks ? AtomLayout::kBlock : job.row_length);
    if (form == job.sketch)
      return add_sketch(frame, plan, job, place, slot, kept, square, y, alpha);
    if (kept.classes == nullptr) return;
  }
  square.add_values(frame.apart(job.layer, slot), kept, everywhere, y, alpha);
}

__global__ void add_forms(const Frames frames, const DecodePlan plan, const MessageRange turn,
                          const float alpha) {
  const UnitOf at = unit_of_warp(frames.first, plan.forms_squares);
  if (!at) return;
  const FormsJob& job = frames.first(plan.forms)[at.job];
  float* const y = frames.first.layer(job.layer).y;
  if (y == nullptr) return;
  const LanePlace place = place_of_lane(at.index, job.columns);
  const LaneSquare square(place, job.columns, job.n, y);
#pragma unroll 1
  for (std::uint32_t slot = 0; slot < turn.count; ++slot)
    add_message(frames[turn.first + slot], plan, job, place, slot, square, y, alpha);
}

}  // namespace

void add_apart(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
               DecodeInto into, Queue& queue) {
  if (!into.add) return;
  queue.launch_warps(add_forms, plan.forms_squares.units, frames, plan, turn, into.alpha);
}

}  // namespace atomo::cuda::atoms
