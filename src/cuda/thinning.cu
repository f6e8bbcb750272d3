// SPDX-License-Identifier: Apache-2.0
/// Bodies of atoms above their limit: how many runs they lose, which, and the marks of what stays.
///
/// Mathematics: the kept atoms of a body fall into U units, these into K <= 2,048 runs. d is the
/// least number such that the body fits its limit when any d consecutive runs (cyclic) are left
/// out: with P the prefix sums of the runs' bits, P(K) - window(s, d) fits for every s. A binary
/// search finds it, as windows grow with d. The runs that go are one stretch of units, or all but
/// one, so neither place needs a search: UnitsLeft. Bodies of several layers that do not fit
/// together are thinned to one level, or layers are left out by the same search over runs of layers
/// (allotment.hpp). Layers that come one by one have limits beforehand, parts of the room as
/// expected, in f64, summed in the order of the layers.
///
/// Mapping: two launches, a third before them when several layers are under a cap.
///   measure  a block a body, of one job or of a sketch's two: a thread a run. The block that ends
///            the last body allots the room; where the bodies fit it, by one sum over layers.
///   choose   a block a body: a thread a run, then a scan, then every start of a window at each
///            step of the search
///   leave    a warp a segment of 4,096 atoms: takes the marks of the atoms that go away and
///            measures it again; lanes find ranks by a scan
/// At the end of a streamed step, in their place:
///   share    a warp 128 atoms of a job, four a lane: sums of what they take at the pool's price.
///            The warp that ends a layer has its expected bits, the one that ends the last layer
///            shares the room out.
///
/// Traffic: 4 bytes a group and a bit a kept atom (measure, choose), 8 bytes an atom (share), two
/// bits read and written an atom (leave): under 1/16 byte an entry of a block of 256.
///
/// Shared memory: 16,408 bytes in measure and choose, and a scan's. Determinism: integers, but for
/// the limits of streamed steps, which one lane order of f64 operations gives. Alignment: only the
/// workspace is touched.

#include "format/thinning.hpp"

#include "core/philox.hpp"
#include "cuda/atoms.cuh"
#include "format/atom_body.hpp"
#include "format/container_rules.hpp"
#include "price/budget.hpp"

namespace atomo::cuda::atoms {
namespace {

// ---- share

/// By a whole warp, once all expected bits are there: the limits.
__device__ void set_limits(const Frame& frame, const Plan& plan, std::uint64_t room) {
  const PricedLayer* const layers = frame(plan.price.layers);
  const std::uint32_t count = plan.price.count;
  const auto weight = [&](std::uint32_t i) {
    return i < count && layers[i].min_limit_bytes != 0
               ? streamed_weight(frame(plan.cap.expected)[i], frame.info(layers[i].layer).n)
               : 0.0;
  };
  double all = 0;
  for (std::uint32_t first = 0; first < count; first += kLanes) {
    const double own = weight(first + lane());
    for (unsigned k = 0; k < kLanes; ++k) all += __shfl_sync(kAllLanes, own, static_cast<int>(k));
  }
  for (std::uint32_t i = lane(); i < count; i += kLanes) {
    if (layers[i].min_limit_bytes == 0) continue;
    frame(plan.cap.limits)[i] = streamed_limit(static_cast<double>(room) * (weight(i) / all));
  }
}

__global__ void share(Frame frame, Plan plan, std::uint64_t room) {
  const UnitOf at = unit_of_warp(frame, plan.price.parts);
  if (!at) return;
  const PriceJob& job = frame(plan.price.jobs)[at.job];
  const PricedLayer& of = frame(plan.price.layers)[job.priced];
  if (of.min_limit_bytes == 0) return;
  PriceSums& sums = frame(plan.price.sums)[at.job];
  const float price = frame.pool(kAtomsPool).price;
  const bool sends = price > 0 && (frame.layer(of.layer).flags & LayerRecord::kNonFinite) == 0;
  if (sends)
    add_expected(frame, plan.price, job, kSearchPart, at.index, static_cast<double>(price), sums);
  if (!warp_comes_last(&sums.tickets, divide_up(job.atoms, kSearchPart))) return;
  Expected expected;
  if (!layer_cost(frame, plan.price, at.job, 0, sends, price, expected)) return;
  if (lane() == 0)
    frame(plan.cap.expected)[job.priced] = sends ? static_cast<double>(expected.bits_256) : 0.0;
  if (warp_comes_last(&frame(plan.price.totals)->tickets, plan.cap.layers))
    set_limits(frame, plan, room);
}

// ---- runs

/// Ones among the bits [from, to) of a stream.
__device__ std::uint64_t ones_between(const std::uint32_t* words, std::uint64_t from,
                                      std::uint64_t to) {
  std::uint64_t ones = 0;
  while (from < to) {
    const unsigned shift = from % 32;
    const std::uint64_t left = to - from;
    const unsigned take = left < 32 - shift ? static_cast<unsigned>(left) : 32 - shift;
    const std::uint32_t mask = ~0u >> (32 - take);
    ones += static_cast<std::uint32_t>(__popc(words[from / 32] >> shift & mask));
    from += take;
  }
  return ones;
}

/// What a job sends, before it is thinned.
struct WholePart {
  const Job& job;
  const State& state;
  const std::uint32_t* index;
  const std::uint32_t* group_bits;
  std::uint64_t marks_bytes;

  [[nodiscard]] __device__ std::uint64_t units() const {
    return state.kept == 0 ? 0 : state.groups / job.pieces;
  }
  /// The bits that the units [from, to) add to it.
  [[nodiscard]] __device__ std::uint64_t bits(std::uint64_t from, std::uint64_t to) const {
    if (from == to) return 0;
    const std::uint64_t each = GroupShape::of(job.layout.length).atoms;
    const std::uint64_t first = from * each, last = to * each < state.kept ? to * each : state.kept;
    std::uint64_t sum = 16 * (to - from) * job.pieces + (last - first);
    sum += kClassBits * ones_between(index, state.flags_bit + first, state.flags_bit + last);
    for (std::uint64_t g = from * job.pieces; g < to * job.pieces; ++g) sum += group_bits[g];
    return sum;
  }
  /// Its bytes, from what all units add.
  [[nodiscard]] __device__ std::uint64_t bytes(std::uint64_t all) const {
    if (state.kept == 0) return 0;
    const std::uint64_t content = all - 16 * state.groups - state.kept - kClassBits * state.certain;
    return round_up(state.lengths_at + 2 * state.groups + (content + 7) / 8, 4);
  }
};

__device__ WholePart part_of(const Frame& frame, const Plan& plan, std::uint32_t number) {
  const Job& job = frame(plan.jobs)[number];
  const State& state = frame(plan.states)[number];
  return {job, state, frame(plan.index) + job.first_index, frame(plan.group_bits) + job.first_group,
          state.kept == 0 ? 0 : frame(plan.marks.states)[number].bytes};
}

struct RunEnds {
  std::uint64_t bits[Runs::kMost + 1];  ///< of all runs before; while they are measured, of each
  unsigned long long first_part;        ///< of the units of the first of two parts
  unsigned long long largest;           ///< of one run
};

/// A body before it is thinned: of one job, or of a sketch's pairs and its rows.
struct WholeBody {
  WholePart first, second;
  bool sketch;
  std::uint64_t of_first, of_second;  ///< units

  __device__ WholeBody(const Frame& frame, const Plan& plan, std::uint32_t number)
      : first(part_of(frame, plan, number)),
        second(part_of(frame, plan, number + (first.job.part == BodyPart::pairs ? 1 : 0))),
        sketch(first.job.part == BodyPart::pairs),
        of_first(first.units()),
        of_second(sketch ? second.units() : 0) {}

  /// By a whole block: what each run takes. To be seen after a barrier.
  __device__ void measure(const Runs& runs, RunEnds& ends) const {
    if (threadIdx.x == 0) ends.first_part = ends.largest = 0;
    __syncthreads();
    // Units before this one that are the first part's.
    const auto split = [&](std::uint64_t unit) { return unit < of_first ? unit : of_first; };
    std::uint64_t own_first = 0, largest = 0;
#pragma unroll 1
    for (std::uint64_t r = threadIdx.x; r < runs.count(); r += blockDim.x) {
      const std::uint64_t from = runs.first_unit(r), to = runs.first_unit(r + 1);
      const std::uint64_t of_one = first.bits(split(from), split(to));
      own_first += of_one;
      const std::uint64_t bits = of_one + second.bits(from - split(from), to - split(to));
      ends.bits[r] = bits;
      largest = bits > largest ? bits : largest;
    }
    own_first = warp_sum(own_first);
    largest = warp_max(largest);
    if (lane() != 0) return;
    atomicAdd(&ends.first_part, static_cast<unsigned long long>(own_first));
    atomicMax(&ends.largest, static_cast<unsigned long long>(largest));
  }
  [[nodiscard]] __device__ std::uint64_t field() const { return sketch ? kPairBytesField : 0; }
  /// Bytes, from what all units add and those of the first part.
  [[nodiscard]] __device__ std::uint64_t bytes(std::uint64_t all, std::uint64_t of_part) const {
    return field() + first.bytes(of_part) + (sketch ? second.bytes(all - of_part) : 0);
  }
  /// Most bits beside the runs of a thinned body.
  [[nodiscard]] __device__ std::uint64_t fixed_bits() const {
    const std::uint64_t marks = first.marks_bytes + (sketch ? second.marks_bytes : 0);
    return 8 * (marks + kThinningBytes + field()) + (sketch ? 2 : 1) * kThinningPaddingBits;
  }
  [[nodiscard]] __device__ CappedBody finished(std::uint64_t all, const Runs& runs,
                                               const RunEnds& ends) const {
    const std::uint64_t price = first.state.own ? sizeof(float) : 0;
    const std::uint64_t whole = bytes(all, ends.first_part);
    std::uint64_t least = round_up((fixed_bits() + ends.largest + 7) / 8, 4);
    if (runs.count() == 1 || least > whole) least = whole;
    return {price + whole, price + least, first.state.own};
  }
};

/// By a whole block: the least d such that `total` without any d consecutive runs fits `limit`, the
/// same in every thread; `before(r)` is what the runs before r take. The count where there is none.
template <typename Before>
__device__ std::uint32_t min_dropped(Before before, const Runs& runs, std::uint64_t total,
                                     std::uint64_t limit) {
  const auto count = static_cast<std::uint32_t>(runs.count());
  std::uint32_t low = 0, high = count;
  while (low < high) {
    const std::uint32_t d = (low + high) / 2;
    bool fits = true;
    for (std::uint32_t s = threadIdx.x; s < count; s += blockDim.x) {
      const std::uint32_t end = s + d;
      const std::uint64_t window =
          end <= count ? before(end) - before(s) : before(count) - before(s) + before(end - count);
      fits = fits && total - window <= limit;
    }
    if (__syncthreads_and(fits ? 1 : 0) != 0) {
      high = d;
    } else {
      low = d + 1;
    }
  }
  return low;
}

// ---- measure

/// A whole block adds up `get` over the priced layers' bodies.
template <typename Get>
__device__ std::uint64_t sum_bodies(const Frame& frame, const Plan& plan, Get get) {
  const CappedBody* const bodies = frame(plan.cap.bodies);
  return scan_blockwide<std::uint64_t>(
      plan.price.count, [&](std::uint64_t i) { return get(bodies[i]); },
      [](std::uint64_t, std::uint64_t) {});
}

/// By a whole block, where bodies do not fit the room even when each is as thin as can be.
__device__ void leave_layers_out(const Frame& frame, const Plan& plan, std::uint64_t room) {
  const CappedBody* const bodies = frame(plan.cap.bodies);
  std::uint32_t* const numbers = frame(plan.cap.numbers);
  std::uint64_t* const ends = frame(plan.cap.ends);
  const auto count = scan_blockwide<std::uint64_t>(
      plan.price.count, [&](std::uint64_t i) { return bodies[i].bytes > 0 ? 1u : 0u; },
      [&](std::uint64_t i, std::uint64_t before) {
        numbers[i] = static_cast<std::uint32_t>(before);
      });
  const auto total = scan_blockwide<std::uint64_t>(
      plan.price.count, [&](std::uint64_t i) { return raised_bytes(bodies[i]); },
      [&](std::uint64_t i, std::uint64_t before) {
        if (bodies[i].bytes > 0) ends[numbers[i]] = before;
      });
  if (threadIdx.x == 0) ends[count] = total;
  __syncthreads();
  const Runs runs = runs_of_layers(count);
  const std::uint32_t dropped =
      min_dropped([&](std::uint32_t run) { return ends[runs.first_unit(run)]; }, runs, total, room);
  const std::uint32_t start = runs.start(draw_of_layers(frame.key(0)));
  for (std::uint32_t i = threadIdx.x; i < plan.price.count; i += blockDim.x) {
    if (bodies[i].bytes == 0) continue;
    const bool drops = runs.drops(runs.run_of(numbers[i]), dropped, start);
    frame(plan.cap.allotments)[i] = {raised_bytes(bodies[i]), drops ? 0.0f : runs.gain(dropped)};
  }
}

/// The block that ends the last body calls it, with all its threads.
__device__ void allot(const Frame& frame, const Plan& plan, std::uint64_t room) {
  const auto at_level = [&](std::uint64_t words) {
    return sum_bodies(frame, plan,
                      [words](const CappedBody& body) { return bytes_at_limit(body, words); });
  };
  const bool fit =
      sum_bodies(frame, plan, [](const CappedBody& body) { return body.bytes; }) <= room;
  if (!fit && at_level(0) > room) return leave_layers_out(frame, plan, room);
  const std::uint64_t level = fit ? ~std::uint64_t{0} / 4 : price::highest_level(room, at_level);
  for (std::uint32_t i = threadIdx.x; i < plan.price.count; i += blockDim.x)
    frame(plan.cap.allotments)[i] = {bytes_at_limit(frame(plan.cap.bodies)[i], level), 1};
}

__global__ void measure_bodies(Frame frame, Plan plan, std::uint64_t room) {
  const std::uint32_t number = blockIdx.x;
  const Job& job = frame(plan.jobs)[number];
  RunEnds& ends = shared<RunEnds>();
  if (frame(plan.price.layers)[job.priced].min_limit_bytes != 0 && job.part != BodyPart::rows) {
    const WholeBody body(frame, plan, number);
    if (const std::uint64_t units = body.of_first + body.of_second; units != 0) {
      const Runs runs = Runs::of(units);
      body.measure(runs, ends);
      __syncthreads();
      const std::uint64_t all = scan_blockwide<std::uint64_t>(
          runs.count(), [&](std::uint64_t r) { return ends.bits[r]; },
          [](std::uint64_t, std::uint64_t) {});
      if (threadIdx.x == 0) frame(plan.cap.bodies)[job.priced] = body.finished(all, runs, ends);
    }
  }
  bool last = true;
  if (threadIdx.x == 0) last = take_ticket(frame(plan.cap.tickets)) + 1 == plan.count;
  if (__syncthreads_and(last ? 1 : 0) != 0) allot(frame, plan, room);
}

// ---- choose

/// The units that stay, of the `count` from `first` on, when runs of all go.
__device__ UnitsLeft units_left(const Runs& runs, const Thinning& thinning, std::uint64_t first,
                                std::uint64_t count) {
  const auto own = [&](std::uint64_t run) {
    const std::uint64_t unit = runs.first_unit(run);
    return unit < first ? 0 : unit - first < count ? unit - first : count;
  };
  const std::uint64_t end = thinning.start + std::uint64_t{thinning.dropped};
  if (end <= runs.count()) return {own(thinning.start), own(end), false};
  return {own(end - runs.count()), own(thinning.start), true};
}

/// By one thread: what is left of a job's part.
__device__ void leave(const Frame& frame, const Plan& plan, std::uint32_t number,
                      const Thinning& thinning, const UnitsLeft& left) {
  State& state = frame(plan.states)[number];
  if (state.kept == 0) return;
  state.thinning = thinning.word();
  state.left = left;
  MarksState& marks = frame(plan.marks.states)[number];
  for (auto& bits : marks.gap_bits) bits = 0;  // measured again
  marks.kept = 0;
}

/// The limit of a body without its own price.
struct Limit {
  std::uint64_t bits;
  bool exceeded;
};

/// By one thread: a layer that makes up for others has its price in its body, one that is left out
/// (gain 0) keeps nothing.
__device__ void raise_price(const Frame& frame, const Plan& plan, std::uint32_t number,
                            float gain) {
  if (gain == 1) return;
  const Job& job = frame(plan.jobs)[number];
  State* const states = frame(plan.states);
  states[number].own = true;
  frame.layer(job.layer).price = raised_price(states[number].price, gain);
  if (gain != 0) return;
  states[number].kept = 0;
  if (job.part == BodyPart::pairs) states[number + 1].kept = 0;
}

/// What a body may take.
__device__ Allotment allotment_of(const Frame& frame, const Plan& plan, const Job& job,
                                  const CappedBody& body, std::uint64_t room) {
  if (frame.state().cap.limit != 0)
    return allot_streamed(body, frame.state().cap, frame.key(job.layer));
  if (plan.cap.layers > 1) return frame(plan.cap.allotments)[job.priced];
  return {room, 1};
}

__global__ void choose_runs(Frame frame, Plan plan, std::uint64_t room) {
  const std::uint32_t number = blockIdx.x;
  const Job& job = frame(plan.jobs)[number];
  const PricedLayer& of = frame(plan.price.layers)[job.priced];
  if (of.min_limit_bytes == 0 || job.part == BodyPart::rows) return;
  // A sketch's units are its pairs', then its rows'.
  const WholeBody body(frame, plan, number);
  const std::uint64_t of_first = body.of_first, of_second = body.of_second;
  if (of_first + of_second == 0) return;
  const Runs runs = Runs::of(of_first + of_second);
  RunEnds& ends = shared<RunEnds>();
  body.measure(runs, ends);
  __syncthreads();
  const auto all = scan_blockwide<std::uint64_t>(
      runs.count(), [&](std::uint64_t r) { return ends.bits[r]; },
      [&](std::uint64_t r, std::uint64_t before) { ends.bits[r] = before; });
  if (threadIdx.x == 0) ends.bits[runs.count()] = all;
  __syncthreads();  // ends are there
  const std::uint64_t total = all + body.fixed_bits();
  Limit& limit = shared<Limit>();
  if (threadIdx.x == 0) {
    const CappedBody finished = body.finished(all, runs, ends);
    const Allotment allotted = allotment_of(frame, plan, job, finished, room);
    raise_price(frame, plan, number, allotted.gain);
    const std::uint64_t price = frame(plan.states)[number].own ? sizeof(float) : 0;
    const std::uint64_t proper = finished.bytes - (finished.own ? sizeof(float) : 0);
    limit = {8 * (allotted.limit - price), allotted.gain != 0 && price + proper > allotted.limit};
  }
  __syncthreads();
  if (!limit.exceeded) return;
  const std::uint32_t dropped =
      min_dropped([&](std::uint32_t run) { return ends.bits[run]; }, runs, total, limit.bits);
  if (threadIdx.x != 0) return;
  const Philox draws(frame.key(job.layer), Purpose::thinning);
  const Thinning thinning{runs.log2, dropped, runs.start(draws(0)[0])};
  leave(frame, plan, number, thinning, units_left(runs, thinning, 0, of_first));
  if (body.sketch)
    leave(frame, plan, number + 1, thinning, units_left(runs, thinning, of_first, of_second));
}

// ---- leave

/// The marks of `word` whose atoms stay; `rank` is that of the first and becomes that behind them.
__device__ std::uint64_t stay_of(std::uint64_t word, const UnitsLeft& left, std::uint64_t& rank) {
  std::uint64_t stays = 0;
  for (std::uint64_t rest = word; rest != 0; rest &= rest - 1, ++rank) {
    if (left.stays(rank)) stays |= rest & (~rest + 1);
  }
  return stays;
}

__global__ void leave_out(Frame frame, Plan plan) {
  const UnitOf at = unit_of_warp(frame, plan.marks.segments);
  if (!at) return;
  const State& state = frame(plan.states)[at.job];
  if (state.thinning == 0) return;
  const Job& job = frame(plan.jobs)[at.job];
  const UnitsLeft left = state.left.times(GroupShape::of(job.layout.length).atoms);  // in ranks
  std::uint64_t* const kept = segment_words(frame, plan.marks, at) + 2 * lane();
  std::uint64_t* const certain = frame(plan.certain) + (kept - frame(plan.marks.words));
  const std::uint64_t words[2] = {kept[0], kept[1]};
  const auto own = static_cast<std::uint32_t>(__popcll(words[0]) + __popcll(words[1]));
  std::uint32_t total;
  std::uint64_t rank = frame(plan.marks.ranks)[at.number] + warp_exclusive_sum(own, total);
  std::uint32_t ones = 0;
  for (unsigned w = 0; w < 2; ++w) {
    kept[w] = stay_of(words[w], left, rank);
    certain[w] = kept[w] != 0 ? certain[w] & kept[w] : 0;  // there may be no such chunk
    ones += static_cast<std::uint32_t>(__popcll(certain[w]));
  }
  const std::uint32_t of_segment = warp_sum(ones);
  if (lane() == 0) frame(plan.segments)[at.number].certain = of_segment;
  measure_segment(frame, plan.marks, at);
}

}  // namespace

void share_room(const Frame& frame, const Plan& plan, std::uint64_t room, Queue& queue) {
  queue.launch_warps(share, plan.price.parts.units, frame, plan, room);
}

void thin(const Frame& frame, const Plan& plan, Queue& queue) {
  const std::uint64_t room = capped_bytes(8 * plan.cap.bytes, 1, frame.plan.head_bytes);
  if (plan.cap.layers > 1)
    queue.launch_blocks(measure_bodies, plan.count, kScanThreads, 0, frame, plan, room);
  queue.launch_blocks(choose_runs, plan.count, kScanThreads, 0, frame, plan, room);
  queue.launch_warps(leave_out, plan.marks.segments.units, frame, plan);
}

}  // namespace atomo::cuda::atoms
