// SPDX-License-Identifier: Apache-2.0
/// The plan of dithered atoms: a job for each family of atoms that a layer can be sent as.

#include <algorithm>
#include <cmath>
#include <optional>

#include "coding/duo_code.hpp"
#include "cuda/atoms.cuh"
#include "cuda/grid_form.cuh"
#include "format/atom_body.hpp"
#include "math/selection.hpp"
#include "price/atom_costs.hpp"
#include "price/pair_costs.hpp"

namespace atomo::cuda::atoms {
namespace {

using coding::kPieceEntries;
using format::GroupShape;

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
std::uint64_t slot_words(const Job& job) {
  const GroupShape groups = GroupShape::of(job.layout.length);
  std::uint64_t of_atom = 0, of_piece = 0;  // bits
  for (unsigned v = 0; v < job.vectors.count; ++v) {
    const AtomVector& vector = job.vectors.of[v];
    std::uint64_t bits = 0;  // of two entries
    for (std::size_t c = 0; c < math::kAtomClassCount; ++c)
      bits = std::max<std::uint64_t>(
          bits, coding::max_duo_bits(vector.step[c], vector.escape_bits[0][c]));
    of_atom += coding::duos_of(vector.length) * bits;
    of_piece = std::max(of_piece, coding::duos_of(kPieceEntries) * bits);
  }
  return divide_up(groups.pieces > 1 ? of_piece : groups.atoms * of_atom, 32);
}

/// Rows that are a form of a layer that has a sketch as another.
bool is_rows_beside_sketch(const LayerPlan& layer, const LayerAtoms& of) {
  return layer.kind.method == MethodId::automatic && of.form == format::kRowsForm &&
         format::has_form(format::fields_of(layer.kind), format::kSketchForm);
}

Scratch<double> behind(Scratch<double> place, std::uint64_t count) {
  return {place.at + count * sizeof(double)};
}

/// What the plan has of everything.
struct Counts {
  std::size_t layers = 0, jobs = 0, singular = 0, sketches = 0, grids = 0;
  std::uint64_t atoms = 0;
  /// Whether there are layers of the method automatic whose atoms are drawn, or kept without a draw.
  bool choose_drawn = false, choose_nearest = false;

  void add(const LayerPlan& layer) {
    const std::size_t before = jobs;
    visit_atoms(layer, [&](const LayerAtoms& of) {
      ++jobs;
      atoms += of.layout.count;
      singular += of.has_pairs() && of.part == BodyPart::whole ? 1 : 0;
      sketches += of.part == BodyPart::pairs ? 1 : 0;
    });
    layers += jobs > before ? 1 : 0;
    grids += coordinate::has_grid(layer) ? 1 : 0;
    const bool chooses = jobs > before && layer.kind.method == MethodId::automatic;
    (layer.selection == Selection::nearest ? choose_nearest : choose_drawn) |= chooses;
  }
};

/// Adds layers one by one, in both runs of a plan. `bodies`: what is written, `counts` again, or
/// nothing in a plan of prices alone.
class AtomsPlanner {
 public:
  AtomsPlanner(Layout& layout, const Counts& counts, const Counts& bodies)
      : layout_(layout),
        bodies_(bodies.jobs > 0),
        jobs_(layout, bodies.jobs),
        sums_(layout, bodies.jobs),
        trees_(layout, bodies.jobs),
        rest_sums_(layout, bodies.jobs),
        rest_trees_(layout, bodies.jobs),
        chunks_(layout, bodies.jobs),
        offers_(layout, bodies.jobs),
        groups_(layout, bodies.jobs),
        lengths_(layout, bodies.jobs),
        marks_(layout, bodies.jobs),
        price_(layout, counts.layers, counts.jobs, counts.grids),
        units_(layout, 1),
        noise_(layout, counts.choose_drawn ? 1 : 0),
        nearest_noise_(layout, counts.choose_nearest ? 1 : 0),
        amplitudes_(layout.scratch<double>(counts.atoms)) {
    if (bodies.singular > 0) svd_.emplace(layout, bodies.singular);
    if (bodies.sketches > 0) sketches_.emplace(layout, bodies.sketches);
  }

  void add(const LayerPlan& layer, std::uint32_t number) {
    PricedLayer priced;
    priced.layer = number;
    priced.min_limit_bytes = layer.min_limit_bytes;
    priced.forms = 0;
    visit_atoms(layer, [&](const LayerAtoms& of) {
      ++priced.jobs;
      priced.forms += of.part == BodyPart::rows ? 0 : 1;
    });
    if (priced.jobs == 0) return;
    if (coordinate::has_grid(layer)) {
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
    if (priced.min_limit_bytes == 0) return;
    ++cap_.layers;
    cap_.bytes += layer.price_rule.cap_bits * static_cast<double>(layer.n) / 8;
  }

  void finish(Plan& plan) {
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
  void finish_bodies(Plan& plan) {
    plan.jobs = jobs_.table();
    plan.count = jobs_.count();
    plan.sums = sums_.split();
    plan.trees = trees_.split();
    plan.rest_sums = rest_sums_.split();
    plan.rest_trees = rest_trees_.split();
    plan.chunks = chunks_.split();
    plan.offers = offers_.split();
    plan.groups = groups_.split();
    plan.lengths = lengths_.split();
    plan.marks = marks_.finish_written();
    if (svd_) plan.svd = svd_->finish();
    if (sketches_) plan.sketches = sketches_->finish();
    plan.piece_sums = layout_.scratch<double>(piece_sums_);
    plan.states = layout_.zeroed<State>(plan.count);
    const std::uint64_t segments = plan.marks.segments.units;
    plan.segments = layout_.zeroed<Segment>(segments);
    plan.certain = layout_.scratch<std::uint64_t>(segments * kSegmentWords);
    plan.certain_rank = layout_.scratch<std::uint64_t>(segments);
    plan.kept = layout_.scratch<KeptAtom>(atoms_);
    plan.index = layout_.zeroed<std::uint32_t>(index_);
    plan.thinned = layout_.zeroed<std::uint32_t>(thinned_);
    plan.slots = layout_.scratch<std::uint32_t>(slots_);
    plan.longest_slot = longest_slot_;
    plan.group_bits = layout_.scratch<std::uint32_t>(group_count_);
    plan.group_ends = layout_.scratch<std::uint64_t>(group_count_);
  }

  void add_job(const LayerPlan& layer, const LayerAtoms& of, std::uint32_t number, bool chooses) {
    const Scratch<double> amplitudes = behind(amplitudes_, atoms_);
    if (is_rows_beside_sketch(layer, of)) row_rms_ = amplitudes;
    if (bodies_) add_body(layer, of, number, amplitudes);
    add_price(of, layer.selection, amplitudes, chooses);
    atoms_ += of.layout.count;
  }

  void add_body(const LayerPlan& layer, const LayerAtoms& of, std::uint32_t number,
                Scratch<double> amplitudes) {
    const AtomLayout& atoms = of.layout;
    const GroupShape shape = GroupShape::of(atoms.length);
    const std::uint64_t groups = shape.groups(atoms.count);
    Job job;
    job.layout = atoms;
    job.vectors = plan_vectors(of);
    job.layer = number;
    job.priced = price_.priced();
    job.form = of.form;
    job.part = of.part;
    job.learns_rank = layer.learns_rank;
    if (of.has_pairs()) decompose(layer, of, amplitudes, job);
    const bool rest = of.part == BodyPart::rows;
    if (rest) job.made[0] = residual_;
    if (rest) job.sketch = sketch_count_ - 1;
    if (is_rows_beside_sketch(layer, of)) job.sketch = sketch_count_;
    job.pieces = static_cast<std::uint32_t>(shape.pieces);
    job.select = purpose_of(of);
    job.selection = layer.selection;
    job.slot_words = slot_words(job);
    job.first_atom = atoms_;
    job.first_sum = piece_sums_;
    job.first_group = group_count_;
    job.first_slot = slots_;
    job.first_index = index_;
    job.first_thinned = thinned_;
    jobs_.add(job);
    const bool pairs = of.has_pairs(), long_atoms = shape.pieces > 1 && !pairs;
    const std::uint64_t units =
        pairs ? 0 : divide_up(atoms.count * shape.pieces, pieces_of_unit(atoms.length));
    // Rows that are a form of their own have been measured.
    const bool known = rest && layer.kind.method == MethodId::automatic;
    sums_.add(known ? 0 : units);
    trees_.add(long_atoms && !known ? atoms.count : 0);
    rest_sums_.add(rest ? units : 0);
    rest_trees_.add(long_atoms && rest ? atoms.count : 0);
    chunks_.add(divide_up(atoms.count, kSelectionChunk));
    offers_.add(pairs ? divide_up(atoms.count, kOfferedPairs) : 0);
    groups_.add(groups);
    lengths_.add(divide_up(std::max<std::uint64_t>(groups, 1), kLengthsPart));
    marks_.add(number, atoms.count);
    piece_sums_ += long_atoms ? atoms.count * shape.pieces : 0;
    group_count_ += divide_up(groups, 4) * 4;
    slots_ += groups * job.slot_words;
    longest_slot_ = std::max(longest_slot_, job.slot_words);
    index_ += index_words(atoms);
    thinned_ += layer.min_limit_bytes == 0 ? 0 : index_words(atoms);
  }

  /// Where the vectors of pairs come from, and what those of the shorter side are multiplied by.
  void decompose(const LayerPlan& layer, const LayerAtoms& of, Scratch<double> amplitudes,
                 Job& job) {
    const MatrixShape& shape = of.pairs.view;
    const double unit = price::pair_amplitude(shape);
    if (of.part == BodyPart::pairs) {
      const SketchOptions options{of.pairs.count, layer.sketch_iterations};
      SketchPlaces places;
      places.sigma = amplitudes;
      places.unit = unit;
      places.optional = layer.kind.method == MethodId::automatic;
      places.residual_rms = behind(amplitudes, of.pairs.count);  // of the job that follows
      places.row_rms = layer.kind.method == MethodId::automatic ? row_rms_ : places.residual_rms;
      const SketchJob sketch = sketches_->add(shape, options, job.layer, places);
      job.made[0] = sketch.shorter;
      job.made[1] = sketch.longer;
      job.source = sketch_count_++;
      residual_ = sketch.entries;
    } else {
      const SvdJob svd = svd_->add(shape, job.layer, amplitudes, unit);
      job.made[0] = svd.shorter;
      job.made[1] = svd.longer;
      job.source = singular_count_++;
    }
    const double root = std::sqrt(static_cast<double>(shape.shorter()));
    for (std::size_t c = 0; c < math::kAtomClassCount; ++c)
      job.first_inverse[c] =
          static_cast<float>(root / static_cast<double>(job.vectors.of[0].size[c]));
  }

  void add_price(const LayerAtoms& of, Selection selection, Scratch<double> amplitudes,
                 bool chooses) {
    const bool pairs = of.has_pairs();
    const PriceCosts costs = price::costs_of(
        selection, pairs ? price::pair_costs(of.pairs.view) : price_costs(of.layout));
    TableMaker<PriceUnits>& noise = selection == Selection::nearest ? nearest_noise_ : noise_;
    const auto weight = [](std::uint64_t entries) { return entries + entries % 2; };
    PriceJob price;
    price.amplitudes = amplitudes;
    price.atoms = of.layout.count;
    price.weight = pairs ? price::pair_weight(of.pairs.view) : weight(of.layout.length);
    price.last_weight = pairs ? price.weight : weight(of.layout.last);
    price.units = add_costs(units_, costs.unit, pairs);
    price.uncertain = costs.uncertain;
    price.certain = costs.certain;
    price.entries = costs.entries;
    price.noise = chooses ? add_costs(noise, costs.noise, pairs) : noise.table();
    price.uncertain_noise = costs.uncertain_noise;
    price.signal = costs.signal;
    price.selection = selection;
    price.form = of.form;
    price.part = of.part;
    price_.add(price);
  }

  /// What a unit of weight costs: the same for every layout of blocks and rows, a table of its own
  /// for pairs.
  Table<PriceUnits> add_costs(TableMaker<PriceUnits>& shared, const PriceUnits& costs, bool pairs) {
    TableMaker<PriceUnits> own(layout_, pairs ? 1 : 0);
    TableMaker<PriceUnits>& table = pairs ? own : shared;
    if (table.count() == 0) table.add(costs);
    return table.table();
  }

  Layout& layout_;
  bool bodies_;
  TableMaker<Job> jobs_;
  SplitMaker sums_, trees_, rest_sums_, rest_trees_, chunks_, offers_, groups_, lengths_;
  MarksPlanner marks_;
  PricePlanner price_;
  std::optional<SvdPlanner> svd_;  ///< where there are such jobs, as they take tables
  std::optional<SketchPlanner> sketches_;
  TableMaker<PriceUnits> units_, noise_, nearest_noise_;
  Scratch<double> amplitudes_;
  Scratch<float> residual_;  ///< of the sketch added last
  Scratch<double> row_rms_;  ///< of the rows of the layer, where it has a sketch beside them
  CapPlan cap_;
  std::uint32_t grids_ = 0, singular_count_ = 0, sketch_count_ = 0;
  std::uint64_t atoms_ = 0, piece_sums_ = 0, group_count_ = 0, index_ = 0, thinned_ = 0;
  std::uint64_t slots_ = 0, longest_slot_ = 0;
};

void plan_atoms(std::span<const LayerPlan> layers, Layout& layout, Plan& plan,
                coordinate::PlanFor purpose) {
  plan = {};
  Counts counts;
  for (const LayerPlan& layer : layers) counts.add(layer);
  if (counts.jobs == 0) return;
  AtomsPlanner planner(layout, counts, purpose == coordinate::PlanFor::prices ? Counts{} : counts);
  for (std::size_t i = 0; i < layers.size(); ++i)
    planner.add(layers[i], static_cast<std::uint32_t>(i));
  planner.finish(plan);
  plan_grids(layers, layout, plan.grids, purpose);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  plan_atoms(layers, layout, plan, coordinate::PlanFor::messages);
}

void plan_prices(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  plan_atoms(layers, layout, plan, coordinate::PlanFor::prices);
}

}  // namespace atomo::cuda::atoms
