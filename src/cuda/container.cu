// SPDX-License-Identifier: Apache-2.0
/// The container on the device: what encoding a message takes beside the methods (FORMAT.md,
/// "Container"). container_begin.cu has the first launch, container_open.cu the other way.
///
/// place     One block scans the layers' lengths; further ones copy the head's tables. Where all bodies
///           are of fixed length, places are planned and `begin` does this.
/// assemble  A warp makes 1 KiB of the message's bodies, a lane a word: it finds the layer of the
///           word among the places of the bodies and gathers the word's bits from the pieces that
///           hold them, found among their ends.
/// seal      A warp hashes blocks of 4 KiB (checksum.cuh); the block that comes last writes the
///           header. Before that, and only when a layer of fixed length has an Inf or NaN, all blocks
///           close the gap: they move parts of 16 KiB down in place.
///
/// Traffic: bodies of varying length are read and written once by `assemble`, all bodies are read
/// once by `seal`: two reads and a write of the compressed bytes, of which the least possible is
/// the write. Shared memory: a block's scan. Determinism: integers alone; sums are of 64 bits in
/// any order. The message may stand at any address: it is read and written in words where it is
/// aligned to 4 bytes, in bytes elsewhere.

#include "cuda/container.cuh"

#include <algorithm>

#include "backend/backend.hpp"
#include "cuda/atom_forms.hpp"
#include "cuda/checksum.cuh"
#include "cuda/cub.cuh"
#include "cuda/message_head.cuh"
#include "cuda/rounds.cuh"
#include "format/container_rules.hpp"

namespace atomo::cuda {

using format::LayerRecord;
using format::padded;

void plan_frame(std::span<const LayerPlan> layers, std::span<const std::uint16_t> kind_of,
                std::uint32_t kinds, ConstBytes head_tables, Layout& layout, FramePlan& plan,
                std::uint16_t flags) {
  plan = {};
  plan.count = static_cast<std::uint32_t>(layers.size());
  plan.kinds = kinds;
  plan.flags = flags;
  plan.head_table_bytes = head_tables.size();
  plan.head_bytes =
      format::kHeaderBytes + format::kRecordBytes * layers.size() + head_tables.size();
  plan.max_bytes = plan.head_bytes;

  TableMaker<PlannedLayer> infos(layout, layers.size());
  TableMaker<std::byte> tables(layout, head_tables.size());
  const TableMaker<PlannedKind> planned_kinds(layout, kinds);
  SplitMaker fills(layout, layers.size());
  for (const std::byte b : head_tables) tables.add(b);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerPlan& layer = layers[i];
    const std::uint64_t fixed_bytes = layer.fixed_size && layer.n > 0 ? layer.max_body_bytes : 0;
    infos.add({layer.n, fixed_bytes, layer.kind.params, kind_of[i], layer.kind.method,
               layer.remembers() ? DType::f32 : layer.kind.dtype, plan.apart_entries,
               plan.max_bytes});
    if (keeps_apart(layer)) plan.apart_entries += divide_up(layer.n, 32) * 32;
    if (const auto of_kinds = planned_kinds.entries(); !of_kinds.empty()) {
      PlannedKind& planned = of_kinds[kind_of[i]];
      planned = {format::fields_of(layer.kind), {}};
      const auto dims = layer.kind.shape.dims();
      std::copy(dims.begin(), dims.end(), planned.dims);
    }
    fills.add(divide_up(layer.n, kFillEntries));
    plan.max_bytes += padded(layer.max_body_bytes);
    plan.staged_layers = plan.staged_layers || (layer.n > 0 && fixed_bytes == 0);
    if (layer.n == 0 || layer.price_rule.budget_bits == 0) continue;
    if (layer.price_rule.pool == price::Pool::atoms) plan.pooled[kAtomsPool] = true;
    if (layer.price_rule.pool == price::Pool::grid) plan.pooled[kGridPool] = true;
  }
  plan.infos = infos.table();
  plan.head_tables = tables.table();
  plan.planned_kinds = planned_kinds.table();
  plan.fills = fills.split();

  plan.message = layout.zeroed<MessageState>(1);
  plan.pools = layout.zeroed<PoolPrice>(2);
  plan.layers = layout.zeroed<LayerState>(layers.size());
  plan.kinds_at = layout.zeroed<std::uint32_t>(layers.size());
  plan.states_begin = plan.message.at;
  plan.states_end = plan.kinds_at.at + layers.size() * sizeof(std::uint32_t);
  plan.staged = layout.scratch<StagedBody>(2 * layers.size());
  const bool may_have_gaps = std::ranges::any_of(
      layers, [](const LayerPlan& layer) { return layer.fixed_size && layer.n > 0; });
  const std::uint64_t parts = divide_up(plan.max_bytes - plan.head_bytes, kMovedPart);
  plan.read_parts = layout.zeroed<std::uint32_t>(may_have_gaps ? divide_up(parts, 32) : 0);
  plan.moved_to = layout.scratch<std::uint64_t>(may_have_gaps ? layers.size() : 0);
}

namespace {

// ---- place

/// The price that the header states for a pool whose layers share one.
__device__ float shared_price(const Frame& frame, PoolNumber number) {
  const PoolPrice& pool = frame.pool(number);
  if (!frame.plan.pooled[number] || pool.alone != 0) return 0;
  return pool.given > 0 ? pool.given : pool.price;
}

__device__ void place_layers(const Frame& frame) {
  const std::uint64_t bodies = scan_blockwide<std::uint64_t>(
      frame.plan.count,
      [&](std::uint64_t i) {
        LayerState& layer = frame.layer(static_cast<std::uint32_t>(i));
        if ((layer.flags & LayerRecord::kNonFinite) != 0) {
          layer.bytes = 0;
          frame.notice(Status::non_finite);
        }
        // No other flag goes with an empty body.
        if (layer.bytes == 0) layer.flags &= LayerRecord::kNonFinite;
        return padded(layer.bytes);
      },
      [&](std::uint64_t i, std::uint64_t before) {
        LayerState& layer = frame.layer(static_cast<std::uint32_t>(i));
        layer.body_at = frame.plan.head_bytes + before;
        store_record(frame, static_cast<std::uint32_t>(i),
                     frame.info(static_cast<std::uint32_t>(i)).kind, layer);
        store_padding(frame, layer);
      });
  if (threadIdx.x != 0) return;
  MessageState& state = frame.state();
  state.head_bytes = frame.plan.head_bytes;
  state.total_bytes = frame.plan.head_bytes + bodies;
  state.price = shared_price(frame, kAtomsPool);
  state.grid_step = shared_price(frame, kGridPool);
  if (state.learnt != nullptr) keep_prices(state, *state.learnt);
}

__global__ void place_bodies(const Frame frame) {
  store_head_tables(frame, frame(frame.plan.head_tables),
                    std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                    std::uint64_t{gridDim.x} * blockDim.x);
  if (blockIdx.x == 0) place_layers(frame);
}

// ---- assemble

constexpr std::uint64_t kWordsByWarp = 256;

/// The first i in [low, high) with `above(i)`, which is false up to some i and true from there on;
/// `high` when there is none.
template <typename Above>
__device__ std::uint64_t first_above(std::uint64_t low, std::uint64_t high, Above above) {
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (above(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/// Numbers [low, high).
struct Range {
  std::uint64_t low = 0, high = 0;
};

/// The layer of the word at `at`, one of `layers`.
__device__ std::uint32_t layer_of(const Frame& frame, std::uint64_t at, Range layers) {
  return static_cast<std::uint32_t>(
      first_above(layers.low + 1, layers.high,
                  [&](std::uint64_t i) {
                    return frame.layer(static_cast<std::uint32_t>(i)).body_at > at;
                  }) -
      1);
}

/// A part of a body of varying length where it was staged.
class Staged {
 public:
  __device__ Staged(const Frame& frame, std::uint64_t number)
      : body_(frame(frame.plan.staged)[number]),
        prefix_(frame(Scratch<std::uint32_t>{body_.prefix})),
        slots_(frame(Scratch<std::uint32_t>{body_.slots})),
        ends_(frame(Scratch<std::uint64_t>{body_.ends})) {}

  [[nodiscard]] __device__ Range all_pieces() const { return {0, body_.pieces}; }
  /// Those that the bytes [begin, end) of the part are made of.
  [[nodiscard]] __device__ Range pieces(std::uint64_t begin, std::uint64_t end) const {
    const std::uint64_t front = body_.prefix_bytes;
    if (end <= front) return {0, 0};
    const std::uint64_t low = piece_at(begin > front ? 8 * (begin - front) : 0, all_pieces());
    const std::uint64_t high = piece_at(8 * (end - front) - 1, {low, body_.pieces});
    return {low, high < body_.pieces ? high + 1 : high};
  }
  /// The word at byte `at` of the part, a multiple of 4, from `pieces` at most.
  [[nodiscard]] __device__ std::uint32_t word(std::uint64_t at, Range pieces) const {
    if (at >= body_.prefix_bytes) return stream(8 * (at - body_.prefix_bytes), pieces);
    const std::uint32_t front = prefix_[at / 4];
    const std::uint64_t bits = 8 * (body_.prefix_bytes - at);
    if (bits >= 32) return front;
    return (front & ((1u << bits) - 1)) | stream(0, pieces) << bits;
  }

 private:
  [[nodiscard]] __device__ std::uint64_t piece_at(std::uint64_t bit, Range pieces) const {
    return first_above(pieces.low, pieces.high, [&](std::uint64_t i) { return ends_[i] > bit; });
  }
  /// 32 bits of the stream from bit `from` on, zeros behind its end.
  [[nodiscard]] __device__ std::uint32_t stream(std::uint64_t from, Range pieces) const {
    std::uint32_t word = 0;
    for (unsigned have = 0; have < 32;) {
      const std::uint64_t piece = piece_at(from, pieces);
      if (piece == pieces.high) break;
      const std::uint64_t begin = piece == 0 ? 0 : ends_[piece - 1];
      const std::uint64_t left = ends_[piece] - from;
      const unsigned take = left < 32 - have ? static_cast<unsigned>(left) : 32 - have;
      word |= slot_bits(slots_ + piece * body_.slot_words, from - begin, take) << have;
      have += take;
      from += take;
      pieces.low = piece + 1;
    }
    return word;
  }
  /// `count` bits, 1 to 32, from bit `from` of a piece on.
  [[nodiscard]] static __device__ std::uint32_t slot_bits(const std::uint32_t* slot,
                                                          std::uint64_t from, unsigned count) {
    const unsigned shift = from % 32;
    std::uint32_t bits = slot[from / 32] >> shift;
    if (shift + count > 32) bits |= slot[from / 32 + 1] << (32 - shift);
    return count == 32 ? bits : bits & ((1u << count) - 1);
  }

  StagedBody body_;
  const std::uint32_t* prefix_;
  const std::uint32_t* slots_;
  const std::uint64_t* ends_;
};

/// The places where the parts of a layer's body begin, in bytes of the body.
struct PartPlaces {
  std::uint64_t first = 0, second = 0;  ///< the same where there is one part
  std::uint32_t price_words = 0;

  __device__ explicit PartPlaces(const LayerState& layer)
      : price_words((layer.flags & LayerRecord::kOwnPrice) != 0 ? 1 : 0) {
    first = 4 * (price_words + layer.front_words);
    second = first + layer.second_at;
  }
  [[nodiscard]] __device__ bool in_second(std::uint64_t at) const {
    return second != first && at >= second;
  }
  /// The word at `at` of what stands before the parts.
  [[nodiscard]] __device__ std::uint32_t front_word(const LayerState& layer,
                                                    std::uint64_t at) const {
    return at < 4 * price_words ? __float_as_uint(layer.price) : layer.front[at / 4 - price_words];
  }
};

/// Writes the words [begin, end) of a layer's body, which all stand in one of its parts, or before
/// them; by a whole warp.
__device__ void assemble_part(const Frame& frame, std::uint32_t number, const PartPlaces& places,
                              std::uint64_t begin, std::uint64_t end) {
  const LayerState& layer = frame.layer(number);
  const bool second = places.in_second(begin);
  const std::uint64_t part_at = second ? places.second : places.first;
  const Staged staged(frame, number + (second ? std::uint64_t{frame.plan.count} : 0));
  const std::uint64_t from = begin > part_at ? begin - part_at : 0;
  const Range pieces = end > part_at ? staged.pieces(from, end - part_at) : Range{};
  for (std::uint64_t at = begin + 4 * lane(); at < end; at += 4 * kLanes) {
    store_word(frame.message + layer.body_at + at,
               at < part_at ? places.front_word(layer, at) : staged.word(at - part_at, pieces));
  }
}

/// The word at byte `at` of a layer's body.
__device__ std::uint32_t body_word(const Frame& frame, std::uint32_t number, std::uint64_t at) {
  const LayerState& layer = frame.layer(number);
  const PartPlaces places(layer);
  if (at < places.first) return places.front_word(layer, at);
  const bool second = places.in_second(at);
  const Staged staged(frame, number + (second ? std::uint64_t{frame.plan.count} : 0));
  return staged.word(at - (second ? places.second : places.first), staged.all_pieces());
}

/// Writes kWordsByWarp words of the message from `begin` on, none from `end` on.
__device__ void assemble_words(const Frame& frame, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t behind = std::min(begin + 4 * kWordsByWarp, end);
  const std::uint32_t first = layer_of(frame, begin, {0, frame.plan.count});
  const std::uint32_t last = layer_of(frame, behind - 4, {first, frame.plan.count});
  if (first == last) {
    if (frame.info(first).fixed_bytes != 0) return;
    const std::uint64_t body_at = frame.layer(first).body_at;
    const PartPlaces places(frame.layer(first));
    const std::uint64_t from = begin - body_at, to = behind - body_at;
    const bool both = places.second != places.first && from < places.second && places.second < to;
    const std::uint64_t middle = both ? places.second : to;
    assemble_part(frame, first, places, from, middle);
    if (both) assemble_part(frame, first, places, middle, to);
    return;
  }
  for (std::uint64_t at = begin + 4 * lane(); at < behind; at += 4 * kLanes) {
    const std::uint32_t layer = layer_of(frame, at, {first, last + 1ull});
    if (frame.info(layer).fixed_bytes != 0) continue;
    store_word(frame.message + at, body_word(frame, layer, at - frame.layer(layer).body_at));
  }
}

__global__ void assemble_bodies(const Frame frame) {
  const std::uint64_t end = frame.state().total_bytes;
  const std::uint64_t step = 4 * kWordsByWarp;
  for (std::uint64_t at = frame.plan.head_bytes + warp_in_grid() * step; at < end;
       at += warps_in_grid() * step) {
    assemble_words(frame, at, end);
  }
}

// ---- seal

/// A layer of fixed length that was found non-finite has a body until gaps are closed.
__device__ bool is_taken_out(const LayerState& layer) {
  return (layer.flags & LayerRecord::kNonFinite) != 0;
}

/// Where the word at `at` goes, which stands in the layer's body; where that is taken out, where what
/// follows goes.
__device__ std::uint64_t place_of_word(const Frame& frame, std::uint32_t number, std::uint64_t at) {
  const LayerState& layer = frame.layer(number);
  return frame(frame.plan.moved_to)[number] + (is_taken_out(layer) ? 0 : at - layer.body_at);
}

/// By a whole block: where bodies go, and the rows of those that are taken out.
__device__ void lay_out_without_gaps(const Frame& frame) {
  const std::uint64_t bodies = scan_blockwide<std::uint64_t>(
      frame.plan.count,
      [&](std::uint64_t i) {
        const LayerState& layer = frame.layer(static_cast<std::uint32_t>(i));
        return is_taken_out(layer) ? 0 : padded(layer.bytes);
      },
      [&](std::uint64_t i, std::uint64_t before) {
        const auto number = static_cast<std::uint32_t>(i);
        frame(frame.plan.moved_to)[number] = frame.plan.head_bytes + before;
        if (!is_taken_out(frame.layer(number))) return;
        LayerState nothing;
        nothing.flags = LayerRecord::kNonFinite;
        store_record(frame, number, frame.info(number).kind, nothing);
      });
  if (threadIdx.x != 0) return;
  MessageState& state = frame.state();
  state.open_bytes = state.total_bytes;
  state.total_bytes = frame.plan.head_bytes + bodies;
  frame.notice(Status::non_finite);
}

/// By a whole block: moves the words of a part down. They overwrite parts that blocks took before this one:
/// these read them without waiting for anything.
__device__ void move_part(const Frame& frame, std::uint32_t part) {
  constexpr unsigned kOwn = kMovedPart / sizeof(std::uint32_t) / kScanThreads;
  const std::uint64_t head = frame.plan.head_bytes, begin = head + part * kMovedPart;
  const std::uint64_t end = std::min(begin + kMovedPart, frame.state().open_bytes);
  std::uint32_t number = layer_of(frame, begin, {0, frame.plan.count});
  const std::uint32_t last = layer_of(frame, end - 4, {number, frame.plan.count});
  const std::uint64_t to = place_of_word(frame, number, begin);
  const std::uint64_t to_end =
      place_of_word(frame, last, end - 4) + (is_taken_out(frame.layer(last)) ? 0 : 4);
  if (to == begin && to_end == end) return;
  std::uint32_t words[kOwn];
  std::uint64_t at = begin + 4 * threadIdx.x;
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k, at += 4 * kScanThreads)
    words[k] = at < end ? load_word(frame.message + at) : 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t* const read = frame(frame.plan.read_parts);
    take_ticket(&read[part / 32], 1u << part % 32);
    for (std::uint64_t p = (to - head) / kMovedPart; p < part && head + p * kMovedPart < to_end;
         ++p)
      wait_until(&read[p / 32], [p](std::uint32_t bits) { return (bits >> p % 32 & 1u) != 0; });
  }
  __syncthreads();
  at = begin + 4 * threadIdx.x;
#pragma unroll
  for (unsigned k = 0; k < kOwn; ++k, at += 4 * kScanThreads) {
    if (at >= end) break;
    while (at >= frame.layer(number).body_at + padded(frame.layer(number).bytes)) ++number;
    if (!is_taken_out(frame.layer(number)))
      store_word(frame.message + place_of_word(frame, number, at), words[k]);
  }
}

/// By all blocks of a grid, where there are gaps.
__device__ void close_gaps(const Frame& frame) {
  MessageState& state = frame.state();
  std::uint32_t number = take_together(state.taken);
  if (number == 0) {
    lay_out_without_gaps(frame);
    take_together(state.laid_out);
    number = take_together(state.taken);
  }
  wait_together(state.laid_out, 1);
  const auto parts =
      static_cast<std::uint32_t>(divide_up(state.open_bytes - frame.plan.head_bytes, kMovedPart));
  for (; number <= parts; number = take_together(state.taken)) {
    move_part(frame, number - 1);
    take_together(state.moved);
  }
  wait_together(state.moved, parts);
}

__device__ void write_header(const Frame& frame, std::uint64_t* bytes, Status* status) {
  const MessageState& state = frame.state();
  if (lane() == 0) {
    const format::Header header{
        kFormatMajor,     kFormatMinor,     frame.plan.flags, state.total_bytes, state.key,
        frame.plan.kinds, frame.plan.count, state.price,      state.grid_step,   state.checksum};
    format::store_header(frame.message, header);
  }
  __syncwarp();
  const std::uint64_t checksum = head_checksum(frame.message, frame.plan.head_bytes);
  if (lane() != 0) return;
  core::store_le(frame.message + format::kHeadChecksumAt, checksum);
  *bytes = state.total_bytes;
  if (status == nullptr) return;
  const bool overspent =
      is_overspent(frame.pool(kAtomsPool)) || is_overspent(frame.pool(kGridPool));
  *status = static_cast<Status>(state.notices) | (overspent ? Status::overspent : Status::ok);
}

__global__ void __launch_bounds__(kScanThreads, 3)
    seal_message(const Frame frame, std::uint64_t* bytes, Status* status) {
  MessageState& state = frame.state();
  if (state.gaps != 0) close_gaps(frame);
  add_checksums(bodies_of(frame, state.head_bytes, state.total_bytes),
                {warp_in_grid(), warps_in_grid()}, state.checksum);
  if (is_last_block(state.tickets) && warp_in_block() == 0) write_header(frame, bytes, status);
}

}  // namespace

void place(const Frame& frame, Queue& queue) {
  if (frame.plan.places_planned()) return;
  constexpr std::uint64_t kTableBytesByBlock = 16384, kMostBlocks = 256;
  const std::uint64_t blocks = std::clamp<std::uint64_t>(
      divide_up(frame.plan.head_table_bytes, kTableBytesByBlock), 1, kMostBlocks);
  queue.launch_blocks(place_bodies, blocks, kScanThreads, 0, frame);
}

void assemble(const Frame& frame, Queue& queue) {
  constexpr std::uint64_t kMostWarps = 16384;
  if (!frame.plan.staged_layers) return;
  const std::uint64_t bodies = frame.plan.max_bytes - frame.plan.head_bytes;
  queue.launch_warps(assemble_bodies, std::min(divide_up(bodies, 4 * kWordsByWarp), kMostWarps),
                     frame);
}

void seal(const Frame& frame, std::uint64_t* bytes, Status* status, Queue& queue) {
  const std::uint64_t warps = checksum_warps(frame.plan.max_bytes - frame.plan.head_bytes);
  queue.launch_blocks(seal_message, divide_up(warps, kScanThreads / kLanes), kScanThreads, 0, frame,
                      bytes, status);
}

}  // namespace atomo::cuda
