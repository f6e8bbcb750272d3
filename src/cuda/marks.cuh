// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Which atoms of a layer are kept, on the device (marks.hpp has the section's layout): the device
/// functions from which the operations that have marks (atoms, pairs, top-k) make their kernels. A
/// warp handles a segment of 4,096 atoms.
///
/// Encoding: the operation sets the bits of `words` (zero at first) and calls `measure_segment` for
/// each segment once its bits are there; then, a launch later, a scanning block a job calls
/// `layout_marks`, after which `states[job]` and the segments' `rank` and `bit` are final; then, a
/// launch later, `write_segment` for each segment. Decoding: `open_marks` by a scanning block a
/// job, then `read_segment` for each segment.

#include "cuda/frame.cuh"
#include "marks.hpp"

namespace atomo::cuda {

struct MarksJob {
  std::uint32_t layer = 0;
  std::uint64_t atoms = 0;
  std::uint64_t first_word = 0;     ///< of the job's (atoms + 63) / 64 words, a multiple of 64
  std::uint64_t first_segment = 0;  ///< of the job's segments
};

/// One a job; zeroed.
struct MarksState {
  unsigned long long gap_bits[detail::kMaxRiceBits + 1] = {};  ///< at every parameter
  unsigned long long kept = 0;
  std::uint64_t bytes = 0;  ///< of the section
  std::uint32_t mode = 0;
};

/// One a segment.
struct MarksSegment {
  std::uint64_t rank = 0;  ///< kept atoms of the job before it
  std::uint64_t bit = 0;   ///< where its gaps begin in the stream of gaps
  std::uint32_t kept = 0;
  std::uint32_t gap_bits[detail::kMaxRiceBits + 1] = {};  ///< of its gaps at every parameter
};

struct MarksPlan {
  Table<MarksJob> jobs;
  Split segments;                ///< a unit a segment; unit u is segment u of `segment_states`
  Scratch<std::uint64_t> words;  ///< zeroed; bit i % 64 of word i / 64: atom i is kept
  Scratch<MarksState> states;
  Scratch<MarksSegment> segment_states;
};

/// Plans marks for jobs added in order.
class MarksPlanner {
 public:
  MarksPlanner(Layout& layout, std::size_t jobs);
  void add(std::uint32_t layer, std::uint64_t atoms);
  [[nodiscard]] MarksPlan finish();

 private:
  Layout& layout_;
  Layout::NewTable<MarksJob> jobs_;
  SplitMaker segments_;
  std::uint32_t count_ = 0;
  std::uint64_t words_ = 0;
};

/// By a whole warp: counts what segment `unit` keeps and what its gaps take, and adds it to the
/// job's. The segment's words must be written (by this warp, or a launch before).
__device__ void measure_segment(const Frame& frame, const MarksPlan& plan, std::uint64_t unit);

/// By a block of kScanThreads: chooses the shorter section (marks.cpp, plan_marks) and sums ranks
/// and bits up. Afterwards, in every thread, `states[job]` is complete.
__device__ void layout_marks(const Frame& frame, const MarksPlan& plan, std::uint32_t job);

/// By a whole warp: writes the segment's part of the section into `section`, staging memory that is
/// zero and aligned to 4 bytes; neighbours share words, so bits are set with atomicOr.
__device__ void write_segment(const Frame& frame, const MarksPlan& plan, std::uint64_t unit,
                              std::uint32_t* section);

/// By a block of kScanThreads: checks frame and padding of the section at the front of `body`
/// (MarksReader::open), fills `states[job]` and the segments' kept, rank and bit. False, in every
/// thread, when the bytes are no section of so many atoms.
__device__ bool open_marks(const Frame& frame, const MarksPlan& plan, std::uint32_t job,
                           const std::byte* body, std::uint64_t body_bytes);

/// By a whole warp: writes the segment's `words`. False, in every lane, when the stream is no
/// sequence of gaps of the stated count and length.
__device__ bool read_segment(const Frame& frame, const MarksPlan& plan, std::uint64_t unit,
                             const std::byte* body, std::uint64_t body_bytes);

}  // namespace atomo::cuda
