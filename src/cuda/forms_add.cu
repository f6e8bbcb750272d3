// SPDX-License-Identifier: Apache-2.0
/// Values that messages left apart (FramePlan::apart), added in order: those of sketches, and of layers that
/// choose their form.
///
/// The mathematics. y becomes y + (alpha * v) message by message, two roundings. Of a sketch
/// v = f32(s * scale) + rest, as low_rank.cu has it, rest 0 in rows that are not sent; of blocks and rows v is
/// what was kept apart, where the atom is kept, and of coordinates it is so everywhere.
///
/// Mapping. A block owns a tile of 64 rows by 64 columns (tile_product.cuh), and adds one message of the turn
/// after the other to it: of a sketch a thread has 8 neighbouring columns of 4 rows, of values 4 of 8.
/// A tensor that is no matrix is one of 64 columns.
///
/// Traffic in bytes an entry: 8 for the tensor, from the second message of a turn on from the L2 cache, and
/// 4 a message for those of its entries that are sent by themselves; vectors come from the caches, 1/8 byte an
/// entry and pair.
///
/// Shared memory: 8,704 bytes. Determinism: every entry is one thread's, in order of messages and of pairs.
/// Alignment: vectors stand at multiples of 128 bytes, and so do the values of a layer; y is aligned to its
/// entries, and 16 bytes are read and written at once where it allows it.

#include "cuda/atoms_decode.cuh"
#include "cuda/entries.cuh"
#include "cuda/tile_product.cuh"

namespace atomo::cuda::atoms {
namespace {

/// A message's atoms of a layer, by their classes; null where no atom is kept.
struct KeptAtoms {
  const std::uint8_t* classes = nullptr;
  std::uint64_t atoms = 0, length = 1;

  [[nodiscard]] __device__ bool has(std::uint64_t atom) const {
    return classes != nullptr && atom < atoms && classes[atom] != 0;
  }
};

constexpr unsigned kFour = 4;
constexpr std::uint32_t kAllFour = (1u << kFour) - 1;

/// Four neighbouring entries of a row, those in the bits of `there`, which are all that a load or a sum
/// touches.
struct Four {
  std::uint64_t row, column, first;  ///< first: number of the entry
  std::uint32_t there;

  /// Those that are the tensor's.
  __device__ Four(const FormsJob& job, std::uint64_t row_of, std::uint64_t column_of)
      : row(row_of), column(column_of), first(row_of * job.columns + column_of) {
    const std::uint64_t behind = row < job.rows && column < job.columns && first < job.n
                                     ? min(job.columns - column, job.n - first)
                                     : 0;
    there = behind < kFour ? (1u << behind) - 1 : kAllFour;
  }

  __device__ void load(const float* from, float (&v)[kFour]) const {
    const float* const at = from + first;
    if (is_whole(at)) {
      const float4 four = *reinterpret_cast<const float4*>(at);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      return;
    }
#pragma unroll
    for (unsigned c = 0; c < kFour; ++c) v[c] = (there >> c & 1u) != 0 ? at[c] : 0.0f;
  }
  __device__ void add_to(float* y, const float (&v)[kFour], float alpha) const {
    const DecodeInto into{true, alpha};
    float* const at = y + first;
    if (is_whole(at)) {
      float4 four = *reinterpret_cast<const float4*>(at);
      put(&four.x, v[0], into);
      put(&four.y, v[1], into);
      put(&four.z, v[2], into);
      put(&four.w, v[3], into);
      *reinterpret_cast<float4*>(at) = four;
      return;
    }
#pragma unroll
    for (unsigned c = 0; c < kFour; ++c) {
      if ((there >> c & 1u) != 0) put(at + c, v[c], into);
    }
  }
  /// Leaves those out whose atom is not kept. Four entries are of one atom, or of two.
  __device__ void keep(const KeptAtoms& kept, std::uint64_t columns) {
    if (there == 0) return;
    const std::uint64_t atom = kept.length == AtomLayout::kBlock ? first / AtomLayout::kBlock
                               : kept.length == columns          ? row
                                                                 : first / kept.length;
    const std::uint64_t left = (atom + 1) * kept.length - first;
    const std::uint32_t own = left < kFour ? (1u << left) - 1 : kAllFour;
    there &=
        (kept.has(atom) ? own : 0) | (own != kAllFour && kept.has(atom + 1) ? kAllFour & ~own : 0);
  }

 private:
  [[nodiscard]] __device__ bool is_whole(const float* at) const {
    return there == kAllFour && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  }
};

/// A block's part of a layer, and what is added to.
struct FormsTile {
  const FormsJob& job;
  std::uint64_t row, column;  ///< its first
  float* y;
  float alpha;

  /// Adds the pairs' sums of a message on top of its rows, those that are kept.
  __device__ void add_sketch(const Frame& frame, const DecodePlan& plan, std::uint32_t slot,
                             const KeptAtoms& kept) const {
    const OuterJob& outer = frame(plan.outer.jobs)[job.outer];
    const OuterState& state = frame(plan.outer.states)[job.outer];
    const bool wide = outer.rows <= outer.columns;
    const auto vectors = [&](CallScratch<float> of, std::uint64_t length) {
      const std::uint64_t stride = vector_stride(length);
      return Operand<float>{frame(of) + slot * outer.pairs * stride, stride, length, false};
    };
    const auto right = vectors(wide ? outer.longer : outer.shorter, outer.columns);
    const auto left = vectors(wide ? outer.shorter : outer.longer, outer.rows);
    const auto scale = static_cast<float>(state.scale);
    const float* const apart = frame.apart(job.layer, slot);
    bool infinite = false;
    multiply_tile<float>(right, left, {column, row, 0, state.count},
                         [&](std::uint64_t of_row, std::uint64_t first, const float(&sums)[8]) {
                           const bool has_row = kept.has(of_row);
#pragma unroll
                           for (unsigned i = 0; i < 8; i += kFour) {
                             const Four four(job, of_row, first + i);
                             float v[kFour] = {};
                             if (has_row) four.load(apart, v);
#pragma unroll
                             for (unsigned c = 0; c < kFour; ++c) {
                               v[c] = sums[i + c] * scale + v[c];
                               infinite = infinite || is_infinite(v[c]);  // 0 beyond the matrix
                             }
                             four.add_to(y, v, alpha);
                           }
                         });
    if (infinite) frame.notice(Status::overflow);
  }
  /// Adds what stands apart of atoms that are kept, or everywhere.
  __device__ void add_values(const float* apart, const KeptAtoms& kept, bool everywhere) const {
    constexpr unsigned kAcross = kTileLines / kFour, kRows = kTileThreads / kAcross;
#pragma unroll
    for (unsigned r = threadIdx.x / kAcross; r < kTileLines; r += kRows) {
      Four four(job, row + r, column + kFour * (threadIdx.x % kAcross));
      if (!everywhere) four.keep(kept, job.columns);
      if (four.there == 0) continue;
      float v[kFour];
      four.load(apart, v);
      four.add_to(y, v, alpha);
    }
  }
};

/// Message `slot` of a turn.
__device__ void add_message(const Frame& frame, const DecodePlan& plan, std::uint32_t slot,
                            const FormsTile& tile) {
  const FormsJob& job = tile.job;
  const LayerState& layer = frame.layer(job.layer);
  if (layer.decodes == 0) return;
  const std::uint32_t form = form_of(layer);
  const bool everywhere = job.chooses != 0 && form == format::kGridForm;
  KeptAtoms kept;
  if (!everywhere) {
    // Nothing is added of a body without bytes.
    if (layer.bytes == 0 || form >= FormsJob::kForms || job.jobs[form] == FormsJob::kNone) return;
    const BodyJob& body = frame(plan.bodies.jobs)[job.jobs[form]];
    const bool stands = frame(plan.bodies.states)[job.jobs[form]].stands != 0;
    kept.classes = stands ? frame(plan.bodies.classes) + body.first_kept : nullptr;
    kept.atoms = body.atoms;
    const bool blocks = job.chooses != 0 && form == format::kBlocksForm;
    kept.length = blocks ? AtomLayout::kBlock : job.row_length;
    if (form == job.sketch) return tile.add_sketch(frame, plan, slot, kept);
    if (!stands) return;
  }
  tile.add_values(frame.apart(job.layer, slot), kept, everywhere);
}

__global__ void __launch_bounds__(kTileThreads)
    add_forms(const Frames frames, const DecodePlan plan, const MessageRange turn,
              const float alpha) {
  const UnitOf at = find_unit(frames.first, plan.forms_tiles, blockIdx.x);
  const FormsJob& job = frames.first(plan.forms)[at.job];
  float* const y = frames.first.layer(job.layer).y;
  if (y == nullptr) return;
  const std::uint64_t tiles = divide_up(job.columns, kTileLines);
  const FormsTile tile{job, at.index / tiles * kTileLines, at.index % tiles * kTileLines, y, alpha};
#pragma unroll 1
  for (std::uint32_t slot = 0; slot < turn.count; ++slot) {
    add_message(frames[turn.first + slot], plan, slot, tile);
    __syncthreads();  // the next message's forms may give an entry to another thread
  }
}

}  // namespace

void add_apart(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
               DecodeInto into, Queue& queue) {
  if (!into.add) return;
  queue.launch_blocks(add_forms, plan.forms_tiles.units, kTileThreads, 0, frames, plan, turn,
                      into.alpha);
}

}  // namespace atomo::cuda::atoms
