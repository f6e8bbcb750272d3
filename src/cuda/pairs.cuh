// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What encoding pairs has that other dithered atoms have not (pairs.cu): amplitudes by a
/// decomposition, into singular pairs (svd.cuh) or those of a sketch (sketch.cuh), and a content of
/// two vectors a pair. They are jobs of AtomsPlan (atoms.cuh), share its price, and their marks,
/// flags and lengths are written as those of any atoms.

#include <optional>

#include "cuda/price.cuh"
#include "cuda/sketch.cuh"
#include "cuda/svd.cuh"
#include "format/pair_body.hpp"

namespace atomo::cuda {

/// One a layer that is decomposed.
struct PairsJob {
  Scratch<float> shorter, longer;  ///< as SingularPairs has them
  std::uint64_t rows = 0, columns = 0;
  std::uint32_t atoms = 0;                 ///< its AtomsJob
  std::uint32_t source = 0;                ///< its SvdJob or SketchJob
  std::uint32_t sketch = 0;                ///< 1: a SketchJob
  std::uint32_t tiles_u = 0, tiles_v = 0;  ///< of a first, of a second factor
  format::PairStep steps[math::kAtomClassCount];

  [[nodiscard]] __host__ __device__ MatrixShape shape() const { return {rows, columns}; }
};

struct PairsPlan {
  Table<PairsJob> jobs;
  SvdPlan svd;
  SketchPlan sketches;
  Split offers;  ///< a unit 256 pairs
  Split groups;  ///< a unit each group that there can be
  [[nodiscard]] bool empty() const { return groups.jobs == 0; }
};

/// Plans pairs for jobs added in order.
class PairsPlanner {
 public:
  PairsPlanner(Layout& layout, std::size_t singular, std::size_t sketches) noexcept;

  /// `amplitudes` has room for one a pair, `groups` is the most that there can be, `iterations` is
  /// for sketches. Returns where the residual of a sketch will be.
  Scratch<float> add(const LayerAtoms& of, std::uint32_t layer, std::uint32_t atoms_job,
                     std::uint64_t groups, Scratch<double> amplitudes,
                     unsigned iterations) noexcept;
  [[nodiscard]] PairsPlan finish() noexcept;

 private:
  Layout& layout_;
  Layout::NewTable<PairsJob> jobs_;
  std::optional<SvdPlanner> svd_;  ///< where there are such jobs, as they take tables
  std::optional<SketchPlanner> sketches_;
  SplitMaker offers_, groups_;
  std::uint32_t count_ = 0, singular_count_ = 0, sketch_count_ = 0;
};

/// u32 that hold the longest content of a group.
[[nodiscard]] std::uint64_t pairs_slot_words(const LayerAtoms& of) noexcept;

struct AtomsPlan;

/// Decomposes the matrices.
void decompose_pairs(const Frame& frame, const AtomsPlan& plan, Queue& queue);
/// Gives the amplitudes out: one launch.
void offer_pairs(const Frame& frame, const AtomsPlan& plan, Queue& queue);
/// The content of all groups, as write_content (atoms_encode.cu): one launch.
void write_pair_content(const Frame& frame, const AtomsPlan& plan, Queue& queue);

}  // namespace atomo::cuda
