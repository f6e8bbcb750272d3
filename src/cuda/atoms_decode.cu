// SPDX-License-Identifier: Apache-2.0
/// Decoding of dithered atoms: content, and zeros where no block or row was kept.
///
/// The mathematics. A pair (q0, q1) of the content at level j stands for the values
///     v = f32(32 q - 2 j + 15) * (step / 32),  step = (price * delta[class]) * gain,
/// j and j xor 8 (FORMAT.md, "AtomContent"); then v * (1 / range), where tiny and huge prices were
/// scaled. y becomes v, or y + (alpha * v). The vectors of pairs are v as it is: the step of a first
/// one is its class's, and the sums of products are scaled in place of the second.
///
/// Mapping. Words have no ends that can be seen, and the code of a pair depends on its number, so a
/// strand (half of a group of 1,024 entries or little less) can only be read in order: a lane reads a
/// strand, the 32 strands of 16 groups in lockstep, a tile of 32 entries at a time. A window has the
/// first bit of what is left of a strand highest, whatever way it goes. Four words of a code without
/// raw bits are looked up in one window, and then an escape or a pair with raw bits is read by itself. A
/// lane leaves its tile's values in shared memory; then the warp takes the 32 tiles one after the
/// other, a lane an entry, so that stores are whole lines. A lane draws its levels once for 8
/// tiles, 4 generator calls. Zeros are written by the same launch: a warp writes those of 32,768
/// entries before it reads its groups, so blocks have like work however many atoms are kept. Rows of a sketch
/// need none: low_rank.cu writes every entry.
///
/// Traffic in bytes an entry: 4 written (8 more for adding: kept atoms alone are read and written),
/// plus the body, 0.05 to 2; nothing more is possible. Of pairs an entry is one of a vector, which
/// the sums read again. Where values are added, those of a sketch's rows and of layers that choose a form
/// are kept apart, without zeros, and forms_add.cu adds them. The index of the body: atom_body.cu.
///
/// Shared memory: 7,424 bytes a warp (values 33 words a row and levels 21, so that neither rows nor
/// columns meet in a bank). Determinism: every entry is written by one lane. Alignment: y is
/// aligned to its entries; bodies begin at any byte.

#include <algorithm>

#include "cuda/atom_strands.cuh"

namespace atomo::cuda::atoms {
namespace {

constexpr std::uint64_t kZeroedEntries = 32768;
/// Warps of a block, at most: what static shared memory holds with room for other blocks.
constexpr unsigned kContentWarps = 4;
/// Words that are looked up in one window.
constexpr unsigned kWords = 4;

/// The place that a tile's values go to.
struct TileRow {
  float* y;
  std::uint32_t entries;  ///< 0 when there is no tile
};

/// A warp's tiles, one of each of its groups.
struct Tiles {
  float value[kLanes][kTile + 1];
  /// Of 8 tiles, nibble u mod 8. Behind the last pair's there is room for what is looked up in vain.
  std::uint32_t level[kLanes][kTileDuos + kWords + 1];
  TileRow row[kLanes];
};
struct BlockTiles {
  Tiles of[kContentWarps];
};

/// A tile as one lane reads it.
struct LaneTile {
  const LaneVector& of;
  const std::uint32_t* level;
  unsigned shift;  ///< of the tile's nibble
  float unrange;
  std::uint32_t half;  ///< its pairs
  float* value;

  __device__ std::uint32_t level_of(std::uint32_t l) const { return (level[l] >> shift) & 15u; }

  __device__ void put(std::uint32_t l, std::uint32_t j, std::int32_t q0, std::int32_t q1) const {
    value[l] = math::dequantise<float>(q0, j, of.step) * unrange;
    value[half + l] = math::dequantise<float>(q1, j ^ math::kMateDither, of.step) * unrange;
  }

  /// Pairs from l on of a code without raw bits, whose words stand in the window behind one another, four at
  /// most. Returns how many, fewer where one is escaped; `used`: their bits. The look-ups wait for each other,
  /// so nothing else stands between them.
  __device__ std::uint32_t read_words(std::uint64_t window, std::uint32_t l,
                                      std::uint32_t& used) const {
    const DeviceStep& c = of.coding;
    std::uint32_t j[kWords], entry[kWords], count = 0;
    for (unsigned k = 0; k < kWords; ++k) j[k] = level_of(l + k);
    for (unsigned k = 0; k < kWords; ++k) {
      const std::uint32_t place = (j[k] & c.level_mask) << c.limit;
      entry[k] = decode_table()[c.decode + (place | first_bits(window, c.limit))];
      window <<= entry[k] & 15u;
    }
    bool stands = true;
    used = 0;
    for (unsigned k = 0; k < kWords; ++k) {
      const std::int32_t h0 = first_of(entry[k]), h1 = second_of(entry[k]);
      stands = stands && h0 != kEscapeCell && l + k < half;
      if (!stands) continue;
      const bool swapped = (j[k] & 8u & (c.level_mask + 1u)) != 0;
      put(l + k, j[k], swapped ? h1 : h0, swapped ? h0 : h1);
      used += entry[k] & 15u;
      ++count;
    }
    return count;
  }

  /// Reads a pair by itself; returns the bit behind it.
  __device__ std::uint32_t read_pair(const WordStrand& strand, std::uint32_t l,
                                     std::uint32_t bit) const {
    const std::uint32_t j = level_of(l);
    const DuoRead pair = get_duo(of.coding, of.escape_bits, j, strand.window(bit), strand.upward());
    put(l, j, pair.q0, pair.q1);
    return strand.moved(bit, pair.count);
  }

  /// Reads the tile from `bit` on; returns the bit behind it. Lanes are not at the same pair: one that meets an
  /// escape takes a turn more, and the others do not go its way.
  __device__ std::uint32_t read(const WordStrand& strand, std::uint32_t bit) const {
    if (of.coding.raw != 0) {
      for (std::uint32_t l = 0; l < half; ++l) bit = read_pair(strand, l, bit);
      return bit;
    }
    for (std::uint32_t l = 0; l < half;) {
      std::uint32_t used;
      const std::uint32_t count = read_words(strand.window(bit), l, used);
      bit = strand.moved(bit, used);
      l += count;
      if (count < kWords && l < half) bit = read_pair(strand, l++, bit);
    }
    return bit;
  }
};

/// The warp's tiles into the output, an entry a lane. What is added to is read for several tiles at
/// once; rows from `rows` on are empty.
__device__ void write_tiles(const Tiles& tiles, std::uint32_t rows, DecodeInto into) {
  constexpr unsigned kTogether = 16;
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

/// A lane's tile: its levels where they begin, its values. Returns the bit behind it.
__device__ std::uint32_t read_tile(const AtomContent& c, const LaneVector& vector,
                                   const StrandWalk& walk, std::uint32_t entries,
                                   const WordStrand& strand, std::uint32_t bit, Tiles& tiles) {
  std::uint32_t* const level = tiles.level[lane()];
  float* const value = tiles.value[lane()];
  const AtomVector& of = c.job.vectors.of[walk.vector];
  const std::uint32_t tile = walk.tile;
  if (walk.begins || tile % coding::kDitherTiles == 0)
    draw_dither(Philox(c.frame.key(c.job.layer), of.dither), of.level_base(vector.atom, tile),
                level);
  const LaneTile own{vector, level, 4 * (tile % coding::kDitherTiles), c.unrange, (entries + 1) / 2,
                     value};
  bit = own.read(strand, bit);
  // The vectors of pairs end with zeros.
  for (std::uint32_t i = entries; i < kTile; ++i) value[i] = 0;
  return bit;
}

/// Where the values of a vector go.
__device__ float* output_of(const AtomContent& c, const LaneVector& vector, const StrandWalk& walk,
                            DecodeInto into, std::uint32_t slot) {
  const std::uint64_t length = c.job.vectors.of[walk.vector].length;
  if (c.job.has_pairs())
    return c.job.vectors_to(c.frame, walk.vector, slot) + walk.rank * vector_stride(length);
  return c.job.output(c.frame, into, slot) + vector.atom * length;
}

/// The groups of a unit, `rows` strands: `group` is that of this lane. True when its strands meet.
__device__ bool decode_groups(const AtomContent& c, const WordStrand& strand, std::uint64_t group,
                              std::uint32_t length, std::uint32_t rows, DecodeInto into_call,
                              std::uint32_t slot, Tiles& tiles) {
  const DecodeInto into = c.job.mode(into_call);
  StrandWalk walk(c, group, strand.upward());
  std::uint32_t bit = strand.upward() ? 0 : length;
  LaneVector vector;
  float* to = nullptr;
  for (std::uint32_t s = 0; s < c.job.strand_tiles; ++s) {
    std::uint32_t entries = 0;
    const std::uint64_t from = std::uint64_t{walk.tile} * kTile;
    if (walk.left != 0) {
      if (walk.begins) {
        vector = load_vector(c, walk.rank, walk.vector);
        to = output_of(c, vector, walk, into_call, slot);
      }
      const std::uint64_t behind = from < vector.entries ? vector.entries - from : 0;
      entries = static_cast<std::uint32_t>(behind < kTile ? behind : kTile);
    }
    if (entries != 0) bit = read_tile(c, vector, walk, entries, strand, bit, tiles);
    tiles.row[lane()] = {entries != 0 ? to + from : nullptr,
                         entries != 0 && c.job.has_pairs() ? kTile : entries};
    __syncwarp();
    write_tiles(tiles, rows, into);
    __syncwarp();
    if (walk.left != 0) walk.go_on(c.job.vectors);
  }
  return bit == __shfl_xor_sync(kAllLanes, bit, 1);
}

__device__ void decode_unit(const Frame& frame, const DecodePlan& plan, std::uint64_t unit,
                            DecodeInto into, std::uint32_t slot, bool several) {
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
  const WordStrand strand(body, own);
  const bool good =
      decode_groups(content, strand, own.group, own.length, static_cast<std::uint32_t>(2 * groups),
                    into, slot, shared<BlockTiles>().of[warp_in_block()]);
  if (!good) frame.refuse(job.layer, Status::corrupt);
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
__global__ void decode_and_fill(const Frames frames, const DecodePlan plan, const DecodeInto into,
                                const std::uint32_t first) {
  const Frame frame = frames[first + blockIdx.y];
  const std::uint64_t unit = warp_in_grid();
  if (unit < plan.fill.units && !into.add) fill_unit(frame, plan, unit);
  if (unit < plan.bodies.groups.units)
    decode_unit(frame, plan, unit, into, blockIdx.y, is_several(frames, into));
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
