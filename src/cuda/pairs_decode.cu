// SPDX-License-Identifier: Apache-2.0
/// Decoding of pairs: the factors of a body into the workspace; outer_products.cu and low_rank.cu
/// sum them up.
///
/// The mathematics. Dithered factors are vectors of pairs (q0, q1) of the pair code at levels of
/// their own, v = f32(32 q - 2 j + 15) * (step / 32), as atoms are (atoms_decode.cu); the step of
/// the first factor is its class's, that of the second ((price * range) * its class's) * gain.
/// Factors of the f32 kind stand in the body as they are.
///
/// Mapping. A group of dithered factors (1,024 entries at most) is read front to back by a lane,
/// the 32 groups of a warp in lockstep, a tile of 32 entries at a time; a lane leaves its tile in
/// shared memory, then the warp writes the 32 tiles one after the other, a lane an entry. f32
/// factors are copied by a warp for 1,024 entries of a vector. Both are units of one launch.
///
/// Traffic in bytes an entry of a factor: the body's (0.05 to 4) read, 4 written, which the sums
/// read again: for a layer of m pairs of m + n entries, where the result has m n entries and the
/// sums take `kept` times as many products, it hides behind them.
///
/// Shared memory: 6,656 bytes a warp (values 33 words a row and levels 17, so that neither rows nor
/// columns meet in a bank). Determinism: every entry is written by one lane. Alignment: bodies
/// begin at any byte.

#include "cuda/pairs_decode.cuh"

#include <algorithm>
#include <bit>

#include "core/philox.hpp"
#include "cuda/entries.cuh"
#include "cuda/pair_code.cuh"
#include "format/atom_body.hpp"
#include "format/factors_body.hpp"
#include "format/matrix.hpp"

namespace atomo::cuda {
namespace {

using coding::kPieceEntries;
using coding::kTile;

/// Warps of a block, at most: what static shared memory holds with room for other blocks.
constexpr unsigned kContentWarps = 4;

__host__ __device__ constexpr std::uint64_t pieces_of(std::uint64_t entries) {
  return divide_up(entries, kPieceEntries);
}
__host__ __device__ constexpr std::uint64_t tiles_of(std::uint64_t entries) {
  return divide_up(entries, kTile);
}

// ---- dithered factors

/// A warp's tiles, one of each of its groups.
struct FactorTiles {
  float value[kLanes][kTile + 1];
  std::uint32_t level[kLanes][coding::kTilePairs + 1];  ///< of 8 tiles, nibble u mod 8
  float* to[kLanes];                                    ///< null when there is no tile
};
struct BlockFactorTiles {
  FactorTiles of[kContentWarps];
};

/// What a warp's lanes share.
struct FactorContent {
  const PairsDecodeJob& job;
  const BodyJob& body_job;
  const std::uint64_t* kept;
  std::uint64_t kept_count;
  MatrixShape shape;
  float* shorter;
  float* longer;
  float scaled;  ///< price * range
  float gain;    ///< of the second factors' steps
  Philox draws_u, draws_v;
};

/// The tile that a lane reads next.
struct FactorTile {
  std::uint64_t rank = 0;
  std::uint64_t tile = 0;  ///< of its vector
  bool second = false;     ///< of the second factor
};

/// Tile s of a group.
__device__ FactorTile tile_of(const FactorContent& c, std::uint64_t group, std::uint32_t s) {
  const std::uint64_t m = c.shape.shorter(), n = c.shape.longer();
  if (c.body_job.group_pieces > 1) {
    const std::uint64_t piece = group % c.body_job.group_pieces, first = pieces_of(m);
    const bool second = piece >= first;
    return {group / c.body_job.group_pieces,
            (second ? piece - first : piece) * coding::kPieceTiles + s, second};
  }
  const auto tiles_u = static_cast<std::uint32_t>(tiles_of(m));
  const std::uint32_t each = tiles_u + static_cast<std::uint32_t>(tiles_of(n));
  const std::uint32_t member = s / each, tile = s % each;
  const bool second = tile >= tiles_u;
  return {group * c.body_job.group_atoms + member, second ? tile - tiles_u : tile, second};
}

/// The levels of 8 tiles, a nibble each: word l / 4 at index 4 `base` + l mod 4 for pair l.
__device__ void draw_levels(const Philox& draws, std::uint64_t base, std::uint32_t* level) {
  for (unsigned i = 0; i < 4; ++i) {
    const PhiloxWords words = draws(4 * base + i);
    for (unsigned w = 0; w < 4; ++w) level[4 * w + i] = words[w];
  }
}

/// Reads a tile of a kept pair from `bit` on; returns the bit behind it.
__device__ std::uint32_t read_tile(const FactorContent& c, const FactorTile& at,
                                   std::uint64_t entries, const BitView& bits, std::uint32_t bit,
                                   std::uint32_t* level, float* value) {
  const std::uint64_t entry = c.kept[at.rank];
  const std::uint64_t pair = entry & ((std::uint64_t{1} << kClassShift) - 1);
  const format::PairStep& step_of = c.job.steps[entry >> kClassShift];
  const format::FactorStep& coding = at.second ? step_of.longer : step_of.shorter;
  const DeviceStep code = device_step(coding.step);
  const float step = at.second ? (c.scaled * coding.size) * c.gain : coding.size;
  if (at.tile % coding::kLevelTiles == 0) {
    const std::uint64_t stretches = divide_up(tiles_of(entries), coding::kLevelTiles);
    draw_levels(at.second ? c.draws_v : c.draws_u, pair * stretches + at.tile / coding::kLevelTiles,
                level);
  }
  const std::uint64_t left = entries - at.tile * kTile;
  const std::uint32_t half = (static_cast<std::uint32_t>(left < kTile ? left : kTile) + 1) / 2;
  const auto shift = static_cast<unsigned>(4 * (at.tile % coding::kLevelTiles));
  for (std::uint32_t l = 0; l < half; ++l) {
    const std::uint32_t j = (level[l] >> shift) & 15u;
    const PairRead read = get_pair(code, coding.escape_bits, j, bits.peek64(bit));
    value[l] = math::dequantise<float>(read.q0, j, step);
    value[half + l] = math::dequantise<float>(read.q1, j ^ math::kMateLevel, step);
    bit += read.count;
  }
  // The second of the last pair is none where their count is odd; the vector ends with zeros.
  for (auto i = static_cast<std::uint32_t>(left); i < kTile; ++i) value[i] = 0;
  return bit;
}

/// The groups of a warp: `group` is this lane's, `there` whether it is one. True when it ends where
/// its length says.
__device__ bool decode_groups(const FactorContent& c, const BitView& bits, std::uint64_t group,
                              bool there, std::uint32_t length, FactorTiles& tiles) {
  std::uint32_t bit = 0;
  for (std::uint32_t s = 0; s < c.job.group_tiles; ++s) {
    const FactorTile at = tile_of(c, group, s);
    const std::uint64_t entries = at.second ? c.shape.longer() : c.shape.shorter();
    const std::uint64_t stride = vector_stride(entries);
    float* to = nullptr;
    if (there && at.rank < c.kept_count && at.tile < tiles_of(entries)) {
      bit = read_tile(c, at, entries, bits, bit, tiles.level[lane()], tiles.value[lane()]);
      to = (at.second ? c.longer : c.shorter) + at.rank * stride + at.tile * kTile;
    }
    tiles.to[lane()] = to;
    __syncwarp();
    for (unsigned k = 0; k < kLanes; ++k) {
      if (tiles.to[k] != nullptr) tiles.to[k][lane()] = tiles.value[k][lane()];
    }
    __syncwarp();
  }
  return !there || bit == length;
}

__device__ void read_pairs(const Frame& frame, const PairsDecodePlan& plan, std::uint64_t unit) {
  const UnitOf at = find_unit(frame, plan.bodies.groups, unit);
  const BodyState& state = frame(plan.bodies.states)[at.job];
  const std::uint64_t first = at.index * kUnitGroups, group = first + lane();
  if (state.stands == 0 || first >= state.groups) return;
  const PairsDecodeJob& job = frame(plan.pairs)[at.job];
  const BodyJob& body_job = frame(plan.bodies.jobs)[at.job];
  const OuterJob& outer = frame(plan.outer)[job.outer];
  const LayerState& layer = frame.layer(job.layer);
  const BodyBytes body = body_of(frame, body_job);
  const float range = math::range_scale(layer.price);
  const Key key = frame.key(job.layer);
  const FactorContent content{job,
                              body_job,
                              frame(plan.bodies.kept) + body_job.first_kept,
                              state.kept,
                              outer.shape(),
                              frame(outer.shorter),
                              frame(outer.longer),
                              layer.price * range,
                              state.gain,
                              Philox(key, Purpose::dither_u),
                              Philox(key, Purpose::dither_v)};
  if (at.index == 0 && lane() == 0)
    frame(plan.states)[job.outer] = {state.kept, 1.0 / static_cast<double>(range)};
  const std::uint32_t length = group_bits(body, state, group);
  std::uint32_t total;
  const std::uint64_t start =
      8 * state.content + frame(plan.bodies.unit_bits)[unit] + warp_exclusive_sum(length, total);
  const BitView bits = BitView(body.begin, body.bytes).from(start);
  if (!decode_groups(content, bits, group, group < state.groups, length,
                     shared<BlockFactorTiles>().of[warp_in_block()]))
    frame.refuse(job.layer, Status::corrupt);
}

// ---- f32 factors

/// 2^exponent, a normal f64.
__device__ double power_of_two(std::int32_t exponent) {
  return __longlong_as_double(static_cast<long long>(1023 + exponent) << 52);
}

/// By a whole warp: up to 1,024 f32 of a body, of which some may not be there. False when one is
/// not finite.
template <typename Put>
__device__ bool read_values(const std::byte* from, std::uint64_t count, std::uint64_t room,
                            Put put) {
  bool finite = true;
  for (std::uint64_t i = lane(); i < room; i += kLanes) {
    const float v = i < count ? __uint_as_float(load_word(from + 4 * i)) : 0.0f;
    finite = finite && is_finite(v);
    put(i, v);
  }
  return finite;
}

/// A tensor that is no matrix.
__device__ bool read_raw(const LayerState& layer, const std::byte* body, std::uint64_t n,
                         std::uint64_t piece, DecodeInto into) {
  if (layer.bytes != 4 * n) return false;
  const std::uint64_t first = piece * kPieceEntries;
  const std::uint64_t count = n - first < kPieceEntries ? n - first : kPieceEntries;
  return read_values(body + 4 * first, count, count,
                     [&](std::uint64_t i, float v) { put(layer.y + first + i, v, into); });
}

/// A piece of the vectors of a body that is not empty.
__device__ bool read_vector(const Frame& frame, const LayerState& layer, const std::byte* body,
                            const OuterJob& outer, OuterState& state, std::uint64_t piece) {
  const std::uint64_t m = outer.shape().shorter(), n = outer.shape().longer();
  if (layer.bytes < format::kFactorsHeadBytes) return false;
  const std::uint64_t kept = load_word(body);
  const auto exponent = static_cast<std::int32_t>(load_word(body + 4));
  if (kept == 0 || kept > m || layer.bytes != format::kFactorsHeadBytes + 4 * kept * (m + n))
    return false;
  if (exponent < -format::kMaxFactorsExponent || exponent > format::kMaxFactorsExponent)
    return false;
  if (piece == 0 && lane() == 0) state = {kept, power_of_two(exponent)};
  const std::uint64_t of_pair = pieces_of(m) + pieces_of(n), rank = piece / of_pair;
  if (rank >= kept) return true;
  const bool second = piece % of_pair >= pieces_of(m);
  const std::uint64_t entries = second ? n : m;
  const std::uint64_t first =
      kPieceEntries * (second ? piece % of_pair - pieces_of(m) : piece % of_pair);
  const std::uint64_t before = second ? kept * m + rank * n : rank * m;
  const std::uint64_t stride = vector_stride(entries);
  const std::uint64_t room = stride - first < kPieceEntries ? stride - first : kPieceEntries;
  float* const to = frame(second ? outer.longer : outer.shorter) + rank * stride + first;
  return read_values(body + format::kFactorsHeadBytes + 4 * (before + first),
                     entries - first < room ? entries - first : room, room,
                     [&](std::uint64_t i, float v) { to[i] = v; });
}

__device__ void read_factors(const Frame& frame, const PairsDecodePlan& plan, std::uint64_t unit,
                             DecodeInto into) {
  const UnitOf at = find_unit(frame, plan.pieces, unit);
  const FactorsDecodeJob& job = frame(plan.factors)[at.job];
  const LayerState& layer = frame.layer(job.layer);
  if (layer.decodes == 0 || (job.matrix != 0 && layer.bytes == 0)) return;
  const std::byte* const body = frame.message + layer.body_at;
  const bool good = job.matrix == 0 ? read_raw(layer, body, frame.info(job.layer).n, at.index, into)
                                    : read_vector(frame, layer, body, frame(plan.outer)[job.outer],
                                                  frame(plan.states)[job.outer], at.index);
  if (!good) frame.refuse(job.layer, Status::corrupt);
}

__global__ void read_bodies(Frame frame, PairsDecodePlan plan, DecodeInto into) {
  const std::uint64_t unit = warp_in_grid(), groups = plan.bodies.groups.units;
  if (unit < groups) {
    read_pairs(frame, plan, unit);
  } else if (unit - groups < plan.pieces.units) {
    read_factors(frame, plan, unit - groups, into);
  }
}

// ---- plan

bool is_factors(const LayerPlan& layer) {
  return layer.kind.method == MethodId::factors && layer.n > 0;
}

/// Adds layers one by one, in both runs of a plan.
class Planner {
 public:
  Planner(Layout& layout, std::size_t dithered, std::size_t factors, std::size_t outer,
          Scratch<float> rest)
      : layout_(layout),
        bodies_(layout, dithered),
        pairs_(layout.table<PairsDecodeJob>(dithered)),
        factors_(layout.table<FactorsDecodeJob>(factors)),
        pieces_(layout, factors),
        outer_(layout.table<OuterJob>(outer)),
        tiles_(layout, outer),
        sketch_squares_(layout, outer),
        rest_(rest) {}

  void add_pairs(const LayerAtoms& of, std::uint32_t number) {
    const MatrixShape& shape = of.pairs.view;
    const auto groups = format::GroupShape::of(of.layout.length);
    const bool sketch = of.part == BodyPart::pairs;
    const auto in_group = static_cast<std::uint32_t>(groups.atoms);
    const auto tiles =
        static_cast<std::uint32_t>(tiles_of(shape.shorter()) + tiles_of(shape.longer()));
    bodies_.add({of.pairs.count, 0, number, in_group, static_cast<std::uint32_t>(groups.pieces),
                 sketch ? 1u : 0u, of.form, of.part});
    if (!pairs_.values.empty()) {
      PairsDecodeJob& job = pairs_.values[pair_jobs_];
      job = {number, outer_jobs_, groups.pieces > 1 ? coding::kPieceTiles : in_group * tiles, {}};
      for (std::size_t c = 0; c < math::kAtomClassCount; ++c)
        job.steps[c] = format::pair_step(shape, c);
    }
    ++pair_jobs_;
    add_outer(of.pairs, {{}, {}, rest_, shape.rows, shape.columns, number, 1, of.form}, sketch);
    if (sketch) rest_.at += shape.rows * shape.columns * sizeof(float);
  }

  void add_factors(const LayerPlan& layer, std::uint32_t number) {
    const bool matrix = format::is_matrix(layer.kind.shape);
    if (!factors_.values.empty())
      factors_.values[factor_jobs_] = {number, outer_jobs_, matrix ? 1u : 0u};
    ++factor_jobs_;
    if (!matrix) return pieces_.add(pieces_of(layer.n));
    const MatrixShape shape = format::matrix_view(layer.kind.shape);
    pieces_.add(shape.shorter() * (pieces_of(shape.shorter()) + pieces_of(shape.longer())));
    add_outer(format::PairLayer::all_of(shape),
              {{}, {}, {}, shape.rows, shape.columns, number, 0, 0}, false);
  }

  void finish(PairsDecodePlan& plan) {
    plan = {bodies_.finish(),
            pairs_.place,
            factors_.place,
            pieces_.split(),
            outer_.place,
            tiles_.split(),
            sketch_squares_.split(),
            layout_.zeroed<OuterState>(outer_jobs_)};
  }

 private:
  /// `job` without its vectors.
  void add_outer(const format::PairLayer& pairs, OuterJob job, bool sketch) {
    const MatrixShape& shape = pairs.view;
    job.shorter = layout_.scratch<float>(pairs.count * vector_stride(shape.shorter()));
    job.longer = layout_.scratch<float>(pairs.count * vector_stride(shape.longer()));
    if (!outer_.values.empty()) outer_.values[outer_jobs_] = job;
    ++outer_jobs_;
    tiles_.add(sketch ? 0 : outer_tiles(shape));
    sketch_squares_.add(sketch ? outer_tiles(shape) : 0);
  }

  Layout& layout_;
  BodyPlanner bodies_;
  Layout::NewTable<PairsDecodeJob> pairs_;
  Layout::NewTable<FactorsDecodeJob> factors_;
  SplitMaker pieces_;
  Layout::NewTable<OuterJob> outer_;
  SplitMaker tiles_, sketch_squares_;
  Scratch<float> rest_;  ///< of the next sketch
  std::uint32_t pair_jobs_ = 0, factor_jobs_ = 0, outer_jobs_ = 0;
};

}  // namespace

void plan_pairs(std::span<const LayerPlan> layers, Layout& layout, Scratch<float> rest,
                PairsDecodePlan& plan) {
  plan = {};
  std::size_t dithered = 0, factors = 0, matrices = 0;
  for (const LayerPlan& layer : layers) {
    visit_atoms(layer, [&](const LayerAtoms& of) { dithered += of.has_pairs() ? 1 : 0; });
    factors += is_factors(layer) ? 1 : 0;
    matrices += is_factors(layer) && format::is_matrix(layer.kind.shape) ? 1 : 0;
  }
  if (dithered + factors == 0) return;
  Planner planner(layout, dithered, factors, dithered + matrices, rest);
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    visit_atoms(layers[i], [&](const LayerAtoms& of) {
      if (of.has_pairs()) planner.add_pairs(of, i);
    });
    if (is_factors(layers[i])) planner.add_factors(layers[i], i);
  }
  planner.finish(plan);
}

void decode_pairs(const Frame& frame, const PairsDecodePlan& plan, DecodeInto into, Queue& queue) {
  open_bodies(frame, plan.bodies, queue);
  const std::uint64_t units = plan.bodies.groups.units + plan.pieces.units;
  const unsigned warps = std::min(warps_per_block, kContentWarps);
  queue.launch_blocks(read_bodies, divide_up(units, warps), warps * kLanes, 0, frame, plan, into);
  sum_outer_products(frame, plan, into, queue);
  add_low_rank(frame, plan, into, queue);
}

}  // namespace atomo::cuda
