// SPDX-License-Identifier: Apache-2.0
/// Decoding of dithered blocks and rows: content, and zeros where no atom was kept.
///
/// The mathematics. A pair (q0, q1) of the content at level j stands for the values
///     v = f32(32 q - 2 j + 15) * (step / 32),  step = (price * delta[class]) * gain,
/// j and j xor 8 (FORMAT.md, "Content"); then v * (1 / range), where tiny and huge prices were
/// scaled. y becomes v, or y + (alpha * v).
///
/// Mapping. Words have no ends that can be seen, and the code of a pair depends on its number, so a
/// group (1,024 entries or little less) can only be read front to back: a lane reads a group, the
/// 32 groups of a warp in lockstep, a tile of 32 entries at a time. Four words of a code without
/// raw bits are looked up in one view of the stream; escapes and raw bits are read pair by pair. A
/// lane leaves its tile's values in shared memory; then the warp takes the 32 tiles one after the
/// other, a lane an entry, so that stores are whole lines. A lane draws its levels once for 8
/// tiles, 4 generator calls. Zeros are written by the same launch: a warp writes those of 32,768
/// entries before it reads its groups, so blocks have like work however many atoms are kept.
///
/// Traffic in bytes an entry: 4 written (8 more for adding: kept atoms alone are read and written),
/// plus the body, 0.05 to 2; nothing more is possible. The index of the body: atom_body.cu.
///
/// Shared memory: 6,912 bytes a warp (values 33 words a row and levels 17, so that neither rows nor
/// columns meet in a bank). Determinism: every entry is written by one lane. Alignment: y is
/// aligned to its entries; bodies begin at any byte.

#include "cuda/atoms_decode.cuh"

#include <algorithm>

#include "core/philox.hpp"
#include "cuda/pair_code.cuh"
#include "format/atom_body.hpp"

namespace atomo::cuda {
namespace {

using coding::kTile;
using coding::kTilePairs;

constexpr std::uint64_t kZeroedEntries = 32768;
/// Warps of a block, at most: what static shared memory holds with room for other blocks.
constexpr unsigned kContentWarps = 4;

/// Where a tile's values go.
struct TileRow {
  float* y;
  std::uint32_t entries;  ///< 0 when there is no tile
};

/// A warp's tiles, one of each of its groups.
struct Tiles {
  float value[kLanes][kTile + 1];
  std::uint32_t level[kLanes][kTilePairs + 1];  ///< of 8 tiles, nibble u mod 8
  TileRow row[kLanes];
};
struct BlockTiles {
  Tiles of[kContentWarps];
};

/// How the atom under a lane is read.
struct LaneAtom {
  std::uint64_t number = 0;
  std::uint64_t entries = 0;  ///< 0: there is none
  DeviceStep coding;
  std::uint32_t escape_bits = 0;
  float step = 0;
};

/// What a warp's lanes share.
struct Content {
  const AtomsDecodeJob& job;
  const BodyJob& body_job;
  const BodyState& state;
  const std::uint64_t* kept;
  float* y;
  float range;   ///< what entries were multiplied by before they were dithered
  float scaled;  ///< price * range
};

/// The kept atom of that rank, or none.
__device__ LaneAtom load_atom(const Content& c, std::uint64_t rank) {
  LaneAtom atom;
  if (rank >= c.state.kept) return atom;
  const std::uint64_t entry = c.kept[rank];
  const auto atom_class = static_cast<std::uint32_t>(entry >> kClassShift);
  atom.number = entry & ((std::uint64_t{1} << kClassShift) - 1);
  const bool last = atom.number + 1 == c.job.count;
  atom.entries = last ? c.job.last : c.job.length;
  const DeviceClass of = device_class(atom_class);
  atom.coding = device_step(of.step);
  atom.escape_bits = last ? c.job.last_escape.of[atom_class] : c.job.escape.of[atom_class];
  atom.step = (c.scaled * of.delta) * c.state.gain;
  return atom;
}

/// The levels of 8 tiles, a nibble each: word l / 4 at index 4 `base` + l mod 4 for pair l.
__device__ void draw_levels(const Philox& draws, std::uint64_t base, std::uint32_t* level) {
  for (unsigned i = 0; i < 4; ++i) {
    const PhiloxWords words = draws(4 * base + i);
    for (unsigned w = 0; w < 4; ++w) level[4 * w + i] = words[w];
  }
}

/// The cell of an entry of `decode_table`.
__device__ std::int32_t first_of(std::uint32_t entry) {
  return static_cast<std::int32_t>(entry << 22) >> 26;
}
__device__ std::int32_t second_of(std::uint32_t entry) {
  return static_cast<std::int32_t>(entry << 16) >> 26;
}

/// A tile as one lane reads it.
struct LaneTile {
  const LaneAtom& atom;
  const std::uint32_t* level;
  unsigned shift;  ///< of the tile's nibble
  float unrange;
  std::uint32_t half;  ///< its pairs
  float* value;

  __device__ std::uint32_t level_of(std::uint32_t l) const { return (level[l] >> shift) & 15u; }

  __device__ void put(std::uint32_t l, std::uint32_t j, std::int32_t q0, std::int32_t q1) const {
    value[l] = math::dequantise<float>(q0, j, atom.step) * unrange;
    value[half + l] = math::dequantise<float>(q1, j ^ math::kMateLevel, atom.step) * unrange;
  }

  /// Pairs l to l + 3 of a code without raw bits; the bits they take, 0 when one is escaped. The
  /// look-ups wait for each other, so nothing else stands between them.
  __device__ std::uint32_t read_four(std::uint64_t window, std::uint32_t l) const {
    const DeviceStep& c = atom.coding;
    const std::uint32_t seen = (1u << c.limit) - 1;
    std::uint32_t j[4], entry[4], used = 0;
    bool escaped = false;
    for (unsigned k = 0; k < 4; ++k) j[k] = level_of(l + k);
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint32_t place = (j[k] & c.level_mask) << c.limit;
      entry[k] = decode_table()[c.decode + (place | (static_cast<std::uint32_t>(window) & seen))];
      window >>= entry[k] & 15u;
      used += entry[k] & 15u;
    }
    for (unsigned k = 0; k < 4; ++k) escaped = escaped || first_of(entry[k]) == coding::kEscapeCell;
    if (escaped) return 0;
    for (unsigned k = 0; k < 4; ++k) {
      const std::int32_t h0 = first_of(entry[k]), h1 = second_of(entry[k]);
      const bool swapped = (j[k] & 8u & (c.level_mask + 1u)) != 0;
      put(l + k, j[k], swapped ? h1 : h0, swapped ? h0 : h1);
    }
    return used;
  }

  /// Reads the tile from `bit` on; returns the bit behind it.
  __device__ std::uint32_t read(const BitView& group, std::uint32_t bit) const {
    for (std::uint32_t l = 0; l < half; l += 4) {
      const bool four = atom.coding.raw == 0 && l + 4 <= half;
      const std::uint32_t used = four ? read_four(group.peek64(bit), l) : 0;
      bit += used;
      if (used != 0) continue;
      for (std::uint32_t k = l; k < l + 4 && k < half; ++k) {
        const std::uint32_t j = level_of(k);
        const PairRead pair = get_pair(atom.coding, atom.escape_bits, j, group.peek64(bit));
        put(k, j, pair.q0, pair.q1);
        bit += pair.count;
      }
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

/// The groups of a unit: `group` is this lane's, `rows` how many the warp has. True when the lane's
/// group ends where its length says.
__device__ bool decode_groups(const Content& c, const Philox& draws, const BitView& bits,
                              std::uint64_t group, std::uint32_t length, std::uint32_t rows,
                              DecodeInto into, Tiles& tiles) {
  const std::uint64_t first_rank = group / c.body_job.group_pieces * c.body_job.group_atoms;
  const auto piece_tile =
      static_cast<std::uint32_t>(group % c.body_job.group_pieces) * coding::kPieceTiles;
  std::uint64_t rank = lane() < rows ? first_rank : c.state.kept;
  std::uint32_t bit = 0, tile = 0;
  LaneAtom atom;
  for (std::uint32_t s = 0; s < c.job.group_tiles; ++s) {
    if (tile == 0) atom = load_atom(c, rank++);
    const std::uint32_t u = piece_tile + tile;
    const std::uint64_t from = std::uint64_t{u} * kTile;
    const auto left = static_cast<std::uint32_t>(from >= atom.entries          ? 0
                                                 : atom.entries - from < kTile ? atom.entries - from
                                                                               : kTile);
    if (left != 0) {
      std::uint32_t* const level = tiles.level[lane()];
      const std::uint64_t stretches = divide_up(c.job.tiles, coding::kLevelTiles);
      if (u % coding::kLevelTiles == 0)
        draw_levels(draws, atom.number * stretches + u / coding::kLevelTiles, level);
      const LaneTile own{atom,           level,          4 * (u % coding::kLevelTiles),
                         1.0f / c.range, (left + 1) / 2, tiles.value[lane()]};
      bit = own.read(bits, bit);
    }
    tiles.row[lane()] = {c.y + atom.number * c.job.length + from, left};
    __syncwarp();
    write_tiles(tiles, rows, into);
    __syncwarp();
    if (++tile == c.job.tiles) tile = 0;
  }
  return lane() >= rows || bit == length;
}

__device__ void decode_unit(const Frame& frame, const AtomsDecodePlan& plan, std::uint64_t unit,
                            DecodeInto into) {
  const UnitOf at = find_unit(frame, plan.bodies.groups, unit);
  const BodyState& state = frame(plan.bodies.states)[at.job];
  const std::uint64_t first = at.index * kUnitGroups, group = first + lane();
  if (state.stands == 0 || first >= state.groups) return;
  const AtomsDecodeJob& job = frame(plan.jobs)[at.job];
  const BodyJob& body_job = frame(plan.bodies.jobs)[at.job];
  const LayerState& layer = frame.layer(job.layer);
  const BodyBytes body = body_of(frame, body_job);
  const float range = math::range_scale(layer.price);
  const Content content{job,
                        body_job,
                        state,
                        frame(plan.bodies.kept) + body_job.first_kept,
                        job.output(frame, into),
                        range,
                        layer.price * range};
  const std::uint32_t length = group_bits(body, state, group);
  std::uint32_t total;
  const std::uint64_t start =
      8 * state.content + frame(plan.bodies.unit_bits)[unit] + warp_exclusive_sum(length, total);
  const std::uint64_t rows = state.groups - first < kLanes ? state.groups - first : kLanes;
  const BitView bits = BitView(body.begin, body.bytes).from(start);
  const bool good = decode_groups(content, Philox(frame.key(job.layer), job.dither), bits, group,
                                  length, static_cast<std::uint32_t>(rows), job.mode(into),
                                  shared<BlockTiles>().of[warp_in_block()]);
  if (!good) frame.refuse(job.layer, Status::corrupt);
}

/// Zeros for the entries of a unit whose atoms are not kept.
__device__ void fill_unit(const Frame& frame, const AtomsDecodePlan& plan, std::uint64_t unit,
                          DecodeInto into) {
  const UnitOf at = find_unit(frame, plan.fill, unit);
  const AtomsDecodeJob& job = frame(plan.jobs)[at.job];
  const BodyJob& body_job = frame(plan.bodies.jobs)[at.job];
  if (job.mode(into).add || !decodes(frame, body_job)) return;
  const bool empty = frame.layer(job.layer).bytes == 0 || body_of(frame, body_job).bytes == 0;
  if (!empty && frame(plan.bodies.states)[at.job].stands == 0) return;
  float* const y = job.output(frame, into);
  const std::uint64_t* const words = segment_words(frame, plan.bodies.marks, {at.job, 0});
  const std::uint64_t n = frame.info(job.layer).n;
  std::uint64_t begin = at.index * kZeroedEntries, atom = begin / job.length;
  const std::uint64_t end = n - begin < kZeroedEntries ? n : begin + kZeroedEntries;
  for (; begin < end; ++atom) {
    const std::uint64_t next = (atom + 1) * job.length, stop = next < end ? next : end;
    if (((words[atom / 64] >> (atom % 64)) & 1u) == 0) {
      for (std::uint64_t i = begin + lane(); i < stop; i += kLanes) y[i] = 0;
    }
    begin = stop;
  }
}

__global__ void decode_and_fill(Frame frame, AtomsDecodePlan plan, DecodeInto into) {
  const std::uint64_t unit = warp_in_grid();
  if (unit < plan.fill.units) fill_unit(frame, plan, unit, into);
  if (unit < plan.bodies.groups.units) decode_unit(frame, plan, unit, into);
}

EscapeBits escape_bits_of(std::uint64_t length) {
  EscapeBits bits;
  for (std::size_t c = 0; c < math::kAtomClassCount; ++c)
    bits.of[c] =
        static_cast<std::uint8_t>(coding::escape_bits(length, coding::kAtomClasses[c].reach));
  return bits;
}

/// Adds bodies one by one, in both runs of a plan.
class Planner {
 public:
  Planner(Layout& layout, std::size_t jobs, Scratch<float> rest)
      : bodies_(layout, jobs),
        jobs_(layout.table<AtomsDecodeJob>(jobs)),
        fill_(layout, jobs),
        rest_(rest) {}

  void add(const LayerAtoms& of, std::uint32_t layer, std::uint64_t n) {
    const AtomLayout& atoms = of.layout;
    const auto shape = format::GroupShape::of(atoms.length);
    const auto tiles = static_cast<std::uint32_t>(divide_up(atoms.length, kTile));
    const auto in_group = static_cast<std::uint32_t>(shape.atoms);
    const bool sketch = of.part == BodyPart::rows;
    bodies_.add({atoms.count, 0, layer, in_group, static_cast<std::uint32_t>(shape.pieces), 1,
                 of.form, of.part});
    fill_.add(divide_up(n, kZeroedEntries));
    if (!jobs_.values.empty()) {
      jobs_.values[count_] = {atoms.count,
                              atoms.length,
                              atoms.last,
                              layer,
                              tiles,
                              in_group * std::min(tiles, coding::kPieceTiles),
                              format::purposes_of(atoms.family).dither,
                              escape_bits_of(atoms.length),
                              escape_bits_of(atoms.last),
                              rest_,
                              sketch ? 1u : 0u};
    }
    ++count_;
    if (!sketch) return;
    ++sketches_;
    rest_.at += n * sizeof(float);
  }

  void finish(AtomsDecodePlan& plan) {
    plan.bodies = bodies_.finish();
    plan.jobs = jobs_.place;
    plan.fill = fill_.split();
    plan.sketches = sketches_;
  }

 private:
  BodyPlanner bodies_;
  Layout::NewTable<AtomsDecodeJob> jobs_;
  SplitMaker fill_;
  Scratch<float> rest_;  ///< of the next sketch
  std::uint32_t count_ = 0, sketches_ = 0;
};

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, AtomsDecodePlan& plan) {
  plan = {};
  std::size_t jobs = 0;
  std::uint64_t rest_entries = 0;
  for (const LayerPlan& layer : layers) {
    visit_atoms(layer, [&](const LayerAtoms& of) {
      jobs += of.has_pairs() ? 0 : 1;
      rest_entries += of.part == BodyPart::rows ? layer.n : 0;
    });
  }
  const auto rest = layout.scratch<float>(rest_entries);
  if (jobs > 0) {
    Planner planner(layout, jobs, rest);
    for (std::uint32_t i = 0; i < layers.size(); ++i) {
      visit_atoms(layers[i], [&](const LayerAtoms& of) {
        if (!of.has_pairs()) planner.add(of, i, layers[i].n);
      });
    }
    planner.finish(plan);
  }
  plan_pairs(layers, layout, rest, plan.pairs);
}

void decode(const Frame& frame, const AtomsDecodePlan& plan, DecodeInto into, Queue& queue) {
  if (plan.fill.jobs > 0) {
    open_bodies(frame, plan.bodies, queue);
    const bool fills = !into.add || plan.sketches > 0;
    const std::uint64_t units = std::max(plan.bodies.groups.units, fills ? plan.fill.units : 0);
    const unsigned warps = std::min(warps_per_block, kContentWarps);
    queue.launch_blocks(decode_and_fill, divide_up(units, warps), warps * kLanes, 0, frame, plan,
                        into);
  }
  if (!plan.pairs.empty()) decode_pairs(frame, plan.pairs, into, queue);
}

}  // namespace atomo::cuda
