// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A lane's entries of a warp's square (outer_square.cuh) as they meet the output: what low_rank.cu and
/// forms_add.cu share. Several rows are read before the first of them is written: no read passes a write that
/// may be to the same place, and the lane would wait for the memory once a row.

#include "cuda/atom_body.cuh"
#include "cuda/entries.cuh"
#include "cuda/outer_square.cuh"

namespace atomo::cuda::atoms {

inline constexpr std::uint32_t kAllColumns = (1u << kOwnColumns) - 1;

/// A message's atoms of a layer, by their classes; null where no atom is kept.
struct KeptAtoms {
  const std::uint8_t* classes = nullptr;
  std::uint64_t atoms = 0, length = 1;

  __device__ KeptAtoms() {}
  /// Those of body `number`, of so many entries each.
  __device__ KeptAtoms(const Frame& frame, const BodyPlan& bodies, std::uint32_t number,
                       std::uint64_t entries)
      : length(entries) {
    const BodyJob& job = frame(bodies.jobs)[number];
    atoms = job.atoms;
    if (frame(bodies.states)[number].stands != 0) classes = frame(bodies.classes) + job.first_kept;
  }

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

/// The lane's entries of n in lines of so many columns. Where they are whole, all of them are there and stand
/// at multiples of 16 bytes.
class LaneSquare {
 public:
  __device__ LaneSquare(const LanePlace& place, std::uint64_t columns, std::uint64_t n,
                        const float* y)
      : place_(place), columns_(columns), first_(place.row * columns + place.column) {
    const std::uint64_t own = columns > place.column ? columns - place.column : 0;
    own_columns_ = own < kOwnColumns ? static_cast<unsigned>(own) : kOwnColumns;
    left_ = first_ < n ? n - first_ : 0;
    whole_ = own != 0 && columns % kOwnColumns == 0 &&
             left_ >= (kOwnRows - 1) * columns + kOwnColumns &&
             reinterpret_cast<std::uintptr_t>(y) % 16 == 0;
  }

  [[nodiscard]] __device__ bool whole() const { return whole_; }

  /// A sketch's values v = sum * scale + rest, rest 0 in rows without a bit in `kept`: y becomes v, or
  /// y + (alpha * v). Whether a value is infinite.
  template <bool kAdd>
  __device__ bool put_sketch(const float (&sum)[kOwnRows][kOwnColumns], float scale,
                             const float* rest, std::uint32_t kept, float* y, float alpha) const {
    return whole_ ? put_whole<kAdd>(sum, scale, rest + first_, kept, y + first_, alpha)
                  : put_partly<kAdd>(sum, scale, rest + first_, kept, y + first_, alpha);
  }
  /// y becomes y + (alpha * v), v being the values of atoms that are kept, or all of them.
  __device__ void add_values(const float* values, const KeptAtoms& kept, bool everywhere, float* y,
                             float alpha) const {
#pragma unroll 1
    for (unsigned first = 0; first < kOwnRows; first += kTogether) {
      std::uint32_t there[kTogether];
      bool whole = whole_;
#pragma unroll
      for (unsigned r = 0; r < kTogether; ++r) {
        there[r] = everywhere ? kAllColumns : kept_columns(kept, first + r);
        whole = whole && (there[r] == 0 || there[r] == kAllColumns);
      }
      const float* const from = values + first_ + first * columns_;
      float* const to = y + first_ + first * columns_;
      if (whole)
        add_rows<true>(from, first, there, to, alpha);
      else
        add_rows<false>(from, first, there, to, alpha);
    }
  }

 private:
  static constexpr unsigned kTogether = 4;  // rows that are read before one is written
  using Row = float[kOwnColumns];

  [[nodiscard]] __device__ bool has(unsigned r, unsigned c) const {
    return c < own_columns_ && r * columns_ + c < left_;
  }
  /// The entries of row r, which `from` points to, but those in no bit of `there`.
  template <bool kWhole>
  __device__ void load(const float* from, unsigned r, std::uint32_t there, Row& v) const {
    if constexpr (kWhole) {
      if (there == 0) return;
      const float4 four = load_four(from);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
#pragma unroll
      for (unsigned c = 0; c < kOwnColumns; ++c)
        if ((there >> c & 1u) != 0 && has(r, c)) v[c] = from[c];
    }
  }
  /// Likewise.
  template <bool kWhole>
  __device__ void store(float* to, unsigned r, std::uint32_t there, const Row& v) const {
    if constexpr (kWhole) {
      // From an address made of terms the compiler would store the four one by one.
      if (there != 0) *reinterpret_cast<float4*>(in_one(to)) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
#pragma unroll
      for (unsigned c = 0; c < kOwnColumns; ++c)
        if ((there >> c & 1u) != 0 && has(r, c)) to[c] = v[c];
    }
  }

  template <bool kAdd>
  __device__ bool put_whole(const float (&sum)[kOwnRows][kOwnColumns], float scale,
                            const float* rest, std::uint32_t kept, float* y, float alpha) const {
    constexpr unsigned kBatch = kAdd ? kTogether : kOwnRows;
    bool infinite = false;
#pragma unroll
    for (unsigned first = 0; first < kOwnRows; first += kBatch) {
      Row v[kBatch] = {}, old[kBatch] = {};
#pragma unroll
      for (unsigned r = 0; r < kBatch; ++r) {
        const bool own = (kept >> (first + r) & 1u) != 0;
        if (kAdd) load<true>(y + (first + r) * columns_, first + r, kAllColumns, old[r]);
        load<true>(rest + (first + r) * columns_, first + r, own ? kAllColumns : 0, v[r]);
      }
#pragma unroll
      for (unsigned r = 0; r < kBatch; ++r) {
        infinite = add_pairs(sum[first + r], scale, v[r]) || infinite;
#pragma unroll
        for (unsigned c = 0; kAdd && c < kOwnColumns; ++c) v[r][c] = old[r][c] + (alpha * v[r][c]);
        store<true>(y + (first + r) * columns_, first + r, kAllColumns, v[r]);
      }
    }
    return infinite;
  }
  /// Row by row.
  template <bool kAdd>
  __device__ bool put_partly(const float (&sum)[kOwnRows][kOwnColumns], float scale,
                             const float* rest, std::uint32_t kept, float* y, float alpha) const {
    bool infinite = false;
#pragma unroll
    for (unsigned r = 0; r < kOwnRows; ++r) {
      Row v = {}, old = {};
      load<false>(rest, r, (kept >> r & 1u) != 0 ? kAllColumns : 0, v);
      if (kAdd) load<false>(y, r, kAllColumns, old);
      infinite = add_pairs(sum[r], scale, v) || infinite;
#pragma unroll
      for (unsigned c = 0; kAdd && c < kOwnColumns; ++c) v[c] = old[c] + (alpha * v[c]);
      store<false>(y, r, kAllColumns, v);
      rest = in_one(rest + columns_);
      y = in_one(y + columns_);
    }
    return infinite;
  }
  /// v = sum * scale + v; whether a value is infinite: beyond the matrix they are 0.
  __device__ static bool add_pairs(const Row& sum, float scale, Row& v) {
    bool infinite = false;
#pragma unroll
    for (unsigned c = 0; c < kOwnColumns; ++c) {
      v[c] = sum[c] * scale + v[c];
      infinite = infinite || is_infinite(v[c]);
    }
    return infinite;
  }
  template <bool kWhole>
  __device__ void add_rows(const float* from, unsigned first,
                           const std::uint32_t (&there)[kTogether], float* to, float alpha) const {
    Row v[kTogether] = {}, old[kTogether] = {};
#pragma unroll
    for (unsigned r = 0; r < kTogether; ++r) {
      load<kWhole>(from + r * columns_, first + r, there[r], v[r]);
      load<kWhole>(to + r * columns_, first + r, there[r], old[r]);
    }
#pragma unroll
    for (unsigned r = 0; r < kTogether; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kOwnColumns; ++c) v[r][c] = old[r][c] + (alpha * v[r][c]);
      store<kWhole>(to + r * columns_, first + r, there[r], v[r]);
    }
  }
  /// A bit for each of the lane's columns of row r.
  [[nodiscard]] __device__ std::uint32_t kept_columns(const KeptAtoms& kept, unsigned r) const {
    if (!has(r, 0)) return 0;
    const std::uint64_t i = first_ + r * columns_;
    const std::uint64_t atom = kept.length == AtomLayout::kBlock ? i / AtomLayout::kBlock
                               : kept.length == columns_         ? place_.row + r
                                                                 : i / kept.length;
    // A lane's columns are of one atom, or of two.
    const std::uint64_t left = (atom + 1) * kept.length - i;
    const std::uint32_t own = left < kOwnColumns ? (1u << left) - 1 : kAllColumns;
    return (kept.has(atom) ? own : 0) |
           (own != kAllColumns && kept.has(atom + 1) ? kAllColumns & ~own : 0);
  }

  LanePlace place_;
  std::uint64_t columns_;
  std::uint64_t first_;  ///< the lane's first entry
  std::uint64_t left_;   ///< entries from that on
  unsigned own_columns_;
  bool whole_;
};

}  // namespace atomo::cuda::atoms
