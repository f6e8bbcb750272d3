// SPDX-License-Identifier: Apache-2.0
/// Plan and amplitudes of dithered blocks and rows.
///
/// Mathematics: rms = sqrt(N / L), N the sum of the squares of an atom's L entries, f64. Entry i of
/// a segment of up to 1,024 entries is added to lane i mod 32 in order; lanes are folded 16, 8, 4,
/// 2, 1 apart; an atom's segments are added as a balanced tree. Squares of f32 are exact in f64.
///
/// Mapping: eight threads a segment, of which each keeps four of the format's lanes: it reads four
/// neighbouring entries at a time, and the first three folds are shuffles, the last two are its
/// own. A warp works on four segments side by side, and goes on for at least 4,096 entries; atoms
/// of more than 1,024 entries leave their segments' sums, and a warp an atom adds these up. What a
/// tree lacks counts as +0, which no sum of squares feels.
///
/// Traffic an entry: read once, 4 bytes or 2 (the least possible); written 8 bytes an atom, and as
/// many a segment of a long one.
///
/// Shared memory: none. Determinism: one fixed tree; the largest amplitude is an integer maximum.
/// Alignment: tensors as their entries; 16 bytes are read at once where the address allows it.

#include "cuda/atoms.cuh"

#include "atom_body.hpp"
#include "atomo/selection.hpp"
#include "matrix_view.hpp"

namespace atomo::cuda {
namespace {

using detail::GroupShape;
using detail::kPieceEntries;

constexpr unsigned kThreads = 8;                   // of a segment
constexpr unsigned kTogether = kLanes / kThreads;  // segments side by side
constexpr std::uint64_t kUnitEntries = 4096;       // at least, where segments are whole

/// Segments of a warp, a multiple of kTogether.
__host__ __device__ constexpr std::uint64_t segments_of_unit(std::uint64_t length) {
  const std::uint64_t entries = length < kPieceEntries ? length : kPieceEntries;
  const std::uint64_t rounds = kUnitEntries / kTogether / entries;
  return kTogether * (rounds == 0 ? 1 : rounds);
}

struct Segment {
  std::uint64_t atom = 0, from = 0, entries = 0;  ///< first entry and entries, within the atom
};

__device__ Segment segment_of(const AtomsJob& job, std::uint64_t i) {
  Segment s{i, 0, 0};
  if (job.pieces > 1) {
    s.atom = i / job.pieces;
    s.from = i % job.pieces * kPieceEntries;
  }
  if (s.atom >= job.layout.count) return s;
  const std::uint64_t left = job.layout.length_of(s.atom) - s.from;
  s.entries = left < kPieceEntries ? left : kPieceEntries;
  return s;
}

/// By a whole warp, eight threads a segment: its sum of squares, in the first of the eight.
__device__ double sum_squares(const Entries& x, std::uint64_t first, std::uint64_t entries) {
  double sum[4] = {};
  for (std::uint64_t i = 4 * (lane() % kThreads); i < entries; i += 32) {
    float v[4];
    x.four(first + i, first + entries, v);
    for (unsigned k = 0; k < 4; ++k) sum[k] += static_cast<double>(v[k]) * v[k];
  }
  for (unsigned apart = kThreads / 2; apart != 0; apart /= 2) {
    for (double& s : sum) s += __shfl_down_sync(kAllLanes, s, apart, kThreads);
  }
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

__device__ double larger(double a, double b) {  // a NaN is larger than anything
  return b > a || b != b ? b : a;
}

__device__ double warp_largest(double value) {
  for (unsigned step = kLanes / 2; step != 0; step /= 2)
    value = larger(value, __shfl_xor_sync(kAllLanes, value, static_cast<int>(step)));
  return value;
}

__device__ double amplitude(double sum, std::uint64_t entries) {
  return sqrt(sum / static_cast<double>(entries));
}

__global__ void sum_segments(AtomsPlan plan, Frame frame) {
  const std::uint64_t unit = warp_in_grid();
  if (unit >= plan.sums.units) return;
  const UnitOf at = find_unit(frame, plan.sums, unit);
  const AtomsJob& job = frame(plan.jobs)[at.job];
  const Entries x = frame.entries(job.layer);
  const std::uint64_t count = segments_of_unit(job.layout.length);
  double largest = 0;
  for (std::uint64_t i = at.index * count; i < (at.index + 1) * count; i += kTogether) {
    const std::uint64_t number = i + lane() / kThreads;
    const Segment s = segment_of(job, number);
    const double sum = sum_squares(x, s.atom * job.layout.length + s.from, s.entries);
    if (lane() % kThreads != 0 || s.entries == 0) continue;
    if (job.pieces > 1) {
      frame(plan.piece_sums)[job.first_sum + number] = sum;
    } else {
      const double rms = amplitude(sum, s.entries);
      frame(plan.amplitudes)[job.first_atom + number] = rms;
      largest = larger(largest, rms);
    }
  }
  if (job.pieces == 1) {
    const std::uint64_t units = divide_up(job.layout.count, count);
    offer_amplitudes(frame, plan.price, at.job, units, warp_largest(largest));
  }
}

/// A warp an atom: sums of 32 neighbours become one, in place, until one is left.
__global__ void sum_trees(AtomsPlan plan, Frame frame) {
  const std::uint64_t unit = warp_in_grid();
  if (unit >= plan.trees.units) return;
  const UnitOf at = find_unit(frame, plan.trees, unit);
  const AtomsJob& job = frame(plan.jobs)[at.job];
  double* const sums = frame(plan.piece_sums) + job.first_sum + at.index * job.pieces;
  for (std::uint32_t left = job.pieces; left > 1; left = (left + kLanes - 1) / kLanes) {
    for (std::uint32_t i = 0; i < left; i += kLanes) {
      double sum = i + lane() < left ? sums[i + lane()] : 0.0;
      for (unsigned apart = 1; apart < kLanes; apart *= 2)
        sum += __shfl_down_sync(kAllLanes, sum, apart);
      __syncwarp();
      if (lane() == 0) sums[i / kLanes] = sum;
      __syncwarp();
    }
  }
  const double rms = amplitude(sums[0], job.layout.length);
  if (lane() == 0) frame(plan.amplitudes)[job.first_atom + at.index] = rms;
  offer_amplitudes(frame, plan.price, at.job, job.layout.count, rms);
}

bool is_own(const PlannedLayer& layer) {
  return layer.method != nullptr && layer.kind->method == MethodId::atoms && layer.n > 0;
}

bool has_pairs(const PlannedLayer& layer) { return layer.kind->params == detail::kPairs; }

AtomLayout layout_of(const PlannedLayer& layer) {
  if (has_pairs(layer))
    return detail::pairs_frame(detail::PairLayer::all_of(detail::matrix_view(layer.kind->shape)));
  if (layer.kind->params == 0) return AtomLayout::blocks(layer.n);
  const auto rows = static_cast<std::uint64_t>(layer.kind->shape[0]);
  return AtomLayout::rows(rows, layer.n / rows);
}

/// u32 that hold marks, flags and lengths, whatever is kept.
std::uint64_t index_words(const AtomLayout& layout) {
  const std::uint64_t flags = layout.count * (1 + detail::kClassBits);
  const std::uint64_t lengths = 2 * GroupShape::of(layout.length).groups(layout.count);
  return (detail::max_marks_bytes(layout.count) + flags / 8 + 2 + lengths) / 4 + 2;
}

Purpose purpose_of(const PlannedLayer& layer) {
  return has_pairs(layer) ? Purpose::select_pair
                          : detail::purposes_of(layout_of(layer).family).select;
}

/// u32 that hold the longest content of a group.
std::uint64_t slot_words(const PlannedLayer& layer, const AtomLayout& layout) {
  if (has_pairs(layer)) return pairs_slot_words(detail::matrix_view(layer.kind->shape));
  unsigned bits = 0;
  for (const detail::AtomClass& c : detail::kAtomClasses) {
    const unsigned escape = detail::escape_bits(layout.length, c.reach);
    bits = std::max(bits, detail::max_pair_bits(c.step, escape));
  }
  const std::uint64_t piece = std::min<std::uint64_t>(layout.length, kPieceEntries);
  const std::uint64_t pairs = GroupShape::of(layout.length).atoms * detail::pairs_of(piece);
  return divide_up(pairs * bits, 32);
}

/// Adds layers one by one, in both runs of a plan.
class Planner {
 public:
  Planner(Layout& layout, std::size_t jobs, std::size_t of_pairs)
      : jobs_(layout.table<AtomsJob>(jobs)),
        sums_(layout, jobs),
        trees_(layout, jobs),
        chunks_(layout, jobs),
        groups_(layout, jobs),
        marks_(layout, jobs),
        price_(layout, jobs),
        pairs_(layout, of_pairs),
        units_(layout.table<PriceUnits>(1)) {}

  void place(std::uint64_t atoms, Layout& layout, AtomsPlan& plan) {
    plan.amplitudes = layout.scratch<double>(atoms);
    amplitudes_ = plan.amplitudes;
  }

  void add(const PlannedLayer& layer, std::uint32_t number) {
    AtomsJob job;
    job.layout = layout_of(layer);
    job.layer = number;
    const AtomLayout& atoms = job.layout;
    const GroupShape shape = GroupShape::of(atoms.length);
    job.pieces = static_cast<std::uint32_t>(shape.pieces);
    job.select = purpose_of(layer);
    job.slot_words = slot_words(layer, atoms);
    job.first_atom = atoms_;
    job.first_sum = piece_sums_;
    job.first_group = group_count_;
    job.first_slot = slots_;
    job.first_index = index_;
    job.first_thinned = thinned_;
    job.least_limit = layer.least_limit_bytes;
    for (std::size_t c = 0; c < detail::kAtomClassCount; ++c) {
      const double reach = detail::kAtomClasses[c].reach;
      job.escape_bits[0][c] = static_cast<std::uint8_t>(detail::escape_bits(atoms.length, reach));
      job.escape_bits[1][c] = static_cast<std::uint8_t>(detail::escape_bits(atoms.last, reach));
    }
    if (!jobs_.values.empty()) jobs_.values[count_] = job;
    const std::uint64_t groups = shape.groups(atoms.count);
    const bool pairs = has_pairs(layer), long_atoms = shape.pieces > 1 && !pairs;
    const std::uint64_t unit = segments_of_unit(atoms.length);
    sums_.add(pairs ? 0 : divide_up(atoms.count * shape.pieces, unit));
    trees_.add(long_atoms ? atoms.count : 0);
    chunks_.add(divide_up(atoms.count, cpu::kSelectionChunk));
    groups_.add(pairs ? 0 : groups);
    if (pairs) {
      pairs_.add(detail::matrix_view(layer.kind->shape), number, count_, groups,
                 {amplitudes_.at + atoms_ * sizeof(double)});
    }
    marks_.add(number, atoms.count);
    add_price(layer, job);
    ++count_;
    atoms_ += atoms.count;
    piece_sums_ += long_atoms ? atoms.count * shape.pieces : 0;
    group_count_ += groups;
    slots_ += groups * job.slot_words;
    index_ += index_words(atoms);
    if (job.least_limit == 0) return;
    ++cap_.layers;
    cap_.least += job.least_limit;
    cap_.bytes += layer.method->cap_bits() * static_cast<double>(layer.n) / 8;
    thinned_ += 1 + index_words(atoms);
  }

  void finish(Layout& layout, AtomsPlan& plan) {
    plan.jobs = jobs_.place;
    plan.count = count_;
    plan.sums = sums_.split();
    plan.trees = trees_.split();
    plan.chunks = chunks_.split();
    plan.groups = groups_.split();
    plan.marks = marks_.finish();
    plan.price = price_.finish();
    plan.pairs = pairs_.finish();
    plan.piece_sums = layout.scratch<double>(piece_sums_);
    plan.states = layout.zeroed<AtomsState>(count_);
    const std::uint64_t segments = plan.marks.segments.units;
    plan.segments = layout.zeroed<AtomsSegment>(segments);
    plan.certain = layout.scratch<std::uint64_t>(segments * kSegmentWords);
    plan.certain_rank = layout.scratch<std::uint64_t>(segments);
    plan.kept = layout.scratch<KeptAtom>(atoms_);
    plan.index = layout.zeroed<std::uint32_t>(index_);
    plan.thinned = layout.zeroed<std::uint32_t>(thinned_);
    plan.slots = layout.scratch<std::uint32_t>(slots_);
    plan.group_bits = layout.scratch<std::uint32_t>(group_count_);
    plan.group_ends = layout.scratch<std::uint64_t>(group_count_);
    const std::uint32_t sharing = cap_.layers > 1 ? count_ : 0;
    cap_.expected = layout.scratch<double>(sharing);
    cap_.limits = layout.scratch<std::uint64_t>(sharing);
    plan.cap = cap_;
  }

 private:
  void add_price(const PlannedLayer& layer, const AtomsJob& job) {
    // What a unit of weight costs is the same for every layout of blocks and rows.
    const bool pairs = has_pairs(layer);
    const MatrixShape shape = pairs ? detail::matrix_view(layer.kind->shape) : MatrixShape{};
    const cpu::PriceCosts costs = pairs ? detail::pair_costs(shape) : cpu::price_costs(job.layout);
    const auto& units = pairs ? pairs_.units() : units_;
    if (!units.values.empty()) units.values[0] = costs.unit;
    const auto weight = [](std::uint64_t entries) { return entries + entries % 2; };
    PriceJob price;
    price.amplitudes = {amplitudes_.at + job.first_atom * sizeof(double)};
    price.atoms = job.layout.count;
    price.weight = pairs ? detail::pair_weight(shape) : weight(job.layout.length);
    price.last_weight = pairs ? price.weight : weight(job.layout.last);
    price.units = units.place;
    price.uncertain = costs.uncertain;
    price.certain = costs.certain;
    price.layer = job.layer;
    const detail::PriceRule rule = layer.method->price_rule(layer.kind->shape);
    if (rule.from == detail::PriceRule::From::price) price.price = rule.price;
    price_.add(price);
  }

  Layout::NewTable<AtomsJob> jobs_;
  SplitMaker sums_, trees_, chunks_, groups_;
  MarksPlanner marks_;
  PricePlanner price_;
  PairsPlanner pairs_;
  Layout::NewTable<PriceUnits> units_;
  Scratch<double> amplitudes_;
  CapPlan cap_;
  std::uint32_t count_ = 0;
  std::uint64_t atoms_ = 0, piece_sums_ = 0, group_count_ = 0, slots_ = 0, index_ = 0, thinned_ = 0;
};

}  // namespace

void plan(std::span<const PlannedLayer> layers, Layout& layout, AtomsPlan& plan) {
  plan = {};
  std::size_t jobs = 0, of_pairs = 0;
  std::uint64_t atoms = 0;
  for (const PlannedLayer& layer : layers) {
    if (!is_own(layer)) continue;
    ++jobs;
    of_pairs += has_pairs(layer) ? 1 : 0;
    atoms += layout_of(layer).count;
  }
  if (jobs == 0) return;
  Planner planner(layout, jobs, of_pairs);
  planner.place(atoms, layout, plan);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (is_own(layers[i])) planner.add(layers[i], static_cast<std::uint32_t>(i));
  }
  planner.finish(layout, plan);
}

void analyse(const AtomsPlan& plan, const Frame& frame, Queue& queue) {
  queue.launch_warps(sum_segments, plan.sums.units, plan, frame);
  queue.launch_warps(sum_trees, plan.trees.units, plan, frame);
  analyse_pairs(plan, frame, queue);
}

void price(const AtomsPlan& plan, const Frame& frame, Queue& queue) {
  find_price(plan.price, frame, queue);
}

}  // namespace atomo::cuda
