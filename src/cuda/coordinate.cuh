// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Coordinates on one grid (FORMAT.md, "2 coordinate") on the device: coordinate_price.cu finds the
/// step (`analyse`, `price`), coordinate.cu rounds, coordinate_weigh.cu chooses how to write and
/// coordinate_write.cu writes (`size`), coordinate_decode.cu reads.
/// Bodies are of varying length, so there is no `write`.

#include "cuda/frame.cuh"
#include "cuda/rounds.cuh"
#include "format/coordinate_body.hpp"

namespace atomo::cuda::coordinate {

inline constexpr std::uint32_t kNoCounts = ~std::uint32_t{0};
/// Above, a layer has a histogram, which is then at most 32 bytes an entry.
inline constexpr std::size_t kListed = 8192;
inline constexpr unsigned kSegmentChunks = math::kCoordinateSegment / math::kCoordinateChunk;
inline constexpr unsigned kChunkWords = math::kCoordinateChunk / kLanes;

struct Job {
  std::uint32_t layer = 0;
  std::uint32_t counts = kNoCounts;  ///< number of its histogram, if it has one
  std::uint32_t form = 0;            ///< of the layer, where its method knows several
  price::PriceRule::From from = price::PriceRule::From::none;
  float price = 0;               ///< of the rule
  std::uint64_t keep = 0;        ///< of the rule
  std::uint64_t slots = 0;       ///< of its first segment, bytes from the workspace's start
  std::uint64_t slot_words = 0;  ///< from one segment to the next, a multiple of 4
};

/// Prices follow from these; one a job, zeroed.
struct State {
  std::uint64_t nonzero = 0;   ///< entries that are not 0
  std::uint32_t largest = 0;   ///< bits of the largest |x|
  std::uint32_t smallest = 0;  ///< ~bits of the smallest |x| that is not 0
  std::uint32_t lowest = 0;    ///< code of the lowest step it can be sent at
  std::uint32_t own = 0;       ///< 1: its price stands in its body
  float step = 0;              ///< of the grid; 0: nothing is sent on it
};

/// The bisection (price/price_input.cpp) of the layers that share a step; zeroed. A round looks
/// `Plan::depth` of its levels ahead: five while all blocks of a round run at once, three where
/// there are more, which weighs 36 codes of each layer in place of 94.
struct GridSearch {
  static constexpr unsigned kProbes = 15, kMostDepth = 5, kLeastDepth = 3;
  static_assert(kProbes % kMostDepth == 0 && kProbes % kLeastDepth == 0);
  static constexpr unsigned kMaxRounds = kProbes / kLeastDepth, kMaxCandidates = 1u << kMostDepth;
  /// Expected bits of all layers at the round's codes, in 1/256.
  std::uint64_t totals[kMaxRounds][kMaxCandidates] = {};
  std::uint64_t worth[kMaxRounds][kMaxCandidates] = {};  ///< likewise (Expected)
  std::uint32_t any = 0;                                 ///< 1: there is something to send
  std::uint32_t tickets = 0;                             ///< of the round's blocks that are done
  Rounds rounds;
};

/// A candidate of a layer of up to so many entries takes a warp, of a larger one a block.
inline constexpr std::uint64_t kWeighedByWarp = 1024;
/// Candidates that one block looks at. A power of two.
__host__ __device__ constexpr std::uint32_t candidates_together(std::uint64_t n) {
  return n <= kWeighedByWarp ? kMaxWarps : 1;
}
static_assert(kMaxWarps <= 1u << GridSearch::kLeastDepth);

/// The lists of a segment: entries that are not zero, of level 1, of a larger level.
enum List : unsigned { kEvery = 0, kOnes = 1, kOthers = 2, kLists = 3 };

/// 32 entries once they are rounded, a bit an entry. An entry's level is that of `grid_fixed` plus
/// `carried`.
struct alignas(16) MarkedWord {
  std::uint32_t carried, nonzero, large, negative;
};
/// A chunk of 4,096 entries.
struct ChunkBits {
  MarkedWord word[kChunkWords];

  [[nodiscard]] __device__ std::uint32_t carried(std::uint32_t i) const {
    return word[i / kLanes].carried >> i % kLanes & 1;
  }
};

struct Chunk {
  std::uint64_t total = 0;  ///< sum of levels
  std::uint32_t nonzero = 0, large = 0;
  std::uint32_t at_top = 0;          ///< 1: levels are those of `grid_fixed_at_top`
  std::uint32_t after[kLists] = {};  ///< place in the segment behind the list's last, 0 for none
  std::uint32_t bit[2] = {};  ///< where its part of the streams begins; the second's goes down
  std::uint32_t sums[format::kSegmentSums * format::kRiceTries] = {};  ///< bits, end marks apart
};

struct Plan {
  static constexpr Stages kStages{.analyse = true, .price = true, .size = true};
  Table<Job> jobs;
  Table<std::uint32_t> budgeted, keeping;  ///< numbers of jobs
  std::uint32_t count = 0, budgeted_count = 0, keeping_count = 0;
  std::uint32_t depth = GridSearch::kMostDepth;  ///< of a round of the search
  Split segments;                                ///< unit u has word, end and ticket u
  Split chunks;                                  ///< unit u has chunk state and bits u
  /// A job a budgeted layer, a unit the next of its candidates. As forms: every layer, as if all
  /// were tried.
  Split searches;
  Scratch<State> states;
  Scratch<GridSearch> search;
  Scratch<std::uint64_t> counts;   ///< zeroed; kMagnitudeBins a histogram
  Scratch<std::uint32_t> tickets;  ///< zeroed
  Scratch<Chunk> chunk_states;
  Scratch<ChunkBits> bits;
  Scratch<std::uint32_t> words;
  Scratch<std::uint64_t> ends;
  [[nodiscard]] bool empty() const { return count == 0; }
};

/// A plan is for whole messages, or for finding prices alone, whose input comes from the plans of
/// single layers.
enum class PlanFor { messages, prices };

/// Takes the layers of the method coordinate.
void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
/// Takes the layers of the method automatic that may choose coordinates, in order; grid_form.cuh
/// has what stands for `price`.
void plan_grids(std::span<const LayerPlan> layers, Layout& layout, Plan& plan, PlanFor purpose);
/// Plans what `search_steps` needs for the layers of the method coordinate: `states`, `search`,
/// `counts`.
void plan_prices(std::span<const LayerPlan> layers, Layout& layout, Plan& plan);
/// Whether a layer is of the method automatic and may choose coordinates.
[[nodiscard]] bool has_grid(const LayerPlan& layer);
void analyse(const Frame& frame, const Plan& plan, Queue& queue);
/// The step of the grid pool and of every layer: PoolPrice, LayerState.price, State.step.
void find_price(const Frame& frame, const Plan& plan, Queue& queue);
/// The part of `price` that searches the pool's steps: two launches.
void search_steps(const Frame& frame, const Plan& plan, Queue& queue);
void size(const Frame& frame, const Plan& plan, Queue& queue);

// ---- for these files

/// std::uint64_t and what atomics take are different types of the same width.
__device__ inline void atomic_add(std::uint64_t* sum, std::uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
}

/// `grid_fixed` of an entry of a layer that is sent, which does not reach the last level.
__device__ inline std::uint64_t grid_fixed_in_range(double x, double scale) {
  return static_cast<std::uint64_t>(std::fabs(x) * scale + 0.5);
}

__device__ inline std::uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

/// Entries 128 l to 128 l + 127 of a chunk, l the lane, that are in a list; a bit each.
struct LaneEntries {
  static constexpr std::uint32_t kCount = 4 * kLanes;
  std::uint64_t half[2];
  /// Number of the lane's first.
  __device__ static std::uint32_t first() { return kCount * lane(); }
  /// Number behind the last in the list, 0 for none.
  [[nodiscard]] __device__ std::uint32_t after() const {
    const std::uint64_t word = half[1] != 0 ? half[1] : half[0];
    const std::uint32_t behind = first() + (half[1] != 0 ? 128 : 64);
    return word != 0 ? behind - static_cast<unsigned>(__clzll(static_cast<long long>(word))) : 0;
  }
  [[nodiscard]] __device__ std::uint32_t count() const {
    return static_cast<std::uint32_t>(__popcll(half[0]) + __popcll(half[1]));
  }
  /// Calls found(number) in ascending order.
  template <typename Found>
  __device__ void visit(Found found) const {
    std::uint64_t left = half[0];
    for (std::uint32_t number = first();; number = first() + 64) {
      for (; left != 0; left &= left - 1)
        found(number + static_cast<unsigned>(__ffsll(static_cast<long long>(left))) - 1);
      if (number != first()) return;
      left = half[1];
    }
  }
};

__device__ inline MarkedWord load_word(const ChunkBits& bits, unsigned w) {
  const uint4 four = reinterpret_cast<const uint4*>(bits.word)[w];  // in one access
  return {four.x, four.y, four.z, four.w};
}

/// The words of a lane's entries.
struct LaneWords {
  std::uint64_t nonzero[2], large[2];
  std::uint32_t carried;  ///< entries that are

  __device__ explicit LaneWords(const ChunkBits& bits) : carried(0) {
#pragma unroll
    for (unsigned h = 0; h < 2; ++h) {
      const unsigned w = 4 * lane() + 2 * h;
      const MarkedWord low = load_word(bits, w), high = load_word(bits, w + 1);
      nonzero[h] = low.nonzero | std::uint64_t{high.nonzero} << 32;
      large[h] = low.large | std::uint64_t{high.large} << 32;
      carried += static_cast<std::uint32_t>(__popc(low.carried) + __popc(high.carried));
    }
  }
  [[nodiscard]] __device__ LaneEntries of(unsigned list) const {
    LaneEntries out;
#pragma unroll
    for (unsigned h = 0; h < 2; ++h)
      out.half[h] = list == kEvery ? nonzero[h] : list == kOnes ? nonzero[h] & ~large[h] : large[h];
    return out;
  }
};

__device__ inline LaneEntries lane_entries(const ChunkBits& bits, unsigned list) {
  return LaneWords(bits).of(list);
}

/// Behind the rounding of chunks: the choice of how to write each segment, and its word
/// (coordinate_weigh.cu).
void weigh_segments(const Frame& frame, const Plan& plan, Queue& queue);
/// Behind that: its content (coordinate_write.cu).
void write_segments(const Frame& frame, const Plan& plan, Queue& queue);

}  // namespace atomo::cuda::coordinate
