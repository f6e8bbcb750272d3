// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The strands of the content of atoms as lanes read them: what the kernels share that decode one message
/// (atoms_decode.cu) and several (atoms_find.cu).

#include "core/philox.hpp"
#include "cuda/atoms_decode.cuh"
#include "cuda/duo_code.cuh"
#include "format/atom_body.hpp"
#include "math/centroids.hpp"

namespace atomo::cuda::atoms {

using coding::kTile;
using coding::kTileDuos;

/// How the vector under a lane is read.
struct LaneVector {
  std::uint64_t atom = 0;
  std::uint64_t entries = 0;  ///< 0: there is none
  DeviceStep coding;
  std::uint32_t escape_bits = 0;
  float step = 0;
};

/// The content of one group, which a warp's lanes share.
struct AtomContent {
  const Frame& frame;
  const DecodeJob& job;
  const BodyJob& body_job;
  const BodyState& state;
  const std::uint64_t* kept;
  float scaled;   ///< price * range
  float unrange;  ///< what values are multiplied by
  bool centred;   ///< content has no dither
};

/// The content of a job's body, which stands.
__device__ inline AtomContent content_of(const Frame& frame, const DecodePlan& plan,
                                         std::uint32_t number) {
  const DecodeJob& job = frame(plan.jobs)[number];
  const BodyJob& body_job = frame(plan.bodies.jobs)[number];
  const float price = frame.layer(job.layer).price, range = math::range_scale(price);
  return {frame,
          job,
          body_job,
          frame(plan.bodies.states)[number],
          frame(plan.bodies.kept) + body_job.first_kept,
          price * range,
          job.has_pairs() ? 1.0f : 1.0f / range,
          (frame.layer(job.layer).flags & format::LayerRecord::kCentred) != 0};
}

/// A vector of an atom of a class.
__device__ inline LaneVector vector_of(const AtomContent& c, std::uint64_t atom,
                                       std::uint32_t atom_class, std::uint32_t v) {
  LaneVector own;
  const AtomVectors& vectors = c.job.vectors;
  const AtomVector& vector = vectors.of[v];
  own.atom = atom;
  own.entries = vectors.length_of(v, own.atom);
  own.coding = device_step(vector.step[atom_class], c.centred);
  own.escape_bits = vector.escape_bits[vectors.is_last(own.atom) ? 1 : 0][atom_class];
  const float size = vector.size[atom_class];
  own.step = vectors.priced(v) ? (c.scaled * size) * c.state.gain : size;
  return own;
}

/// DuoCoding::offset of such a vector.
__device__ inline std::int32_t offset_of(const AtomContent& c, std::uint32_t atom_class,
                                         std::uint32_t v) {
  return c.centred ? math::centroid_offset(c.job.vectors.of[v].step[atom_class]) : math::kDithered;
}

/// A vector of the kept atom of that rank, or none.
__device__ inline LaneVector load_vector(const AtomContent& c, std::uint64_t rank,
                                         std::uint32_t v) {
  if (rank >= c.state.kept) return {};
  const std::uint64_t entry = c.kept[rank];
  return vector_of(c, entry & ((std::uint64_t{1} << kClassShift) - 1),
                   static_cast<std::uint32_t>(entry >> kClassShift), v);
}

/// The levels of 8 tiles, a nibble each: word l for pair l.
__device__ inline void draw_dither(const Philox& draws, std::uint64_t base,
                                   std::uint32_t (&level)[kTileDuos]) {
  for (unsigned i = 0; i < 4; ++i) {
    const PhiloxWords words = draws(4 * base + i);
    for (unsigned w = 0; w < 4; ++w) level[4 * w + i] = words[w];
  }
}

/// The way of a lane along its strand.
struct StrandWalk {
  std::uint64_t rank = 0;              ///< of the kept atom
  std::uint32_t vector = 0, tile = 0;  ///< of the atom, of the vector
  std::uint32_t of_vector = 0;         ///< tiles of the vector
  std::uint32_t left = 0;              ///< tiles on the strand
  bool begins = true;                  ///< with this tile a vector, or the strand within one

  __device__ StrandWalk(const AtomContent& c, std::uint64_t group, bool upward) {
    if (group >= c.state.groups) return;
    const AtomVectors& vectors = c.job.vectors;
    const format::GroupShape shape{c.body_job.group_atoms, c.body_job.group_pieces};
    const std::uint32_t strand = upward ? 0 : 1, member = shape.atoms > 1 ? strand : 0;
    std::uint32_t tiles = vectors.tiles(), members = 1;
    if (shape.pieces > 1) {
      const VectorPiece piece = vectors.piece(static_cast<std::uint32_t>(group % shape.pieces));
      rank = group / shape.pieces;
      vector = piece.vector;
      tile = piece.first_tile;
      tiles = piece.tiles;
    } else {
      rank = group * shape.atoms + member;
      const std::uint64_t there = c.state.kept - group * shape.atoms;
      if (shape.atoms > 1)
        members =
            (static_cast<std::uint32_t>(there < shape.atoms ? there : shape.atoms) + 1 - strand) /
            2;
    }
    const std::uint32_t turn = shape.upward_tiles(member, tiles);
    left = members * (upward ? turn : tiles - turn);
    if (!upward) tile += turn;
    if (!upward && shape.pieces == 1 && tile >= vectors.of[0].tiles && vectors.count == 2) {
      tile -= vectors.of[0].tiles;
      vector = 1;
    }
    of_vector = vectors.of[vector].tiles;
  }

  /// To the next tile; of atoms that share a group every other one is on the strand.
  __device__ void go_on(const AtomVectors& vectors) {
    begins = false;
    --left;
    if (++tile < of_vector) return;
    begins = true;
    tile = 0;
    if (++vector == vectors.count) vector = 0, rank += 2;
    of_vector = vectors.of[vector].tiles;
  }
};

/// Where the strand of a lane is that has one of a unit's: two lanes a group, the first the upward one.
struct UnitStrand {
  std::uint64_t group = 0;
  std::uint32_t length = 0;  ///< bits of the group
  std::uint64_t start = 0;   ///< of the group, in bits from the body's begin
  bool upward = false;
};

/// By a whole warp: the strands of unit `at.index` of a job, `number` of all.
__device__ inline UnitStrand strand_of_lane(const Frame& frame, const BodyPlan& plan,
                                            const UnitOf& at, const BodyBytes& body,
                                            const BodyState& state) {
  UnitStrand own;
  own.group = at.index * kUnitGroups + lane() / 2;
  own.upward = lane() % 2 == 0;
  own.length = group_bits(body, state, own.group);
  std::uint32_t total;
  const std::uint32_t before = warp_exclusive_sum(own.upward ? own.length : 0u, total);
  own.start = 8 * state.content + frame(plan.unit_bits)[at.number] +
              (own.upward ? before : before - own.length);
  return own;
}

}  // namespace atomo::cuda::atoms
