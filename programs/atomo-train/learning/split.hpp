// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which samples each worker has.
///
///   iid                    every epoch a fresh order of all samples, cut among the workers
///   classes:k=8,shift=4    worker i has the classes (i shift + j) mod the number of classes, j < k;
///                          the samples of a class are shared out among the workers that have it
///   dirichlet:alpha=0.5    each worker has proportions of the classes of its own, drawn from the
///                          Dirichlet distribution (arXiv 1909.06335); no sample has two workers
///   blocks:r=2             as many blocks as there are sets of r workers; each set shares one
///   duplicate:r=2          workers / r blocks; r workers see the same samples in the same order
///
/// With `,samples=N` behind it each worker has N samples: of all its classes, or blocks, about as
/// many. Where a class has not enough for all, workers share some of them. Samples go to blocks in
/// turns, so that with duplicate:r=1 and as many samples as workers worker k has sample k.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace train {

struct SplitSpec {
  enum class Kind { iid, classes, dirichlet, blocks, duplicate };
  Kind kind = Kind::iid;
  std::uint32_t classes = 8, shift = 4;  ///< of `classes`
  double alpha = 0.5;                    ///< of `dirichlet`
  std::uint32_t r = 2;                   ///< of `blocks` and `duplicate`
  std::uint32_t samples = 0;             ///< that each worker has; 0: as many as there are

  /// \throws std::runtime_error naming what is wrong in `text`, and what would be right.
  [[nodiscard]] static SplitSpec parse(const std::string& text);
};

/// What a worker has: it reads every `readers`-th batch of a pool of samples, from batch `place`
/// on.
struct Share {
  std::vector<std::uint32_t> samples;  ///< of the pool
  std::uint32_t pool = 0;              ///< its number: pools are in orders of their own
  std::size_t place = 0, readers = 1;
};

/// What there is to be split: `labels` is empty where samples have none, and else below `classes`.
struct Samples {
  std::size_t count = 0;
  std::span<const std::uint16_t> labels;
  std::size_t classes = 0;
};

/// \throws std::runtime_error when the workers or the samples do not fit the split.
[[nodiscard]] Share share_of(const SplitSpec& split, const Samples& samples, std::size_t worker,
                             std::size_t workers, std::uint64_t seed);

}  // namespace train
