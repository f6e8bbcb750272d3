// SPDX-License-Identifier: Apache-2.0
/// Coordinates on their way out: the plan, the rounding to the grid, where bodies stand.
///
/// The mathematics stands in math/grid_rounding.hpp; the steps come from coordinate_price.cu, the
/// segments are written by coordinate_write.cu. No level is ever out of range: a layer's step is
/// never below its lowest, at which levels stay below 2^29 (min_step_code).
///
/// Mapping. A level is not stored but computed again from the entry where it is needed; what is
/// stored is 4 bits an entry: rounded up, not zero, above 1, negative. round_chunk: a block a chunk
/// of 4,096 entries, a thread a column of those that are visited one after the other, so a scan of
/// the columns' sums gives every entry the running 32-bit sum of the draw. lay_out: a block a layer, a scan over its segments' bytes.
///
/// Traffic an entry: round_chunk reads the entry and writes half a byte, the least but for the half
/// byte; lay_out reads 4 bytes and writes 8 for every 32,768 entries. The workspace takes 4.5 bytes
/// an entry, nearly all for content of the longest kind.
///
/// Shared memory: 3 KiB (round_chunk), 2 KiB (lay_out). Sums are integers: no order matters.
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

struct RoundMemory {
  ChunkBits bits;
  std::uint32_t top;
  std::uint32_t u;  ///< that the chunk's draw begins at
  std::uint64_t total;
};

/// What a thread keeps of its entries: a column of the chunk, so they are visited one after the
/// other.
struct Rounded {
  std::uint32_t level[kThreadEntries], part[kThreadEntries];
  std::uint32_t negative = 0, carried = 0;  ///< a bit an entry
};

/// Levels before they are rounded up, and the P of every entry. Those from `end` on are 0. A layer that
/// is sent is finite.
template <typename Fixed>
__device__ void fix_entries(const Entries& entries, std::uint64_t first, std::uint64_t end,
                            Rounded& mine, Fixed fixed_of) {
  mine.negative = 0;
#pragma unroll
  for (unsigned base = 0; base < kThreadEntries; base += kAhead) {
    float x[kAhead];
    load_rows(entries, first + threadIdx.x + base * kScanThreads, kScanThreads, end, x);
#pragma unroll
    for (unsigned k = 0; k < kAhead; ++k) {
      const unsigned j = base + k;
      const std::uint64_t fixed = fixed_of(x[k]);
      mine.level[j] = static_cast<std::uint32_t>(fixed >> 32);
      mine.negative |= __float_as_uint(x[k]) >> 31 << j;
      mine.part[j] = static_cast<std::uint32_t>(fixed);
    }
  }
}

/// By a whole block: which entries are rounded up, from the chunk's draw.
__device__ void draw(Rounded& mine, std::uint32_t u) {
  std::uint32_t sum = 0;
  for (const std::uint32_t part : mine.part) sum += part;
  sum = u + block_exclusive_sum(sum);
#pragma unroll
  for (unsigned j = 0; j < kThreadEntries; ++j) {
    const std::uint32_t next = sum + mine.part[j];
    mine.carried |= (next < sum ? 1u : 0u) << j;
    sum = next;
  }
}

/// By a whole block: whether the chunk, whose largest entry reaches the largest level here, is at
/// the top of f32.
__device__ bool is_at_top(const Rounded& mine, double step, std::uint32_t& top) {
  std::uint32_t largest = 0;
  for (const std::uint32_t level : mine.level) largest = level > largest ? level : largest;
  largest = warp_max(largest);
  if (lane() == 0) atomicMax(&top, largest);
  __syncthreads();
  return grid_at_top(top, step);
}

/// A whole block, once its entries are drawn, finds the chunk's bits and the sum of its levels.
__device__ void mark_entries(const Rounded& mine, RoundMemory& memory) {
  std::uint64_t total = 0;
#pragma unroll
  for (unsigned j = 0; j < kThreadEntries; ++j) {
    const std::uint32_t carried = mine.carried >> j & 1;
    const std::uint32_t level = mine.level[j] + carried;
    total += level;
    const std::uint32_t words[4] = {
        __ballot_sync(kAllLanes, carried != 0), __ballot_sync(kAllLanes, level != 0),
        __ballot_sync(kAllLanes, level > 1), __ballot_sync(kAllLanes, mine.negative >> j & 1)};
    const unsigned w = warp_in_block() + j * (kScanThreads / kLanes);
    if (lane() != 0) continue;
    memory.bits.carried[w] = words[0];
    memory.bits.nonzero[w] = words[1];
    memory.bits.large[w] = words[2];
    memory.bits.negative[w] = words[3];
  }
  total = warp_sum(total);
  if (lane() == 0) atomic_add(&memory.total, total);
  __syncthreads();
}

/// By a whole warp. `place`: the chunk's first in its segment.
__device__ void describe_chunk(const ChunkBits& bits, std::uint32_t place, Chunk& chunk) {
#pragma unroll
  for (unsigned list = 0; list < kLists; ++list) {
    const LaneEntries entries = lane_entries(bits, list);
    const std::uint32_t count = warp_sum(entries.count()), after = warp_max(entries.after());
    if (lane() != 0) continue;
    chunk.after[list] = after == 0 ? 0 : place + after;
    if (list == kEvery) chunk.nonzero = count;
    if (list == kOthers) chunk.large = count;
  }
}

/// Three blocks an SM have the registers that the columns need.
__global__ void __launch_bounds__(kScanThreads, 3) round_chunk(Frame frame, Plan plan) {
  const UnitOf unit = find_unit_together(frame, plan.chunks, blockIdx.x);
  const std::uint32_t number = frame(plan.jobs)[unit.job].layer;
  const float price = frame(plan.states)[unit.job].step;
  if (!(price > 0)) return;
  auto& memory = shared<RoundMemory>();
  const std::uint64_t begin = unit.index * kCoordinateChunk, rest = frame.info(number).n - begin;
  const auto m = static_cast<std::uint32_t>(rest < kCoordinateChunk ? rest : kCoordinateChunk);
  if (threadIdx.x == 0) {
    memory.top = 0, memory.total = 0;
    memory.u = Philox(frame.key(number), Purpose::select_coordinate)(unit.index)[0];
  }
  __syncthreads();
  const Entries entries = frame.entries(number);
  const double step = price, scale = grid_scale(step);
  Rounded mine;
  fix_entries(entries, begin, begin + m, mine,
              [&](double x) { return grid_fixed_in_range(x, scale); });
  const bool at_top = is_at_top(mine, step, memory.top);
  if (at_top) {
    fix_entries(entries, begin, begin + m, mine,
                [&](double x) { return grid_fixed_at_top(x, step, scale); });
  }
  draw(mine, memory.u);
  mark_entries(mine, memory);
  if (threadIdx.x < kChunkWords) {
    ChunkBits& out = frame(plan.bits)[blockIdx.x];
    out.carried[threadIdx.x] = memory.bits.carried[threadIdx.x];
    out.nonzero[threadIdx.x] = memory.bits.nonzero[threadIdx.x];
    out.large[threadIdx.x] = memory.bits.large[threadIdx.x];
    out.negative[threadIdx.x] = memory.bits.negative[threadIdx.x];
  } else if (warp_in_block() == kChunkWords / kLanes) {
    Chunk& chunk = frame(plan.chunk_states)[blockIdx.x];
    describe_chunk(memory.bits,
                   static_cast<std::uint32_t>(unit.index % kSegmentChunks * kCoordinateChunk),
                   chunk);
    if (lane() == 0) {
      chunk.total = memory.total;
      chunk.at_top = at_top ? 1 : 0;
    }
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
  write_segments(frame, plan, queue);
  queue.launch_blocks(lay_out, plan.count, kScanThreads, 0, frame, plan);
}

}  // namespace atomo::cuda::coordinate
