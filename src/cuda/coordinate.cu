// SPDX-License-Identifier: Apache-2.0
/// Coordinates on their way out: the plan, the rounding to the grid, where bodies stand.
///
/// The mathematics stands in math/grid_rounding.hpp; the steps come from coordinate_price.cu, the
/// segments are weighed and written by coordinate_weigh.cu and coordinate_write.cu. No level is ever
/// out of range: a layer's step is never below its lowest, at which levels stay below 2^29
/// (min_step_code).
///
/// Mapping. A level is not stored but computed again from the entry where it is needed; what is
/// stored is 4 bits an entry: rounded up, not zero, above 1, negative. round_chunk: a block a chunk
/// of 4,096 entries, a thread a column of those that are visited one after the other, so a scan of
/// the columns' sums gives every entry the running 32-bit sum of the draw. lay_out: a block a layer, a
/// scan over its segments' bytes.
///
/// Traffic an entry: round_chunk reads the entry and writes half a byte, the least but for the half
/// byte; lay_out reads 4 bytes and writes 8 for every 32,768 entries. The workspace takes 4.5 bytes
/// an entry, nearly all for content of the longest kind.
///
/// Shared memory: 2 KiB each. Sums are integers: no order matters.
/// Tensors are aligned to their entries, everything else is the workspace.

#include "cuda/coordinate.cuh"

#include "core/philox.hpp"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"
#include "price/coordinate_levels.hpp"

namespace atomo::cuda::coordinate {
namespace {

// ---- rounding

static_assert(kScanThreads == kCoordinateColumns);
constexpr unsigned kThreadEntries = kCoordinateChunk / kScanThreads;
constexpr unsigned kAhead = 4;  // loads on their way together
constexpr unsigned kRoundWarps = kScanThreads / kLanes;
constexpr std::uint32_t kSign = 1u << 31;
static_assert(kMaxLevel + 1 < kSign);

struct RoundMemory {
  ChunkBits bits;
  std::uint32_t top[kRoundWarps], part[kRoundWarps];  ///< the largest level, the sum of P
  std::uint64_t total[kRoundWarps];                   ///< levels before they are rounded up
  std::uint32_t u;                                    ///< that the chunk's draw begins at
};

/// What a thread keeps of its entries: a column of the chunk, so they are visited one after the
/// other.
struct Rounded {
  std::uint32_t level[kThreadEntries];  ///< before it is rounded up, and the sign of the entry
  std::uint32_t part[kThreadEntries];
  std::uint32_t top, sum;  ///< the largest level, the sum of P
  std::uint64_t total;     ///< of levels

  __device__ void put(unsigned j, float x, std::uint64_t fixed) {
    level[j] = static_cast<std::uint32_t>(fixed >> 32) | (__float_as_uint(x) & kSign);
    part[j] = static_cast<std::uint32_t>(fixed);
  }
  /// Once all entries are put.
  __device__ void add_up() {
    static_assert(std::uint64_t{kMaxLevel} * (kThreadEntries / 2) < std::uint64_t{1} << 32);
    std::uint32_t half[2] = {};
    top = sum = 0;
#pragma unroll
    for (unsigned j = 0; j < kThreadEntries; ++j) {
      const std::uint32_t size = level[j] & ~kSign;
      top = size > top ? size : top;
      half[j % 2] += size;
      sum += part[j];
    }
    total = std::uint64_t{half[0]} + half[1];
  }
};

/// Levels before they are rounded up, and the P of every entry. Those from `end` on are 0. A layer that
/// is sent is finite.
__device__ void fix_entries(const Entries& entries, std::uint64_t first, std::uint64_t end,
                            double scale, Rounded& mine) {
  const std::uint64_t own = first + threadIdx.x;
  const auto fix = [&](unsigned base, const float(&x)[kAhead]) {
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k)
      mine.put(base + k, x[k], grid_fixed_in_range(x[k], scale));
  };
  float x[kAhead];
  if (entries.dtype == DType::f32 && end - first == kCoordinateChunk) {
    const float* const at = in_one(static_cast<const float*>(entries.x) + own);
#pragma unroll
    for (unsigned base = 0; base < kThreadEntries; base += kAhead) {
#pragma unroll
      for (unsigned k = 0; k < kAhead; ++k) x[k] = at[(base + k) * kScanThreads];
      fix(base, x);
    }
    return;
  }
#pragma unroll
  for (unsigned base = 0; base < kThreadEntries; base += kAhead) {
    load_rows(entries, own + base * kScanThreads, kScanThreads, end, x);
    fix(base, x);
  }
}

/// The same of a chunk at the top of f32. Few are, so it is one entry after the other.
__device__ void fix_at_top(const Entries& entries, std::uint64_t first, std::uint64_t end,
                           double step, double scale, Rounded& mine) {
#pragma unroll 1
  for (unsigned k = 0; k < kThreadEntries; ++k) {
    const std::uint64_t i = first + threadIdx.x + k * kScanThreads;
    const float x = i < end ? entries(i) : 0.0f;
    const std::uint64_t fixed = grid_fixed_at_top(x, step, scale);
#pragma unroll
    for (unsigned j = 0; j < kThreadEntries; ++j) {
      if (j == k) mine.put(j, x, fixed);
    }
  }
}

/// By a whole block: the sum of P of the columns before this one, of a draw that begins at 0. `top`
/// becomes the largest level of the chunk.
__device__ std::uint32_t add_columns(Rounded& mine, RoundMemory& memory, std::uint32_t& top) {
  mine.add_up();
  const std::uint32_t largest = __reduce_max_sync(kAllLanes, mine.top);
  std::uint32_t of_warp;
  const std::uint32_t before = warp_exclusive_sum(mine.sum, of_warp);
  // Of 17 bits and 16, so that neither sum needs more than 32.
  const std::uint64_t high =
      __reduce_add_sync(kAllLanes, static_cast<std::uint32_t>(mine.total >> 16));
  const std::uint64_t low =
      __reduce_add_sync(kAllLanes, static_cast<std::uint32_t>(mine.total & 0xFFFF));
  __syncthreads();  // what the columns were before has been read
  if (lane() == 0) {
    memory.top[warp_in_block()] = largest;
    memory.part[warp_in_block()] = of_warp;
    memory.total[warp_in_block()] = (high << 16) + low;
  }
  __syncthreads();
  top = __reduce_max_sync(kAllLanes, memory.top[lane() % kRoundWarps]);
  const std::uint32_t part = memory.part[lane() % kRoundWarps];
  return before + __reduce_add_sync(kAllLanes, lane() < warp_in_block() ? part : 0u);
}

/// By a whole block: rounds up the entries at which the sum of P carries, `sum` being that of the columns
/// before, and finds the chunk's bits.
__device__ void mark_entries(const Rounded& mine, std::uint32_t sum, ChunkBits& bits) {
#pragma unroll
  for (unsigned j = 0; j < kThreadEntries; ++j) {
    const std::uint64_t next =
        (std::uint64_t{mine.level[j]} << 32 | mine.part[j]) + std::uint64_t{sum};
    const bool carried = static_cast<std::uint32_t>(next) < sum;
    sum = static_cast<std::uint32_t>(next);
    const auto level = static_cast<std::uint32_t>(next >> 32);
    const std::uint32_t size = level & ~kSign;
    const uint4 word = {__ballot_sync(kAllLanes, carried ? 1 : 0),
                        __ballot_sync(kAllLanes, size != 0 ? 1 : 0),
                        __ballot_sync(kAllLanes, size > 1 ? 1 : 0),
                        __ballot_sync(kAllLanes, level >= kSign ? 1 : 0)};
    if (lane() == 0) reinterpret_cast<uint4*>(bits.word)[warp_in_block() + j * kRoundWarps] = word;
  }
}

/// By a whole warp. `place`: the chunk's first in its segment.
__device__ void describe_chunk(const RoundMemory& memory, std::uint32_t place, bool at_top,
                               Chunk& chunk) {
  const LaneWords words(memory.bits);
  const std::uint32_t carried = __reduce_add_sync(kAllLanes, words.carried);
  std::uint64_t total = 0;
  for (const std::uint64_t of_warp : memory.total) total += of_warp;
#pragma unroll
  for (unsigned list = 0; list < kLists; ++list) {
    const LaneEntries entries = words.of(list);
    const std::uint32_t count = __reduce_add_sync(kAllLanes, entries.count()),
                        after = __reduce_max_sync(kAllLanes, entries.after());
    if (lane() != 0) continue;
    chunk.after[list] = after == 0 ? 0 : place + after;
    if (list == kEvery) chunk.nonzero = count;
    if (list == kOthers) chunk.large = count;
  }
  if (lane() != 0) return;
  chunk.total = total + carried;
  chunk.at_top = at_top ? 1 : 0;
}

/// Three blocks an SM have the registers that the columns need.
__global__ void __launch_bounds__(kScanThreads, 3) round_chunk(Frame frame, Plan plan) {
  const UnitOf unit = find_unit_together(frame, plan.chunks, blockIdx.x);
  const std::uint32_t number = frame(plan.jobs)[unit.job].layer;
  const float price = frame(plan.states)[unit.job].step;
  if (!(price > 0)) return;
  auto& memory = shared<RoundMemory>();
  const std::uint64_t begin = unit.index * kCoordinateChunk, rest = frame.info(number).n - begin;
  const std::uint64_t end = begin + (rest < kCoordinateChunk ? rest : kCoordinateChunk);
  if (threadIdx.x == 0)
    memory.u = Philox(frame.key(number), Purpose::select_coordinate)(unit.index)[0];
  const Entries entries = frame.entries(number);
  const double step = price, scale = grid_scale(step);
  Rounded mine;
  fix_entries(entries, begin, end, scale, mine);
  bool at_top = false;
  std::uint32_t before;
  for (;;) {
    std::uint32_t top;
    before = add_columns(mine, memory, top);
    if (at_top || !grid_at_top(top, step)) break;
    fix_at_top(entries, begin, end, step, scale, mine);
    at_top = true;
  }
  mark_entries(mine, memory.u + before, memory.bits);
  __syncthreads();
  if (threadIdx.x < kChunkWords) {
    const MarkedWord word = load_word(memory.bits, threadIdx.x);
    reinterpret_cast<uint4*>(frame(plan.bits)[blockIdx.x].word)[threadIdx.x] = {
        word.carried, word.nonzero, word.large, word.negative};
  } else if (warp_in_block() == kChunkWords / kLanes) {
    const auto place = static_cast<std::uint32_t>(unit.index % kSegmentChunks * kCoordinateChunk);
    describe_chunk(memory, place, at_top, frame(plan.chunk_states)[blockIdx.x]);
  }
}

__global__ void __launch_bounds__(kScanThreads) lay_out(Frame frame, Plan plan) {
  const Job job = frame(plan.jobs)[blockIdx.x];
  LayerState& layer = frame.layer(job.layer);
  if (!(frame(plan.states)[blockIdx.x].step > 0)) return;
  const std::uint64_t first = frame(plan.segments.begin)[blockIdx.x];
  const std::uint64_t segments = frame(plan.segments.begin)[blockIdx.x + 1] - first;
  const std::uint32_t* const words = frame(plan.words) + first;
  std::uint64_t* const ends = frame(plan.ends) + first;
  const auto bytes = [&](std::uint64_t s) {
    return std::uint64_t{SegmentWord::unpack(words[s]).bytes};
  };
  const std::uint64_t content = scan_blockwide<std::uint64_t>(
      segments, bytes,
      [&](std::uint64_t s, std::uint64_t before) { ends[s] = 8 * (before + bytes(s)); });
  if (threadIdx.x != 0 || content == 0) return;
  const bool own = frame(plan.states)[blockIdx.x].own != 0;
  if (own) atomicOr(&layer.flags, std::uint32_t{LayerRecord::kOwnPrice});
  layer.flags |= job.form << LayerRecord::kFormShift;
  layer.bytes = 4 * segments + content + (own ? sizeof(float) : 0);
  StagedBody& body = frame(frame.plan.staged)[job.layer];
  body.prefix = plan.words.at + 4 * first;
  body.prefix_bytes = 4 * segments;
  body.slots = job.slots;
  body.slot_words = job.slot_words;
  body.ends = plan.ends.at + 8 * first;
  body.pieces = segments;
}

/// u32 from one segment to the next: the content, one word more, a multiple of 16 bytes.
std::size_t slot_words_of(std::size_t n) {
  const std::size_t bytes = max_segment_bytes(std::min(n, kCoordinateSegment));
  return divide_up(bytes + 4, 16) * 4;
}

/// What the plan has of everything.
struct Sizes {
  std::size_t jobs = 0, segments = 0, chunks = 0, histograms = 0;
};

void place_scratch(const Sizes& sizes, Layout& layout, Plan& plan, PlanFor purpose) {
  plan.states = layout.zeroed<State>(sizes.jobs);
  plan.search = layout.zeroed<GridSearch>(1);
  plan.counts = layout.zeroed<std::uint64_t>(sizes.histograms * kMagnitudeBins);
  if (purpose == PlanFor::prices) return;
  plan.tickets = layout.zeroed<std::uint32_t>(sizes.segments);
  plan.chunk_states = layout.scratch<Chunk>(sizes.chunks);
  plan.bits = layout.scratch<ChunkBits>(sizes.chunks);
  plan.words = layout.scratch<std::uint32_t>(sizes.segments);
  plan.ends = layout.scratch<std::uint64_t>(sizes.segments);
}

/// Blocks that look at a layer in a round of so many levels.
std::uint64_t looks_of(std::size_t n, unsigned depth) {
  return (1u << depth) / candidates_together(n);
}

/// Levels of the bisection that a round looks ahead.
template <typename Own>
unsigned depth_of(std::span<const LayerPlan> layers, Own own) {
  constexpr std::uint64_t kAtOnce = 256;  // with two blocks an SM a round takes what one takes
  std::uint64_t blocks = 0;
  for (const LayerPlan& layer : layers) {
    if (own(layer) && layer.price_rule.from == PriceRule::From::budget)
      blocks += looks_of(layer.n, GridSearch::kMostDepth);
  }
  return blocks <= kAtOnce ? GridSearch::kMostDepth : GridSearch::kLeastDepth;
}

/// Takes the layers that `own` says, in that form.
template <typename Own>
void plan_layers(std::span<const LayerPlan> layers, Layout& layout, Plan& plan, std::uint32_t form,
                 PlanFor purpose, Own own) {
  plan = {};
  for (const LayerPlan& layer : layers) plan.count += own(layer) ? 1 : 0;
  if (plan.count == 0) return;
  // The search of forms has rounds of its own.
  plan.depth = form != 0 ? GridSearch::kMostDepth : depth_of(layers, own);
  TableMaker<Job> jobs(layout, plan.count);
  TableMaker<std::uint32_t> budgeted(layout, plan.count), keeping(layout, plan.count);
  SplitMaker segments(layout, plan.count), chunks(layout, plan.count), searches(layout, plan.count);
  Sizes sizes;
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    const LayerPlan& layer = layers[i];
    if (!own(layer)) continue;
    Job job;
    job.layer = i;
    const PriceRule rule = form != 0 ? PriceRule{} : layer.price_rule;
    job.form = form;
    job.from = rule.from;
    job.price = rule.price;
    job.keep = rule.keep;
    if (layer.n > kListed && rule.from != PriceRule::From::price)
      job.counts = static_cast<std::uint32_t>(sizes.histograms++);
    job.slot_words = slot_words_of(layer.n);
    if (purpose == PlanFor::messages)
      job.slots = layout.scratch<std::uint32_t>(segments_of(layer.n) * job.slot_words).at;
    const std::uint32_t number = jobs.add(job);
    ++sizes.jobs;
    const std::uint64_t looks = looks_of(layer.n, plan.depth);
    if (form != 0) searches.add(looks);
    if (job.from == PriceRule::From::budget) {
      budgeted.add(number);
      searches.add(looks);
    }
    if (job.from == PriceRule::From::keep) keeping.add(number);
    segments.add(segments_of(layer.n));
    chunks.add(divide_up(layer.n, kCoordinateChunk));
    sizes.segments += segments_of(layer.n);
    sizes.chunks += divide_up(layer.n, kCoordinateChunk);
  }
  plan.jobs = jobs.table();
  plan.budgeted = budgeted.table();
  plan.budgeted_count = budgeted.count();
  plan.keeping = keeping.table();
  plan.keeping_count = keeping.count();
  plan.segments = segments.split();
  plan.chunks = chunks.split();
  plan.searches = searches.split();
  place_scratch(sizes, layout, plan, purpose);
}

bool has_steps(const LayerPlan& layer) {
  return layer.kind.method == MethodId::coordinate && layer.n > 0;
}

}  // namespace

bool has_grid(const LayerPlan& layer) {
  return layer.kind.method == MethodId::automatic && layer.n > 0 &&
         layer.price_rule.cap_bits == 0 && layer.selection == Selection::drawn;
}

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  plan_layers(layers, layout, plan, 0, PlanFor::messages, has_steps);
}

void plan_prices(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  plan_layers(layers, layout, plan, 0, PlanFor::prices, has_steps);
}

void plan_grids(std::span<const LayerPlan> layers, Layout& layout, Plan& plan, PlanFor purpose) {
  plan_layers(layers, layout, plan, kGridForm, purpose, has_grid);
}

void size(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_blocks(round_chunk, plan.chunks.units, kScanThreads, 0, frame, plan);
  weigh_segments(frame, plan, queue);
  write_segments(frame, plan, queue);
  queue.launch_blocks(lay_out, plan.count, kScanThreads, 0, frame, plan);
}

}  // namespace atomo::cuda::coordinate
