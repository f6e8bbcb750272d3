// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What encoding singular pairs has that other dithered atoms have not (method atoms, family 2;
/// pairs.cu): amplitudes by a decomposition, and a content of two vectors a pair. They are jobs of
/// AtomsPlan (atoms.cuh), share its price, and their marks, flags and lengths are written as those
/// of any atoms.

#include "cuda/price.cuh"
#include "cuda/svd.cuh"
#include "pairs.hpp"

namespace atomo::cuda {

/// One a layer.
struct PairsJob {
  std::uint32_t atoms = 0;                 ///< its AtomsJob; its SvdJob has the number of this one
  std::uint32_t tiles_u = 0, tiles_v = 0;  ///< of a first, of a second factor
  detail::PairStep steps[detail::kAtomClassCount];
};

struct PairsPlan {
  Table<PairsJob> jobs;
  SvdPlan svd;
  Split offers;  ///< a unit 256 pairs
  Split groups;  ///< a unit each group that there can be
  [[nodiscard]] bool empty() const { return groups.jobs == 0; }
};

/// Plans pairs for jobs added in order.
class PairsPlanner {
 public:
  PairsPlanner(Layout& layout, std::size_t jobs) noexcept;

  /// `amplitudes` has room for one a pair, `groups` is the most that there can be.
  void add(const MatrixShape& shape, std::uint32_t layer, std::uint32_t atoms_job,
           std::uint64_t groups, Scratch<double> amplitudes) noexcept;
  /// Of the layer added last: what a unit of weight costs.
  [[nodiscard]] const Layout::NewTable<PriceUnits>& units() const noexcept { return units_; }
  [[nodiscard]] PairsPlan finish() noexcept;

 private:
  Layout& layout_;
  Layout::NewTable<PairsJob> jobs_;
  SvdPlanner svd_;
  SplitMaker offers_, groups_;
  Layout::NewTable<PriceUnits> units_;
  std::uint32_t count_ = 0;
};

/// u32 that hold the longest content of a group.
[[nodiscard]] std::uint64_t pairs_slot_words(const MatrixShape& shape) noexcept;

struct AtomsPlan;

/// Decomposes the matrices and gives the amplitudes out.
void analyse_pairs(const AtomsPlan& plan, const Frame& frame, Queue& queue);
/// The content of all groups, as write_content (atoms_encode.cu): one launch.
void write_pair_content(const AtomsPlan& plan, const Frame& frame, Queue& queue);

}  // namespace atomo::cuda
