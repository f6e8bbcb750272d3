// SPDX-License-Identifier: Apache-2.0
/// Plan of dithered atoms, amplitudes of blocks and rows.
///
/// Mathematics: rms = sqrt(N / L), N the sum of the squares of an atom's L entries, f64. Entry i of
/// a segment of up to 1,024 entries is added to lane i mod 32 in order; lanes are folded 16, 8, 4,
/// 2, 1 apart; an atom's segments are added as a balanced tree. Squares of f32 are exact in f64.
///
/// Mapping: eight threads a segment, of which each keeps four of the format's lanes: it reads four
/// neighbouring entries at a time, and the first three folds are shuffles, the last two are its
/// own. A warp works on four segments side by side, and goes on for at least 2,048 entries; atoms
/// of more than 1,024 entries leave their segments' sums, and a warp an atom adds these up. What a
/// tree lacks counts as +0, which no sum of squares feels.
///
/// Traffic an entry: read once, 4 bytes or 2 (the least possible); written 8 bytes an atom, and as
/// many a segment of a long one.
///
/// Shared memory: none. Determinism: one fixed tree; the largest amplitude is an integer maximum.
/// Alignment: tensors as their entries; 16 bytes are read at once where the address allows it.

#include "coding/pair_code.hpp"
#include "cuda/atoms.cuh"
#include "cuda/grid_form.cuh"
#include "price/atom_costs.hpp"
#include "price/pair_costs.hpp"

#include "format/atom_body.hpp"
#include "math/selection.hpp"

namespace atomo::cuda {
namespace {

using coding::kPieceEntries;
using format::GroupShape;

constexpr unsigned kThreads = 8;                   // of a segment
constexpr unsigned kTogether = kLanes / kThreads;  // segments side by side
constexpr std::uint64_t kUnitEntries = 2048;       // at least, where segments are whole

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

__global__ void sum_segments(Frame frame, AtomsPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.sums);
  if (!at) return;
  const AtomsJob& job = frame(plan.jobs)[at.job];
  const Entries x = entries_of(frame, job);
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
__global__ void sum_trees(Frame frame, AtomsPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.trees);
  if (!at) return;
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

/// u32 that hold marks, flags and lengths, whatever is kept.
std::uint64_t index_words(const AtomLayout& layout) {
  const std::uint64_t flags = layout.count * (1 + format::kClassBits);
  const std::uint64_t lengths = 2 * GroupShape::of(layout.length).groups(layout.count);
  return (coding::max_marks_bytes(layout.count) + flags / 8 + 2 + lengths) / 4 + 2;
}

Purpose purpose_of(const LayerAtoms& of) {
  return of.has_pairs() ? Purpose::select_pair : format::purposes_of(of.layout.family).select;
}

/// u32 that hold the longest content of a group.
std::uint64_t slot_words(const LayerAtoms& of) {
  if (of.has_pairs()) return pairs_slot_words(of);
  const AtomLayout& layout = of.layout;
  unsigned bits = 0;
  for (const coding::AtomClass& c : coding::kAtomClasses) {
    const unsigned escape = coding::escape_bits(layout.length, c.reach);
    bits = std::max(bits, coding::max_pair_bits(c.step, escape));
  }
  const std::uint64_t piece = std::min<std::uint64_t>(layout.length, kPieceEntries);
  const std::uint64_t pairs = GroupShape::of(layout.length).atoms * coding::pairs_of(piece);
  return divide_up(pairs * bits, 32);
}

/// What the plan has of everything.
struct Counts {
  std::size_t layers = 0, jobs = 0, singular = 0, sketches = 0, grids = 0;
  std::uint64_t atoms = 0;
  bool chooses = false;  ///< layers of the method automatic

  void add(const LayerPlan& layer) {
    const std::size_t before = jobs;
    visit_atoms(layer, [&](const LayerAtoms& of) {
      ++jobs;
      atoms += of.layout.count;
      singular += of.has_pairs() && of.part == BodyPart::whole ? 1 : 0;
      sketches += of.part == BodyPart::pairs ? 1 : 0;
    });
    layers += jobs > before ? 1 : 0;
    grids += has_grid(layer) ? 1 : 0;
    chooses = chooses || (jobs > before && layer.kind.method == MethodId::automatic);
  }
};

/// Adds layers one by one, in both runs of a plan. `bodies`: what is written, `counts` again, or
/// nothing in a plan of prices alone.
class Planner {
 public:
  Planner(Layout& layout, const Counts& counts, const Counts& bodies)
      : layout_(layout),
        bodies_(bodies.jobs > 0),
        jobs_(layout.table<AtomsJob>(bodies.jobs)),
        sums_(layout, bodies.jobs),
        trees_(layout, bodies.jobs),
        chunks_(layout, bodies.jobs),
        groups_(layout, bodies.jobs),
        marks_(layout, bodies.jobs),
        price_(layout, counts.layers, counts.jobs, counts.grids),
        pairs_(layout, bodies.singular, bodies.sketches),
        units_(layout.table<PriceUnits>(1)),
        noise_(layout.table<PriceUnits>(counts.chooses ? 1 : 0)),
        amplitudes_(layout.scratch<double>(counts.atoms)) {}

  void add(const LayerPlan& layer, std::uint32_t number) {
    PricedLayer priced;
    priced.layer = number;
    priced.least_limit = layer.least_limit_bytes;
    priced.forms = 0;
    visit_atoms(layer, [&](const LayerAtoms& of) {
      ++priced.jobs;
      priced.forms += of.part == BodyPart::rows ? 0 : 1;
    });
    if (priced.jobs == 0) return;
    if (has_grid(layer)) {
      priced.grid = grids_++;
      ++priced.forms;
    }
    const price::PriceRule rule = layer.price_rule;
    if (rule.from == price::PriceRule::From::price) priced.price = rule.price;
    price_.add(priced);
    const std::uint64_t slots = slots_;
    std::uint64_t end = slots_;
    visit_atoms(layer, [&](const LayerAtoms& of) {
      if (of.part != BodyPart::rows) slots_ = slots;
      add_job(layer, of, number, priced.forms > 1);
      end = std::max(end, slots_);
    });
    slots_ = end;
    if (priced.least_limit == 0) return;
    ++cap_.layers;
    cap_.bytes += layer.price_rule.cap_bits * static_cast<double>(layer.n) / 8;
  }

  void finish(AtomsPlan& plan) {
    plan.price = price_.finish();
    plan.amplitudes = amplitudes_;
    // The limit of the only layer of a message is known beforehand.
    const std::uint32_t sharing = bodies_ && cap_.layers > 1 ? plan.price.count : 0;
    cap_.bodies = layout_.zeroed<price::CappedBody>(sharing);
    cap_.allotments = layout_.scratch<price::Allotment>(sharing);
    cap_.numbers = layout_.scratch<std::uint32_t>(sharing);
    cap_.ends = layout_.scratch<std::uint64_t>(sharing == 0 ? 0 : sharing + 1);
    cap_.tickets = layout_.zeroed<std::uint32_t>(sharing == 0 ? 0 : 1);
    const std::uint32_t streamed = !bodies_ && cap_.layers > 0 ? plan.price.count : 0;
    cap_.expected = layout_.scratch<double>(streamed);
    cap_.limits = layout_.scratch<std::uint64_t>(streamed);
    plan.cap = cap_;
    if (bodies_) finish_bodies(plan);
  }

 private:
  void finish_bodies(AtomsPlan& plan) {
    plan.jobs = jobs_.place;
    plan.count = count_;
    plan.sums = sums_.split();
    plan.trees = trees_.split();
    plan.chunks = chunks_.split();
    plan.groups = groups_.split();
    plan.marks = marks_.finish();
    plan.pairs = pairs_.finish();
    plan.piece_sums = layout_.scratch<double>(piece_sums_);
    plan.states = layout_.zeroed<AtomsState>(count_);
    const std::uint64_t segments = plan.marks.segments.units;
    plan.segments = layout_.zeroed<AtomsSegment>(segments);
    plan.certain = layout_.scratch<std::uint64_t>(segments * kSegmentWords);
    plan.certain_rank = layout_.scratch<std::uint64_t>(segments);
    plan.kept = layout_.scratch<KeptAtom>(atoms_);
    plan.index = layout_.zeroed<std::uint32_t>(index_);
    plan.thinned = layout_.zeroed<std::uint32_t>(thinned_);
    plan.slots = layout_.scratch<std::uint32_t>(slots_);
    plan.group_bits = layout_.scratch<std::uint32_t>(group_count_);
    plan.group_ends = layout_.scratch<std::uint64_t>(group_count_);
  }

  void add_job(const LayerPlan& layer, const LayerAtoms& of, std::uint32_t number, bool chooses) {
    const Scratch<double> amplitudes{amplitudes_.at + atoms_ * sizeof(double)};
    if (bodies_) add_body(layer, of, number, amplitudes);
    add_price(of, amplitudes, chooses);
    ++count_;
    atoms_ += of.layout.count;
  }

  void add_body(const LayerPlan& layer, const LayerAtoms& of, std::uint32_t number,
                Scratch<double> amplitudes) {
    AtomsJob job;
    job.layout = of.layout;
    job.layer = number;
    job.priced = price_.priced();
    job.form = of.form;
    job.part = of.part;
    const AtomLayout& atoms = job.layout;
    const GroupShape shape = GroupShape::of(atoms.length);
    const std::uint64_t groups = shape.groups(atoms.count);
    if (of.has_pairs()) {
      residual_ = pairs_.add(of, number, count_, groups, amplitudes, layer.sketch_iterations);
    }
    job.residual = residual_;
    job.pieces = static_cast<std::uint32_t>(shape.pieces);
    job.select = purpose_of(of);
    job.slot_words = slot_words(of);
    job.first_atom = atoms_;
    job.first_sum = piece_sums_;
    job.first_group = group_count_;
    job.first_slot = slots_;
    job.first_index = index_;
    job.first_thinned = thinned_;
    for (std::size_t c = 0; c < math::kAtomClassCount; ++c) {
      const double reach = coding::kAtomClasses[c].reach;
      job.escape_bits[0][c] = static_cast<std::uint8_t>(coding::escape_bits(atoms.length, reach));
      job.escape_bits[1][c] = static_cast<std::uint8_t>(coding::escape_bits(atoms.last, reach));
    }
    if (!jobs_.values.empty()) jobs_.values[count_] = job;
    const bool long_atoms = shape.pieces > 1 && !of.has_pairs();
    sums_.add(
        of.has_pairs() ? 0 : divide_up(atoms.count * shape.pieces, segments_of_unit(atoms.length)));
    trees_.add(long_atoms ? atoms.count : 0);
    chunks_.add(divide_up(atoms.count, kSelectionChunk));
    groups_.add(of.has_pairs() ? 0 : groups);
    marks_.add(number, atoms.count);
    piece_sums_ += long_atoms ? atoms.count * shape.pieces : 0;
    group_count_ += groups;
    slots_ += groups * job.slot_words;
    index_ += index_words(atoms);
    thinned_ += layer.least_limit_bytes == 0 ? 0 : index_words(atoms);
  }

  void add_price(const LayerAtoms& of, Scratch<double> amplitudes, bool chooses) {
    // What a unit of weight costs is the same for every layout of blocks and rows.
    const bool pairs = of.has_pairs();
    const PriceCosts costs = pairs ? price::pair_costs(of.pairs.view) : price_costs(of.layout);
    const auto units = pairs ? layout_.table<PriceUnits>(1) : units_;
    const auto noise = pairs && chooses ? layout_.table<PriceUnits>(1) : noise_;
    if (!units.values.empty()) units.values[0] = costs.unit;
    if (chooses && !noise.values.empty()) noise.values[0] = costs.noise;
    const auto weight = [](std::uint64_t entries) { return entries + entries % 2; };
    PriceJob price;
    price.amplitudes = amplitudes;
    price.atoms = of.layout.count;
    price.weight = pairs ? price::pair_weight(of.pairs.view) : weight(of.layout.length);
    price.last_weight = pairs ? price.weight : weight(of.layout.last);
    price.units = units.place;
    price.uncertain = costs.uncertain;
    price.certain = costs.certain;
    price.entries = costs.entries;
    price.noise = noise.place;
    price.uncertain_noise = costs.uncertain_noise;
    price.signal = costs.signal;
    price.form = of.form;
    price.part = of.part;
    price_.add(price);
  }

  Layout& layout_;
  bool bodies_;
  Layout::NewTable<AtomsJob> jobs_;
  SplitMaker sums_, trees_, chunks_, groups_;
  MarksPlanner marks_;
  PricePlanner price_;
  PairsPlanner pairs_;
  Layout::NewTable<PriceUnits> units_, noise_;
  Scratch<double> amplitudes_;
  Scratch<float> residual_;  ///< of the pairs added last
  CapPlan cap_;
  std::uint32_t count_ = 0, grids_ = 0;
  std::uint64_t atoms_ = 0, piece_sums_ = 0, group_count_ = 0, slots_ = 0, index_ = 0, thinned_ = 0;
};

void plan_atoms(std::span<const LayerPlan> layers, Layout& layout, AtomsPlan& plan,
                PlanFor purpose) {
  plan = {};
  Counts counts;
  for (const LayerPlan& layer : layers) counts.add(layer);
  if (counts.jobs == 0) return;
  Planner planner(layout, counts, purpose == PlanFor::prices ? Counts{} : counts);
  for (std::size_t i = 0; i < layers.size(); ++i)
    planner.add(layers[i], static_cast<std::uint32_t>(i));
  planner.finish(plan);
  plan_grids(layers, layout, plan.grids, purpose);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, AtomsPlan& plan) {
  plan_atoms(layers, layout, plan, PlanFor::messages);
}

void plan_prices(std::span<const LayerPlan> layers, Layout& layout, AtomsPlan& plan) {
  plan_atoms(layers, layout, plan, PlanFor::prices);
}

void analyse(const Frame& frame, const AtomsPlan& plan, Queue& queue) {
  decompose_pairs(frame, plan, queue);
  queue.launch_warps(sum_segments, plan.sums.units, frame, plan);
  queue.launch_warps(sum_trees, plan.trees.units, frame, plan);
  offer_pairs(frame, plan, queue);
  offer_grids(frame, plan.grids, plan.price, queue);
}

void search_prices(const Frame& frame, const AtomsPlan& plan, Queue& queue) {
  for (unsigned round = 0; round < kPriceRounds; ++round) {
    price_grids(frame, plan.grids, plan.price, round, queue);
    search_price(frame, plan.price, round, queue);
  }
}

void price(const Frame& frame, const AtomsPlan& plan, Queue& queue) {
  search_prices(frame, plan, queue);
  price_grids(frame, plan.grids, plan.price, kPriceRounds, queue);
  choose_forms(frame, plan.price, queue);
  settle_grids(frame, plan.grids, plan.price, queue);
}

}  // namespace atomo::cuda
