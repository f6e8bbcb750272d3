// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Decoding of dithered atoms on the device (methods atoms and automatic): blocks and rows into the
/// output, the vectors of pairs into the workspace, where they are summed up (outer.cuh), those of a
/// sketch on top of its rows. Encoding has a plan of its own.

#include "cuda/atom_body.cuh"
#include "cuda/body_vectors.hpp"
#include "cuda/outer.cuh"

namespace atomo::cuda::atoms {

struct DecodeJob {
  AtomVectors vectors;
  std::uint32_t layer = 0;
  std::uint32_t strand_tiles = 0;  ///< most that a strand holds
  CallScratch<float> to[2];        ///< of pairs: their vectors, as OuterJob has them
  std::uint32_t outer = 0;         ///< of pairs: the OuterJob
  std::uint32_t apart = 0;         ///< 1: where values are added, they are kept apart until then
  std::uint32_t together = 0;   ///< 1: blocks or rows, whatever a message says: of several messages
  std::uint64_t first_duo = 0;  ///< of these, its first in `DuoRoom::words`
  std::uint64_t first_tile = 0;  ///< likewise in `DuoRoom::starts`

  [[nodiscard]] __host__ __device__ bool has_pairs() const { return vectors.count == 2; }
  /// The place that the values of blocks and rows go to, of message `slot` of a turn.
  [[nodiscard]] __device__ float* output(const Frame& frame, DecodeInto into,
                                         std::uint32_t slot) const {
    return apart != 0 && into.add ? frame.apart(layer, slot) : frame.layer(layer).y;
  }
  /// The vectors of pairs, likewise.
  [[nodiscard]] __device__ float* vectors_to(const Frame& frame, std::uint32_t v,
                                             std::uint32_t slot) const {
    return frame(to[v]) + slot * vectors.atoms * vector_stride(vectors.of[v].length);
  }
  [[nodiscard]] __device__ DecodeInto mode(DecodeInto into) const {
    return apart != 0 || has_pairs() ? DecodeInto{} : into;
  }
};

/// Messages whose contents are in the workspace at once. More would save little: a tensor is read and
/// written for each of these.
inline constexpr std::uint32_t kDecodedTogether = 4;
/// Chunks, up to eight tiles of an atom that share their level draws, which a warp adds.
inline constexpr std::uint32_t kChunksOfUnit = 8;

/// Words of the content as they were looked up, of kDecodedTogether messages.
struct DuoRoom {
  CallScratch<std::uint16_t> words;  ///< a pair each
  CallScratch<std::uint64_t>
      starts;  ///< a tile each; bit of the content, times 2, plus 1 if upward
  std::uint64_t of_message = 0, tiles_of_message = 0;  ///< from one message's to the next
};

/// A layer whose values are kept apart, as a matrix: what its messages may leave for it.
struct FormsJob {
  static constexpr std::uint32_t kNone = ~0u;
  static constexpr unsigned kForms = 3;  ///< but for coordinates
  std::uint64_t n = 0;
  std::uint64_t rows = 0, columns = 0;  ///< of a tensor that is no matrix: lines of 32 entries
  std::uint64_t row_length = 1;         ///< of the atoms that are rows
  std::uint32_t layer = 0;
  std::uint32_t chooses = 0;                           ///< 1: messages say which form it is
  std::uint32_t jobs[kForms] = {kNone, kNone, kNone};  ///< of the bodies' atoms, by form
  std::uint32_t sketch = kNone;                        ///< the form that is one, if any
  std::uint32_t outer = 0;                             ///< of its pairs: the OuterJob
};

struct DecodePlan {
  static constexpr Stages kStages{};  ///< decoding alone
  BodyPlan bodies;
  Table<DecodeJob> jobs;  ///< the same jobs
  Split fill;             ///< of the entries of blocks and rows, where those not sent become zeros
  bool turns = false;     ///< some jobs have contents that are not decoded together
  OuterPlan outer;
  Table<FormsJob> forms;
  Split forms_squares;  ///< of `forms`: squares of kSide x kSide entries
  Split chunks;         ///< units of kChunksOfUnit chunks, of jobs that are
  DuoRoom room;
  [[nodiscard]] bool empty() const { return fill.jobs == 0; }
};

/// Takes the layers of the methods atoms and, but for coordinates, automatic.
void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan);
/// Whether there are messages whose contents go together.
[[nodiscard]] __host__ __device__ inline bool is_several(const Frames& frames, DecodeInto into) {
  return frames.count > 1 && into.add;
}
/// Opens the bodies of all messages, six launches; of several messages adds the blocks and rows
/// of layers that have no other form, two launches for every kDecodedTogether.
void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);
void decode_together(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue);
[[nodiscard]] inline bool has_turns(const Frames& frames, const DecodePlan& plan, DecodeInto into) {
  return plan.turns || !is_several(frames, into);
}
/// All other contents of the messages of a turn: a launch; one more with singular pairs; one more with
/// sketches whose values are not added.
void decode_in_turn(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
                    DecodeInto into, Queue& queue);
/// Makes the output of a message's sketches from their pairs and, where rows are kept, from what stands
/// there: a launch, none without sketches, low_rank.cu.
void put_low_rank(const Frame& frame, const DecodePlan& plan, Queue& queue);
/// Adds what this operation and coordinates kept apart in a turn, message by message: a launch where there
/// are layers that do, forms_add.cu.
void add_apart(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
               DecodeInto into, Queue& queue);

}  // namespace atomo::cuda::atoms
