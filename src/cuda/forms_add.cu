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
/// would have a third fewer warps. A tensor that is no matrix is one of 32 columns.
///
/// Traffic in bytes an entry: 8 for the tensor, from the second message of a turn on from the L2 cache, and
/// 4 a message for those of its entries that are sent by themselves; vectors come from the caches, 1/4 byte an
/// entry and pair. The instructions are those of the pairs' sums, 1.3 a product.
///
/// Shared memory: none. Determinism: every entry is one lane's, in order of messages and of pairs.
/// Alignment: vectors stand at multiples of 128 bytes and are filled up with zeros, and so do the values of
/// a layer; y is aligned to its entries, and 16 bytes are read and written at once where it allows it.

#include "cuda/atoms_decode.cuh"
#include "cuda/entries.cuh"
#include "cuda/outer_square.cuh"

namespace atomo::cuda::atoms {
namespace {

/// A message's atoms of a layer, by their classes; null where no atom is kept.
struct KeptAtoms {
  const std::uint8_t* classes = nullptr;
  std::uint64_t atoms = 0, length = 1;

  [[nodiscard]] __device__ bool has(std::uint64_t atom) const {
    return classes != nullptr && atom < atoms && classes[atom] != 0;
  }
  /// A bit for each of the lane's rows, which are atoms; `whole`: all of these are there.
  [[nodiscard]] __device__ std::uint32_t rows(std::uint64_t first, bool whole) const {
    std::uint32_t rows = 0;
    if (classes == nullptr) return rows;
    const std::uint8_t* const of = in_one(classes + first);
#pragma unroll
    for (unsigned r = 0; r < kOwnRows; ++r)
      rows |= (whole || first + r < atoms) && of[r] != 0 ? 1u << r : 0u;
    return rows;
  }
};

/// Entries that a lane owns. Where they are whole, all of them are there and stand at multiples of 16
/// bytes.
class LaneSquare {
 public:
  __device__ LaneSquare(const FormsJob& job, const LanePlace& place, float* y, float alpha)
      : job_(job),
        place_(place),
        first_(place.row * job.columns + place.column),
        y_(y + first_),
        into_{true, alpha} {
    const std::uint64_t last = first_ + (kOwnRows - 1) * job.columns;
    whole_ = place.row + kOwnRows <= job.rows && place.column < job.columns &&
             last + kOwnColumns <= job.n && job.columns % kOwnColumns == 0 &&
             reinterpret_cast<std::uintptr_t>(y) % 16 == 0;
  }

  [[nodiscard]] __device__ bool whole() const { return whole_; }
  /// Adds the pairs' sums of a message on top of its rows, those that are kept; whether one is infinite.
  __device__ bool add_sketch(const float (&sum)[kOwnRows][kOwnColumns], float scale,
                             const float* apart, std::uint32_t kept) const {
    return whole_ ? add_on_rows<true>(sum, scale, apart, kept)
                  : add_on_rows<false>(sum, scale, apart, kept);
  }
  /// Adds what stands apart of atoms that are kept, or everywhere.
  __device__ void add_values(const float* apart, const KeptAtoms& kept, bool everywhere) const {
#pragma unroll 1
    for (unsigned r = 0; r < kOwnRows; ++r) {
      const std::uint64_t row = r * job_.columns;
      const std::uint32_t there = everywhere ? kAllColumns : kept_columns(kept, r);
      float v[kOwnColumns];
      if (whole_ && there == kAllColumns) {
        load<true>(apart + first_ + row, r, v);
        put<true>(y_ + row, r, v, there);
      } else if (there != 0) {
        load<false>(apart + first_ + row, r, v);
        put<false>(y_ + row, r, v, there);
      }
    }
  }

 private:
  static constexpr std::uint32_t kAllColumns = (1u << kOwnColumns) - 1;

  /// Whether the lane's entry is the tensor's.
  [[nodiscard]] __device__ bool has(unsigned r, unsigned c = 0) const {
    return place_.row + r < job_.rows && place_.column + c < job_.columns &&
           first_ + r * job_.columns + c < job_.n;
  }
  /// The lane's entries of row r, which `from` points to; those that are not there are 0.
  template <bool kWhole>
  __device__ void load(const float* from, unsigned r, float (&v)[kOwnColumns]) const {
    if constexpr (kWhole) {
      const float4 four = load_four(from);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
#pragma unroll
      for (unsigned c = 0; c < kOwnColumns; ++c) v[c] = has(r, c) ? from[c] : 0.0f;
    }
  }
  /// Adds to the entries of row r, which `to` points to, those in the bits of `there`.
  template <bool kWhole>
  __device__ void put(float* to, unsigned r, const float (&v)[kOwnColumns],
                      std::uint32_t there) const {
    if constexpr (kWhole) {
      float4 four = load_four(to);
      cuda::put(&four.x, v[0], into_);
      cuda::put(&four.y, v[1], into_);
      cuda::put(&four.z, v[2], into_);
      cuda::put(&four.w, v[3], into_);
      *reinterpret_cast<float4*>(to) = four;
    } else {
#pragma unroll
      for (unsigned c = 0; c < kOwnColumns; ++c) {
        if ((there >> c & 1u) != 0 && has(r, c)) cuda::put(to + c, v[c], into_);
      }
    }
  }
  template <bool kWhole>
  __device__ bool add_on_rows(const float (&sum)[kOwnRows][kOwnColumns], float scale,
                              const float* apart, std::uint32_t kept) const {
    bool infinite = false;
    const float* from = apart + first_;
    float* to = y_;
#pragma unroll
    for (unsigned r = 0; r < kOwnRows; ++r) {
      float v[kOwnColumns] = {};
      if ((kept >> r & 1u) != 0) load<kWhole>(from, r, v);
#pragma unroll
      for (unsigned c = 0; c < kOwnColumns; ++c) {
        v[c] = sum[r][c] * scale + v[c];
        infinite = infinite || is_infinite(v[c]);  // 0 beyond the matrix
      }
      put<kWhole>(to, r, v, kAllColumns);
      from = in_one(from + job_.columns);
      to = in_one(to + job_.columns);
    }
    return infinite;
  }
  /// A bit for each of the lane's columns of row r.
  [[nodiscard]] __device__ std::uint32_t kept_columns(const KeptAtoms& kept, unsigned r) const {
    if (!has(r)) return 0;
    const std::uint64_t i = first_ + r * job_.columns;
    const std::uint64_t atom = kept.length == AtomLayout::kBlock ? i / AtomLayout::kBlock
                               : kept.length == job_.columns     ? place_.row + r
                                                                 : i / kept.length;
    // A lane's columns are of one atom, or of two.
    const std::uint64_t left = (atom + 1) * kept.length - i;
    const std::uint32_t own = left < kOwnColumns ? (1u << left) - 1 : kAllColumns;
    return (kept.has(atom) ? own : 0) |
           (own != kAllColumns && kept.has(atom + 1) ? kAllColumns & ~own : 0);
  }

  const FormsJob& job_;
  LanePlace place_;
  std::uint64_t first_;  ///< the lane's first entry
  float* y_;             ///< of that
  DecodeInto into_;
  bool whole_;
};

/// A sketch, whose rows are the matrix's.
__device__ void add_sketch(const Frame& frame, const DecodePlan& plan, const FormsJob& job,
                           const LanePlace& place, std::uint32_t slot, const KeptAtoms& kept,
                           const LaneSquare& square) {
  const OuterJob& outer = frame(plan.outer.jobs)[job.outer];
  const OuterState& state = frame(plan.outer.states)[job.outer];
  float sum[kOwnRows][kOwnColumns] = {};
  sum_square(LaneVectors(frame, outer, place, slot), state.count, sum,
             [](float s, float l, float r) { return fmaf(l, r, s); });
  if (square.add_sketch(sum, static_cast<float>(state.scale), frame.apart(job.layer, slot),
                        kept.rows(place.row, square.whole())))
    frame.notice(Status::overflow);
}

/// Message `slot` of a turn.
__device__ void add_message(const Frame& frame, const DecodePlan& plan, const FormsJob& job,
                            const LanePlace& place, std::uint32_t slot, const LaneSquare& square) {
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
    if (form == job.sketch) return add_sketch(frame, plan, job, place, slot, kept, square);
    if (!stands) return;
  }
  square.add_values(frame.apart(job.layer, slot), kept, everywhere);
}

__global__ void add_forms(const Frames frames, const DecodePlan plan, const MessageRange turn,
                          const float alpha) {
  const UnitOf at = unit_of_warp(frames.first, plan.forms_squares);
  if (!at) return;
  const FormsJob& job = frames.first(plan.forms)[at.job];
  float* const y = frames.first.layer(job.layer).y;
  if (y == nullptr) return;
  const LanePlace place = place_of_lane(at.index, job.columns);
  const LaneSquare square(job, place, y, alpha);
#pragma unroll 1
  for (std::uint32_t slot = 0; slot < turn.count; ++slot)
    add_message(frames[turn.first + slot], plan, job, place, slot, square);
}

}  // namespace

void add_apart(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
               DecodeInto into, Queue& queue) {
  if (!into.add) return;
  queue.launch_warps(add_forms, plan.forms_squares.units, frames, plan, turn, into.alpha);
}

}  // namespace atomo::cuda::atoms
