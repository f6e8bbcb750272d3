// SPDX-License-Identifier: Apache-2.0
/// Decoding of dithered atoms: content, and zeros where no block or row was kept.
///
/// The mathematics. A pair (q0, q1) of the content at level j stands for the values
///     v = f32(32 q - 2 j + 15) * (step / 32),  step = (price * delta[class]) * gain,
/// j and j xor 8 (FORMAT.md, "AtomContent"); then v * (1 / range), where tiny and huge prices were
/// scaled. In a centred layer there are no levels, and v is centred_value's (centroids.hpp). y becomes v, or y + (alpha * v). The vectors of pairs are v as it is: the step of a first
/// one is its class's, and the sums of products are scaled in place of the second.
///
/// Mapping. Words have no ends that can be seen, and the code of a pair depends on its number, so a
/// strand (half of a group of 1,024 entries or little less) can only be read in order: a lane reads a
/// strand, the 32 strands of 16 groups in lockstep, a tile of 32 entries at a time, and of a tile four
/// pairs (strand_words.cuh). It leaves its tile's values in shared memory; then the warp takes the 32 tiles
/// four at a time, a lane four entries, so that stores are whole lines. A lane draws its levels once for 8
/// tiles, 4 generator calls. Zeros are written by the same launch: a warp writes those of 32,768
/// entries before it reads its groups, so blocks have like work however many atoms are kept. Rows of a sketch
/// need none: low_rank.cu writes every entry.
///
/// Traffic in bytes an entry: 4 written (8 more for adding: kept atoms alone are read and written),
/// plus the body, 0.05 to 2; nothing more is possible. Of pairs an entry is one of a vector, which
/// the sums read again. Where values are added, those of a sketch's rows and of layers that choose a form
/// are kept apart, without zeros, and forms_add.cu adds them. The index of the body: atom_body.cu.
///
/// Shared memory: 15 KiB a block, 7,168 bytes a warp (values 36 words a row, so that four of a row meet
/// no others in a bank, by rows or by columns). Determinism: every entry is written by one lane.
/// Alignment: y is aligned to its entries; bodies begin at any byte.

#include <algorithm>

#include "cuda/strand_words.cuh"

namespace atomo::cuda::atoms {
namespace {

constexpr std::uint64_t kZeroedEntries = 32768;
/// Warps of a block, at most: what static shared memory holds with room for other blocks.
constexpr unsigned kContentWarps = 4;

/// The place that a tile's values go to.
struct TileRow {
  float* y;
  std::uint32_t entries;  ///< 0 when there is no tile
};

/// A warp's tiles, one of each of its groups.
struct Tiles {
  alignas(16) float value[kLanes][kTile + 4];
  LaneLevels level;
  TileRow row[kLanes];
};
struct BlockTiles {
  ShortWords words;
  Tiles of[kContentWarps];
};

/// A tile as one lane reads it.
template <bool kCentred>
struct LaneTile {
  const LaneVector& of;
  const WordTable& table;
  std::uint64_t level;  ///< a nibble a pair, 0 where there are none
  float unrange;
  std::uint32_t half;  ///< its pairs
  float* value;        ///< behind them the offset of the vector's centroids, as it is in memory

  __device__ void read(StrandStream& strand) {
    for (std::uint32_t l = 0; l < half;) {
      const LaneDuos duos(strand, of, table, static_cast<std::uint32_t>(level), half - l);
      put(l, duos, strand.upward());
      strand.pass(duos.bits);
      level >>= 4 * duos.count;
      l += duos.count;
    }
  }

  /// The values of pairs from l on.
  __device__ void put(std::uint32_t l, const LaneDuos& duos, bool upward) const {
    std::int32_t q0[kLaneDuos], q1[kLaneDuos];
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      const std::int32_t h0 = first_of(duos.entry[k]), h1 = second_of(duos.entry[k]);
      const bool swapped = (duos.level(k) & 8u & (of.coding.level_mask + 1u)) != 0;
      q0[k] = swapped ? h1 : h0, q1[k] = swapped ? h0 : h1;
    }
    if (duos.more) {
      duos.visit_more(of, upward, [&](unsigned k, const DuoRead& pair, std::uint32_t) {
        q0[k] = pair.q0, q1[k] = pair.q1;
      });
    }
    float v0[kLaneDuos], v1[kLaneDuos];
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      if constexpr (kCentred) {
        const std::int32_t offset = __float_as_int(value[kTile]);
        v0[k] = math::centred_value(q0[k], offset, of.step) * unrange;
        v1[k] = math::centred_value(q1[k], offset, of.step) * unrange;
      } else {
        const std::uint32_t j = duos.level(k);
        v0[k] = math::dequantise<float>(q0[k], j, of.step) * unrange;
        v1[k] = math::dequantise<float>(q1[k], j ^ math::kMateDither, of.step) * unrange;
      }
    }
    if (duos.count == kLaneDuos && half == kTileDuos && l % kLaneDuos == 0) {
      *reinterpret_cast<float4*>(value + l) = make_float4(v0[0], v0[1], v0[2], v0[3]);
      *reinterpret_cast<float4*>(value + kTileDuos + l) = make_float4(v1[0], v1[1], v1[2], v1[3]);
      return;
    }
#pragma unroll
    for (unsigned k = 0; k < kLaneDuos; ++k) {
      if (k < duos.count) value[l + k] = v0[k], value[half + l + k] = v1[k];
    }
  }
};

/// The warp's tiles into the output, an entry a lane. What is added to is read for several tiles at
/// once; rows from `rows` on are empty.
__device__ void write_entries(const Tiles& tiles, std::uint32_t rows, DecodeInto into) {
  constexpr unsigned kTogether = 8;
  for (std::uint32_t first = 0; first < rows; first += kTogether) {
    float old[kTogether] = {};
    if (into.add) {
      for (unsigned k = 0; k < kTogether; ++k) {
        const TileRow row = tiles.row[first + k];
        if (lane() < row.entries) old[k] = row.y[lane()];
      }
    }
    for (unsigned k = 0; k < kTogether; ++k) {
      const TileRow row = tiles.row[first + k];
      const float v = tiles.value[first + k][lane()];
      if (lane() < row.entries) row.y[lane()] = into.add ? old[k] + (into.alpha * v) : v;
    }
  }
}

/// Likewise four entries a lane, where the tiles begin at multiples of 16 bytes.
__device__ void write_fours(const Tiles& tiles, std::uint32_t rows, DecodeInto into) {
  constexpr unsigned kLanesOfRow = kTile / 4, kRows = kLanes / kLanesOfRow, kTogether = 4;
  const std::uint32_t entry = 4 * (lane() % kLanesOfRow);
  for (std::uint32_t first = 0; first < rows; first += kTogether * kRows) {
    float4 old[kTogether] = {};
    const std::uint32_t own = first + lane() / kLanesOfRow;
    if (into.add) {
      for (unsigned k = 0; k < kTogether; ++k) {
        const TileRow row = tiles.row[own + k * kRows];
        if (entry + 4 <= row.entries) old[k] = *reinterpret_cast<const float4*>(row.y + entry);
      }
    }
    for (unsigned k = 0; k < kTogether; ++k) {
      const TileRow row = tiles.row[own + k * kRows];
      const float* const values = tiles.value[own + k * kRows] + entry;
      float4 v = *reinterpret_cast<const float4*>(values);
      if (entry + 4 <= row.entries) {
        if (into.add) {
          v.x = old[k].x + (into.alpha * v.x), v.y = old[k].y + (into.alpha * v.y);
          v.z = old[k].z + (into.alpha * v.z), v.w = old[k].w + (into.alpha * v.w);
        }
        *reinterpret_cast<float4*>(row.y + entry) = v;
      } else {
#pragma unroll 1
        for (std::uint32_t i = entry; i < row.entries; ++i) {
          const float one = values[i - entry];
          row.y[i] = into.add ? row.y[i] + (into.alpha * one) : one;
        }
      }
    }
  }
}

/// A lane's tile: its levels where they begin, its values.
__device__ void read_tile(const AtomContent& c, const LaneVector& vector, const WordTable& table,
                          const StrandWalk& walk, std::uint32_t entries, StrandStream& strand,
                          Tiles& tiles) {
  float* const value = tiles.value[lane()];
  const AtomVector& of = c.job.vectors.of[walk.vector];
  const std::uint32_t half = (entries + 1) / 2;
  const std::uint64_t level = levels_of(c, of, vector.atom, walk, tiles.level);
  if (c.centred) {
    LaneTile<true>{vector, table, level, c.unrange, half, value}.read(strand);
  } else {
    LaneTile<false>{vector, table, level, c.unrange, half, value}.read(strand);
  }
  // The vectors of pairs end with zeros.
#pragma unroll 1
  for (std::uint32_t i = entries; i < kTile; ++i) value[i] = 0;
}

/// Where the values of a vector go.
__device__ float* output_of(const AtomContent& c, const LaneVector& vector, const StrandWalk& walk,
                            DecodeInto into, std::uint32_t slot) {
  const std::uint64_t length = c.job.vectors.of[walk.vector].length;
  if (c.job.has_pairs())
    return c.job.vectors_to(c.frame, walk.vector, slot) + walk.rank * vector_stride(length);
  return c.job.output(c.frame, into, slot) + vector.atom * length;
}

/// The groups of a unit, `rows` strands: `own` is that of this lane. True when they meet.
__device__ bool decode_groups(const AtomContent& c, const BodyBytes& body, const UnitStrand& own,
                              std::uint32_t rows, DecodeInto into_call, std::uint32_t slot,
                              BlockTiles& block) {
  const DecodeInto into = c.job.mode(into_call);
  Tiles& tiles = block.of[warp_in_block()];
  StrandStream strand(body, own);
  StrandWalk walk(c, own.group, own.upward);
  LaneVector vector;
  WordTable table;
  float* to = nullptr;
  const std::uint32_t strand_tiles = c.job.strand_tiles;
  const bool has_pairs = c.job.has_pairs();
  for (std::uint32_t s = 0; s < strand_tiles; ++s) {
    std::uint32_t entries = 0;
    const std::uint64_t from = std::uint64_t{walk.tile} * kTile;
    if (walk.left != 0) {
      if (walk.begins) {
        vector = load_vector(c, walk.rank, walk.vector);
        tiles.value[lane()][kTile] = __int_as_float(offset_of(
            c, static_cast<std::uint32_t>(c.kept[walk.rank] >> kClassShift), walk.vector));
        table = WordTable(vector.coding, block.words);
        to = output_of(c, vector, walk, into_call, slot);
      }
      const std::uint64_t behind = from < vector.entries ? vector.entries - from : 0;
      entries = static_cast<std::uint32_t>(behind < kTile ? behind : kTile);
    }
    if (entries != 0) read_tile(c, vector, table, walk, entries, strand, tiles);
    float* const y = entries != 0 ? to + from : nullptr;
    tiles.row[lane()] = {y, entries != 0 && has_pairs ? kTile : entries};
    __syncwarp();
    if (__all_sync(kAllLanes, reinterpret_cast<std::uintptr_t>(y) % 16 == 0) != 0) {
      write_fours(tiles, rows, into);
    } else {
      write_entries(tiles, rows, into);
    }
    __syncwarp();
    if (walk.left != 0) walk.go_on(c.job.vectors);
  }
  const std::uint32_t bit = own.upward ? strand.passed() : own.length - strand.passed();
  return bit == __shfl_xor_sync(kAllLanes, bit, 1);
}

__device__ void decode_unit(const Frame& frame, const DecodePlan& plan, std::uint64_t unit,
                            DecodeInto into, std::uint32_t slot, bool several, BlockTiles& block) {
  const UnitOf at = find_unit(frame, plan.bodies.groups, unit);
  const BodyState& state = frame(plan.bodies.states)[at.job];
  const std::uint64_t first = at.index * kUnitGroups;
  if (state.stands == 0 || first >= state.groups) return;
  const DecodeJob& job = frame(plan.jobs)[at.job];
  if (several && job.together != 0) return;
  const BodyJob& body_job = frame(plan.bodies.jobs)[at.job];
  const BodyBytes body = body_of(frame, body_job);
  const AtomContent content = content_of(frame, plan, at.job);
  if (job.has_pairs() && at.index == 0 && lane() == 0) {
    const float range = math::range_scale(frame.layer(job.layer).price);
    frame(plan.outer.states)[job.outer] = {state.kept, 1.0 / static_cast<double>(range)};
  }
  const UnitStrand own = strand_of_lane(frame, plan.bodies, at, body, state);
  const std::uint64_t left = state.groups - first, groups = left < kUnitGroups ? left : kUnitGroups;
  if (!decode_groups(content, body, own, static_cast<std::uint32_t>(2 * groups), into, slot, block))
    frame.refuse(job.layer, Status::corrupt);
}

/// Zeros for the entries of a unit whose atoms are not kept.
__device__ void fill_unit(const Frame& frame, const DecodePlan& plan, std::uint64_t unit) {
  const UnitOf at = find_unit(frame, plan.fill, unit);
  const DecodeJob& job = frame(plan.jobs)[at.job];
  const BodyJob& body_job = frame(plan.bodies.jobs)[at.job];
  if (!decodes(frame, body_job)) return;
  const bool no_bytes = frame.layer(job.layer).bytes == 0;
  // Of a sketch that has bytes every entry is written a launch later, with its pairs.
  if (body_job.part == BodyPart::rows && !no_bytes) return;
  const bool empty = no_bytes || body_of(frame, body_job).bytes == 0;
  if (!empty && frame(plan.bodies.states)[at.job].stands == 0) return;
  float* const y = frame.layer(job.layer).y;
  const std::uint64_t* const words = segment_words(frame, plan.bodies.marks, {at.job, 0});
  const std::uint64_t n = frame.info(job.layer).n, length = job.vectors.of[0].length;
  std::uint64_t begin = at.index * kZeroedEntries, atom = begin / length;
  const std::uint64_t end = n - begin < kZeroedEntries ? n : begin + kZeroedEntries;
  for (; begin < end; ++atom) {
    const std::uint64_t next = (atom + 1) * length, stop = next < end ? next : end;
    if (((words[atom / 64] >> (atom % 64)) & 1u) == 0) {
      for (std::uint64_t i = begin + lane(); i < stop; i += kLanes) y[i] = 0;
    }
    begin = stop;
  }
}

/// Of several messages, `first` and those that follow, layers that are decoded together are done.
__global__ void __launch_bounds__(kContentWarps* kLanes)
    decode_and_fill(const Frames frames, const DecodePlan plan, const DecodeInto into,
                    const std::uint32_t first) {
  const Frame frame = frames[first + blockIdx.y];
  const std::uint64_t unit = warp_in_grid();
  auto& block = shared<BlockTiles>();
  load_short_words(block.words);
  if (unit < plan.fill.units && !into.add) fill_unit(frame, plan, unit);
  __syncthreads();
  if (unit < plan.bodies.groups.units)
    decode_unit(frame, plan, unit, into, blockIdx.y, is_several(frames, into), block);
}

/// What the plan has of everything.
struct Counts {
  std::size_t jobs = 0, pairs = 0, apart = 0;

  void add(const LayerPlan& layer) {
    visit_atoms(layer, [&](const LayerAtoms& of) {
      ++jobs;
      pairs += of.has_pairs() ? 1 : 0;
    });
    apart += keeps_apart(layer) ? 1 : 0;
  }
};

/// A layer whose values are kept apart, without what its atoms say.
FormsJob forms_job(const LayerPlan& layer, std::uint32_t number) {
  FormsJob job;
  job.n = layer.n;
  job.layer = number;
  job.chooses = layer.kind.method == MethodId::automatic ? 1 : 0;
  const bool matrix = format::is_matrix(layer.kind.shape);
  const MatrixShape view =
      matrix
          ? format::matrix_view(layer.kind.shape)
          : MatrixShape{static_cast<std::size_t>(divide_up(layer.n, kVectorStride)), kVectorStride};
  job.rows = view.rows;
  job.columns = view.columns;
  return job;
}

/// Adds bodies one by one, in both runs of a plan.
class AtomsDecodePlanner {
 public:
  AtomsDecodePlanner(Layout& layout, const Counts& counts)
      : bodies_(layout, counts.jobs),
        jobs_(layout, counts.jobs),
        fill_(layout, counts.jobs),
        outer_(layout, counts.pairs, kMessagesOfTurn),
        chunks_(layout, counts.jobs),
        forms_(layout, counts.apart),
        forms_squares_(layout, counts.apart),
        layout_(layout) {}

  void add(const LayerPlan& layer, std::uint32_t number) {
    FormsJob forms = forms_job(layer, number);
    visit_atoms(layer, [&](const LayerAtoms& of) { add(of, number, layer.n, forms); });
    if (!keeps_apart(layer)) return;
    forms_.add(forms);
    forms_squares_.add(outer_tiles({forms.rows, forms.columns}));
  }

  void finish(DecodePlan& plan) {
    plan = {bodies_.finish(),
            jobs_.table(),
            fill_.split(),
            turns_,
            outer_.finish(),
            forms_.table(),
            forms_squares_.split(),
            chunks_.split(),
            {layout_.call_scratch<std::uint16_t>(duos_ * kDecodedTogether),
             layout_.call_scratch<std::uint64_t>(tiles_ * kDecodedTogether), duos_, tiles_}};
  }

 private:
  /// Atoms of a layer.
  void add(const LayerAtoms& of, std::uint32_t layer, std::uint64_t n, FormsJob& forms) {
    const auto groups = format::GroupShape::of(of.layout.length);
    const auto in_group = static_cast<std::uint32_t>(groups.atoms);
    const bool thins = of.part != BodyPart::whole || !of.has_pairs();
    bodies_.add({of.layout.count, 0, layer, in_group, static_cast<std::uint32_t>(groups.pieces),
                 thins ? 1u : 0u, of.form, of.part});
    DecodeJob job;
    job.vectors = plan_vectors(of);
    job.layer = layer;
    const std::uint32_t tiles = job.vectors.tiles();
    job.strand_tiles =
        groups.atoms > 1 ? (in_group + 1) / 2 * tiles
                         : groups.upward_tiles(0, groups.pieces > 1 ? coding::kPieceTiles : tiles);
    const bool whole = of.part == BodyPart::whole;
    job.apart = !of.has_pairs() && (!whole || forms.chooses != 0) ? 1 : 0;
    if (of.has_pairs()) add_outer(of, job);
    if (of.part == BodyPart::pairs) forms.sketch = of.form, forms.outer = job.outer;
    if (job.apart != 0) {
      forms.jobs[of.form] = jobs_.count();
      if (of.layout.family == format::Family::rows) forms.row_length = of.layout.length;
    }
    const bool together = !of.has_pairs() && job.apart == 0;
    std::uint64_t chunks = 0;
    if (together) {
      const AtomVector& vector = job.vectors.of[0];
      job.together = 1;
      job.first_duo = duos_;
      job.first_tile = tiles_;
      duos_ += (vector.duos() * of.layout.count + 31) / 32 * 32;
      tiles_ += vector.tiles * of.layout.count;
      chunks = vector.chunks() * of.layout.count;
    } else {
      turns_ = true;
    }
    chunks_.add(divide_up(chunks, kChunksOfUnit));
    jobs_.add(job);
    fill_.add(of.has_pairs() ? 0 : divide_up(n, kZeroedEntries));
  }

  void add_outer(const LayerAtoms& of, DecodeJob& job) {
    OuterJob sum;
    sum.layer = job.layer;
    sum.dithered = 1;
    sum.form = of.form;
    sum.rows_body = jobs_.count() + 1;  // the atoms behind the pairs
    job.outer = outer_.count();
    sum = outer_.add(of.pairs, sum, of.part == BodyPart::pairs);
    job.to[0] = sum.shorter;
    job.to[1] = sum.longer;
  }

  BodyPlanner bodies_;
  TableMaker<DecodeJob> jobs_;
  SplitMaker fill_;
  OuterPlanner outer_;
  SplitMaker chunks_;
  TableMaker<FormsJob> forms_;
  SplitMaker forms_squares_;
  Layout& layout_;
  std::uint64_t duos_ = 0, tiles_ = 0;
  bool turns_ = false;
};

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan) {
  plan = {};
  Counts counts;
  for (const LayerPlan& layer : layers) counts.add(layer);
  if (counts.jobs == 0) return;
  AtomsDecodePlanner planner(layout, counts);
  for (std::uint32_t i = 0; i < layers.size(); ++i) planner.add(layers[i], i);
  planner.finish(plan);
}

void decode(const Frames& frames, const DecodePlan& plan, DecodeInto into, Queue& queue) {
  open_bodies(frames, plan.bodies, queue);
  if (is_several(frames, into)) decode_together(frames, plan, into, queue);
}

void decode_in_turn(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
                    DecodeInto into, Queue& queue) {
  const std::uint64_t units = std::max(plan.bodies.groups.units, into.add ? 0 : plan.fill.units);
  const unsigned warps = std::min(warps_per_block, kContentWarps);
  queue.launch_blocks_each(decode_and_fill, divide_up(units, warps), turn.count, warps * kLanes, 0,
                           frames, plan, into, turn.first);
  sum_outer_products(frames, turn, plan.outer, into, queue);
  if (!into.add) put_low_rank(frames[turn.first], plan, queue);
}

}  // namespace atomo::cuda::atoms
