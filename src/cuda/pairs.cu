// SPDX-License-Identifier: Apache-2.0
/// Amplitudes and content of pairs, singular ones and those of sketches.
///
/// Mathematics: a kept pair is sent as u sqrt(m), a vector of rms 1, and sigma v / sqrt(m), divided
/// by the probability where the pair is uncertain (pairs.hpp); both are dithered to integers, whose
/// pairs are written in the static prefix code, as the entries of other atoms are.
///
/// Mapping. Amplitudes: the decomposition (svd.cu, sketch.cu), then a warp gives 256 of them out to
/// the price search. Content: a warp a group of up to 1,024 entries, eight tiles of one vector at a
/// time (a *stretch*, whose levels share words): 4 lanes draw the levels, all lanes the
/// pre-rounding, a block each; then lane 4u + k codes pairs 4k .. 4k + 3 of tile u. They are
/// neighbours in the body, so a lane's bits are one stretch of it, placed by a scan over lanes.
///
/// Traffic in bytes an entry of a vector: 4 read, its bits written once; of m x n entries only
/// `kept` (m + n).
///
/// Shared memory: 1,632 bytes a warp. Determinism: draws are functions of their place, sums are
/// integers, bits that meet in a word are OR-ed. Alignment: vectors stand in the workspace.

#include "cuda/pairs.cuh"

#include <algorithm>

#include "core/philox.hpp"
#include "cuda/atoms.cuh"
#include "cuda/bit_window.cuh"
#include "format/atom_body.hpp"
#include "math/selection.hpp"
#include "price/pair_costs.hpp"

namespace atomo::cuda {
namespace {

using coding::kLevelTiles;
using coding::kPieceTiles;
using coding::kTile;
using coding::kTilePairs;

__host__ __device__ constexpr std::uint64_t tiles_of(std::uint64_t entries) {
  return divide_up(entries, kTile);
}

// ---- amplitudes

constexpr std::uint64_t kOffered = 256;

__global__ void offer_largest(Frame frame, AtomsPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.pairs.offers);
  if (!at) return;
  const std::uint32_t number = frame(plan.pairs.jobs)[at.job].atoms;
  const AtomsJob& job = frame(plan.jobs)[number];
  const double* const amplitudes = frame(plan.amplitudes) + job.first_atom;
  double largest = 0;
  for (std::uint64_t k = at.index * kOffered + lane();
       k < (at.index + 1) * kOffered && k < job.layout.count; k += kLanes)
    largest = amplitudes[k] > largest ? amplitudes[k] : largest;
  const std::uint64_t units = divide_up(job.layout.count, kOffered);
  offer_amplitudes(frame, plan.price, number, units, warp_max(largest));
}

// ---- content

/// Of a warp.
struct alignas(16) PairMemory {
  std::uint32_t levels[kTilePairs];                ///< of a stretch, nibble u mod 8
  std::uint32_t pre[kLevelTiles][kTilePairs + 1];  ///< of its tiles
  std::uint32_t window[kWindowWords];
};
struct PairMemories {
  PairMemory warp[kMaxWarps];
};

/// One vector of a kept pair, as it is coded.
struct Factor {
  const float* x;
  std::uint64_t pair;
  std::uint64_t entries;
  std::uint32_t step;  ///< of the ladder
  unsigned escape_bits;
  float inverse;
  bool second;
};

/// What a warp's lanes share.
struct PairContent {
  const PairsJob& job;
  const KeptAtom* kept;
  const double* amplitudes;
  float price;
  std::int32_t exponent;
  Philox dither_u, dither_v, pre_round_u, pre_round_v;
};

__device__ Factor factor_of(const Frame& frame, const PairContent& c, std::uint64_t rank,
                            bool second) {
  const KeptAtom atom = c.kept[rank];
  const std::uint64_t m = c.job.shape().shorter(), n = c.job.shape().longer();
  const format::PairStep& steps = c.job.steps[atom.atom_class];
  const double root = sqrt(static_cast<double>(m));
  if (!second) {
    const auto step = static_cast<double>(steps.shorter.size);
    return {frame(c.job.shorter) + atom.atom * m,
            atom.atom,
            m,
            steps.shorter.step,
            steps.shorter.escape_bits,
            static_cast<float>(root / step),
            false};
  }
  const float range = math::range_scale(c.price);
  const float step = (c.price * range) * steps.longer.size;
  double weight = 1;
  if (atom.atom_class == 0) {
    const double ratio = c.amplitudes[atom.atom] / static_cast<double>(c.price);
    weight = math::kTwo32 / static_cast<double>(math::probability_of_ratio(ratio));
  }
  const double unit = static_cast<double>(range) * power_of_two(c.exponent);
  return {frame(c.job.longer) + atom.atom * n,
          atom.atom,
          n,
          steps.longer.step,
          steps.longer.escape_bits,
          static_cast<float>(weight * unit / (root * static_cast<double>(step))),
          true};
}

/// By a whole warp: the draws of the eight tiles from `tile` on.
__device__ void draw_stretch(const PairContent& c, const Factor& factor, std::uint64_t tile,
                             PairMemory& memory) {
  const std::uint64_t tiles = tiles_of(factor.entries);
  if (lane() < 4) {
    const Philox& draws = factor.second ? c.dither_v : c.dither_u;
    const std::uint64_t base = factor.pair * divide_up(tiles, kLevelTiles) + tile / kLevelTiles;
    const PhiloxWords words = draws(4 * base + lane());
    for (unsigned w = 0; w < 4; ++w) memory.levels[4 * w + lane()] = words[w];
  }
  const unsigned half = lane() / kTilePairs, pair = lane() % kTilePairs;
  const Philox& draws = factor.second ? c.pre_round_v : c.pre_round_u;
  const std::uint64_t base = factor.pair * divide_up(tiles, 4) + tile / 4 + half;
  const PhiloxWords words = draws(kTilePairs * base + pair);
  for (unsigned w = 0; w < 4; ++w) memory.pre[4 * half + w][pair] = words[w];
}

/// A lane's pairs: 4k .. 4k + 3 of tile u of the stretch.
__device__ void code_pairs(const Factor& factor, std::uint64_t tile, const PairMemory& memory,
                           PairBits (&out)[4]) {
  const std::uint32_t u = lane() / 4, begin = 4 * (lane() % 4);
  const std::uint64_t at = kTile * (tile + u);
  const std::uint64_t left = at < factor.entries ? factor.entries - at : 0;
  const auto entries = static_cast<std::uint32_t>(left < kTile ? left : kTile);
  const std::uint32_t half = (entries + 1) / 2;
  const DeviceStep step = device_step(factor.step);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t l = begin + i;
    out[i] = {0, 0};
    if (l >= half) continue;
    const std::uint32_t level = memory.levels[l] >> (4 * u) & 15u, word = memory.pre[u][l];
    const float x0 = factor.x[at + l];
    const float x1 = half + l < entries ? factor.x[at + half + l] : 0.0f;
    const std::int32_t q0 =
        math::quantise<float>(x0, factor.inverse, math::EntryDraw{level, word & 0xFFFFu});
    const std::int32_t q1 = math::quantise<float>(
        x1, factor.inverse, math::EntryDraw{level ^ math::kMateLevel, word >> 16});
    out[i] = put_pair(step, factor.escape_bits, level, q0, q1);
  }
}

/// Tiles of a vector from `first` to before `end`.
__device__ void write_tiles(const PairContent& c, const Factor& factor, std::uint64_t first,
                            std::uint64_t end, PairMemory& memory, BitWindow& window) {
  for (std::uint64_t tile = first; tile < end; tile += kLevelTiles) {
    draw_stretch(c, factor, tile, memory);
    __syncwarp();
    PairBits bits[4];
    code_pairs(factor, tile, memory, bits);
    window.put(bits);
  }
}

/// Second vectors are 2^-exponent times what they stand for.
__device__ std::int32_t exponent_of(const Frame& frame, const PairsPlan& plan,
                                    const PairsJob& job) {
  return job.sketch != 0 ? sketch_exponent(frame, plan.sketches, job.source)
                         : exponent_of(frame(plan.svd.states)[job.source]);
}

__global__ void write_pairs(Frame frame, AtomsPlan plan) {
  const UnitOf at = unit_of_warp(frame, plan.pairs.groups);
  if (!at) return;
  const PairsJob& pairs = frame(plan.pairs.jobs)[at.job];
  const AtomsJob& job = frame(plan.jobs)[pairs.atoms];
  const AtomsState& state = frame(plan.states)[pairs.atoms];
  if (at.index >= state.groups) return;
  const Key key = frame.key(job.layer);
  const PairContent content{pairs,
                            frame(plan.kept) + job.first_atom,
                            frame(plan.amplitudes) + job.first_atom,
                            state.price,
                            exponent_of(frame, plan.pairs, pairs),
                            Philox(key, Purpose::dither_u),
                            Philox(key, Purpose::dither_v),
                            Philox(key, Purpose::pre_round_u),
                            Philox(key, Purpose::pre_round_v)};
  PairMemory& memory = shared<PairMemories>().warp[warp_in_block()];
  BitWindow window(memory.window, frame(plan.slots) + job.first_slot + at.index * job.slot_words);
  // A piece of one vector, or whole pairs.
  const bool cut = job.pieces > 1;
  const std::uint64_t pieces_u = divide_up(pairs.tiles_u, kPieceTiles);
  const std::uint64_t piece = at.index % job.pieces;
  const std::uint64_t members = format::GroupShape::of(job.layout.length).atoms;
  const std::uint64_t rank = cut ? at.index / job.pieces : at.index * members;
  for (std::uint64_t k = rank; k < rank + members && k < state.kept; ++k) {
    for (unsigned v = 0; v < 2; ++v) {
      const bool second = v == 1;
      if (cut && second != (piece >= pieces_u)) continue;
      const std::uint64_t tiles = second ? pairs.tiles_v : pairs.tiles_u;
      const std::uint64_t first = cut ? kPieceTiles * (second ? piece - pieces_u : piece) : 0;
      const std::uint64_t end = tiles - first < kPieceTiles ? tiles : first + kPieceTiles;
      write_tiles(content, factor_of(frame, content, k, second), first, end, memory, window);
    }
  }
  const std::uint64_t bits = window.finish();
  if (lane() == 0)
    frame(plan.group_bits)[job.first_group + at.index] = static_cast<std::uint32_t>(bits);
}

}  // namespace

PairsPlanner::PairsPlanner(Layout& layout, std::size_t singular, std::size_t sketches) noexcept
    : layout_(layout),
      jobs_(layout.table<PairsJob>(singular + sketches)),
      offers_(layout, singular + sketches),
      groups_(layout, singular + sketches) {
  if (singular > 0) svd_.emplace(layout, singular);
  if (sketches > 0) sketches_.emplace(layout, sketches);
}

Scratch<float> PairsPlanner::add(const LayerAtoms& of, std::uint32_t layer, std::uint32_t atoms_job,
                                 std::uint64_t groups, Scratch<double> amplitudes,
                                 unsigned iterations) noexcept {
  const MatrixShape& shape = of.pairs.view;
  const double unit = price::pair_amplitude(shape);
  PairsJob job;
  Scratch<float> residual;
  job.rows = shape.rows;
  job.columns = shape.columns;
  job.atoms = atoms_job;
  if (of.part == BodyPart::pairs) {
    const SketchJob sketch =
        sketches_->add(shape, {of.pairs.count, iterations}, layer, amplitudes, unit);
    job.shorter = sketch.shorter;
    job.longer = sketch.longer;
    job.sketch = 1;
    job.source = sketch_count_++;
    residual = sketch.entries;
  } else {
    const SvdJob svd = svd_->add(shape, layer, amplitudes, unit);
    job.shorter = svd.shorter;
    job.longer = svd.longer;
    job.source = singular_count_++;
  }
  job.tiles_u = static_cast<std::uint32_t>(tiles_of(shape.shorter()));
  job.tiles_v = static_cast<std::uint32_t>(tiles_of(shape.longer()));
  for (std::size_t c = 0; c < math::kAtomClassCount; ++c)
    job.steps[c] = format::pair_step(shape, c);
  if (!jobs_.values.empty()) jobs_.values[count_] = job;
  offers_.add(divide_up(of.pairs.count, kOffered));
  groups_.add(groups);
  ++count_;
  return residual;
}

PairsPlan PairsPlanner::finish() noexcept {
  return {jobs_.place, svd_ ? svd_->finish() : SvdPlan{},
          sketches_ ? sketches_->finish() : SketchPlan{}, offers_.split(), groups_.split()};
}

std::uint64_t pairs_slot_words(const LayerAtoms& of) noexcept {
  const MatrixShape& shape = of.pairs.view;
  std::uint64_t bits_u = 0, bits_v = 0;
  for (std::size_t c = 0; c < math::kAtomClassCount; ++c) {
    const format::PairStep step = format::pair_step(shape, c);
    bits_u = std::max<std::uint64_t>(
        bits_u, coding::max_pair_bits(step.shorter.step, step.shorter.escape_bits));
    bits_v = std::max<std::uint64_t>(
        bits_v, coding::max_pair_bits(step.longer.step, step.longer.escape_bits));
  }
  const auto groups = format::GroupShape::of(of.layout.length);
  if (groups.pieces == 1) {
    const std::uint64_t of_pair =
        coding::pairs_of(shape.shorter()) * bits_u + coding::pairs_of(shape.longer()) * bits_v;
    return divide_up(groups.atoms * of_pair, 32);
  }
  return divide_up(coding::kPieceEntries / 2 * std::max(bits_u, bits_v), 32);
}

void decompose_pairs(const Frame& frame, const AtomsPlan& plan, Queue& queue) {
  factorise(frame, plan.pairs.svd, queue);
  decompose(frame, plan.pairs.sketches, queue);
}

void offer_pairs(const Frame& frame, const AtomsPlan& plan, Queue& queue) {
  queue.launch_warps(offer_largest, plan.pairs.offers.units, frame, plan);
}

void write_pair_content(const Frame& frame, const AtomsPlan& plan, Queue& queue) {
  queue.launch_warps(write_pairs, plan.pairs.groups.units, frame, plan);
}

}  // namespace atomo::cuda
