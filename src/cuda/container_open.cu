// SPDX-License-Identifier: Apache-2.0
/// The container on the device: what decoding a message takes beside the methods. The outcome is
/// that of the host for any bytes (format/container_rules.hpp has the rules of both): of all that is
/// wrong with a message, the status of what the host would meet first.
///
/// check_messages A part of the grid a message. Its first block checks the head: one whose tables are those of
///                the plan, which nearly every head has, is compared in parallel, while a warp hashes it; any
///                other is walked by one thread, as on the host, and hashed then. The block scans the rows
///                for the bodies' places and checks the padding; a thread a layer checks the row and fills the
///                layer's state. Meanwhile the warps of the other blocks hash blocks of 4 KiB of the bodies
///                (checksum.cuh) from where a head as planned ends. The block that comes last compares, and
///                if the sum differs, takes back that layers have a body to decode. Behind any other head
///                that block hashes the bodies by itself.
/// round_output   A warp rounds 1,024 f32 values to halves, a lane four at a time (one Philox block).
/// close_messages A warp fills 4,096 entries of a non-finite layer with NaN; the first thread writes
///                the statuses.
///
/// Traffic: the message is read once, the least possible for a checksum; a half output costs 4
/// bytes an entry to read and 2 to write, beside what its method wrote. Shared memory: a block's
/// scan. Determinism: integers alone. The message may stand at any address; nothing is read outside
/// [message, message + capacity).

#include <limits>

#include "core/philox.hpp"
#include "cuda/checksum.cuh"
#include "cuda/container.cuh"
#include "cuda/cub.cuh"
#include "cuda/entries.cuh"
#include "cuda/half_rounding.cuh"
#include "format/container_rules.hpp"

namespace atomo::cuda {
namespace {

using format::Header;
using format::KindFields;
using format::LayerRecord;
using format::padded;

/// The threads of the block tell each other these.
struct HeadShared {
  std::uint64_t head_bytes, checksum;
  std::uint32_t status;
  std::uint32_t sound;
};

__device__ bool is_set(const LayerRecord& row, std::uint8_t flag) {
  return (row.flags & flag) != 0;
}

/// Whether the head may have the plan's tables, by its header.
__device__ bool may_be_planned(const FramePlan& plan, ConstBytes message, const Header& header) {
  return header.layers == plan.count && header.kinds == plan.kinds && header.flags == plan.flags &&
         message.size() >= plan.head_bytes;
}

/// The thread's share of the plan's kinds, names and rows' kinds: whether the head has the same bytes.
__device__ bool has_planned_tables(const Frame& frame, ConstBytes message, unsigned thread,
                                   unsigned threads) {
  const FramePlan& plan = frame.plan;
  const std::byte* const expected = frame(plan.head_tables);
  const std::byte* const tables = message.data() + plan.head_bytes - plan.head_table_bytes;
  bool same = true;
  // No load waits for the comparison before it.
#pragma unroll 4
  for (std::uint64_t i = thread; i < plan.head_table_bytes / 4; i += threads)
    same &= load_word(tables + 4 * i) == load_word(expected + 4 * i);
#pragma unroll 4
  for (std::uint32_t i = thread; i < plan.count; i += threads)
    same &= format::read_record(message.data(), i).kind == frame.info(i).kind;
  return same;
}

/// One thread checks the tables of any head, and that rows use kinds in order.
__device__ void walk_head(const Frame& frame, ConstBytes message, const Header& header,
                          HeadShared& found) {
  format::TablePlaces places;
  std::uint32_t* const kinds_at = frame(frame.plan.kinds_at);
  const Status status =
      format::walk_tables(message, header, places, [&](std::uint32_t kind, std::size_t at) {
        if (kind < frame.plan.count) kinds_at[kind] = static_cast<std::uint32_t>(at);
      });
  found.status = static_cast<std::uint32_t>(status);
  found.head_bytes = places.head_bytes;
  if (failed(status)) return;
  std::uint32_t used = 0;
  bool in_order = true;
  for (std::uint32_t i = 0; i < header.layers && in_order; ++i)
    in_order = format::follows(format::read_record(message.data(), i).kind, used);
  found.sound = in_order && used == header.kinds ? 1 : 0;
}

/// By a whole block: fills `found`, and returns whether the tables are the plan's. A warp hashes the
/// head while the others compare it with the plan's; one that differs is walked, and hashed again.
__device__ bool find_head(const Frame& frame, ConstBytes message, const Header& header,
                          HeadShared& found) {
  bool planned = may_be_planned(frame.plan, message, header);
  if (threadIdx.x == 0) found = {frame.plan.head_bytes, 0, 0, 1};
  for (bool walks = !planned;; walks = true) {
    if (walks && threadIdx.x == 0) {
      found = {0, 0, 0, 0};
      walk_head(frame, message, header, found);
    }
    __syncthreads();
    bool same = true;
    if (warp_in_block() == 0) {
      if (found.status == 0) {
        const std::uint64_t checksum = head_checksum(message.data(), found.head_bytes);
        if (lane() == 0) found.checksum = checksum;
      }
    } else if (!walks) {
      same = has_planned_tables(frame, message, threadIdx.x - kLanes, blockDim.x - kLanes);
    }
    planned = __syncthreads_and(same && !walks ? 1 : 0) != 0;
    if (planned || walks) return planned;
  }
}

/// Rows behind their kinds: flags, lengths, padding. True when they fit the message; by a whole
/// block. `zeros`: whether all padding is zero.
__device__ bool scan_records(const Frame& frame, ConstBytes message, const Header& header,
                             std::uint64_t head_bytes, bool& zeros) {
  bool sound = true, clean = true;
  const std::uint64_t bodies = scan_blockwide<std::uint64_t>(
      header.layers,
      [&](std::uint64_t i) {
        const LayerRecord row = format::read_record(message.data(), i);
        sound = sound && (row.flags & ~LayerRecord::kAllFlags) == 0;
        return padded(row.bytes);
      },
      [&](std::uint64_t i, std::uint64_t before) {
        const LayerRecord row = format::read_record(message.data(), i);
        const std::uint64_t begin = head_bytes + before;
        if (i < frame.plan.count) frame.layer(static_cast<std::uint32_t>(i)).body_at = begin;
        if (begin + padded(row.bytes) > message.size()) return;
        for (std::uint64_t at = row.bytes; at < padded(row.bytes); ++at)
          clean = clean && message[begin + at] == std::byte{0};
      });
  zeros = __syncthreads_and(clean ? 1 : 0) != 0;
  return __syncthreads_and(sound ? 1 : 0) != 0 && head_bytes + bodies == message.size();
}

/// Compares the layer's kind with the plan's; dtypes may differ.
__device__ Status check_kind(const Frame& frame, ConstBytes message, std::uint16_t kind,
                             std::uint32_t layer) {
  const PlannedKind& expected = frame(frame.plan.planned_kinds)[frame.info(layer).kind];
  KindFields found;
  bool same_shape = true;
  std::size_t at = frame(frame.plan.kinds_at)[kind];
  const bool read = format::read_kind(message, at, found, [&](int i, std::int64_t d) {
    same_shape = same_shape && expected.dims[i] == d;
  });
  if (!read || !format::valid_kind(found)) return Status::corrupt;
  if (!same_shape || found.rank != expected.fields.rank) return Status::shape_mismatch;
  found.dtype = expected.fields.dtype;
  return found == expected.fields ? Status::ok : Status::codec_mismatch;
}

/// Checks one layer's row against its kind and takes the own price off its body; fills the state.
__device__ Status check_layer(const Frame& frame, ConstBytes message, const Header& header,
                              std::uint32_t i) {
  const PlannedLayer& info = frame.info(i);
  LayerState& layer = frame.layer(i);
  const LayerRecord row = format::read_record(message.data(), i);
  layer.flags = row.flags;
  // No method of the device has a lossless stage.
  if (is_set(row, LayerRecord::kLossless)) return Status::codec_mismatch;
  if (const Status s = format::check_record(row, info.method, info.n); failed(s)) return s;
  if (info.n == 0) return Status::ok;
  if (is_set(row, LayerRecord::kNonFinite)) {
    atomicAdd(&frame.state().non_finite, 1u);
    return Status::non_finite;
  }
  std::uint64_t own = 0;
  const format::KindFields& kind = frame(frame.plan.planned_kinds)[info.kind].fields;
  if (!format::has_form(kind, row.form())) return Status::corrupt;
  layer.price = format::header_price(header, info.method);
  if (is_set(row, LayerRecord::kOwnPrice)) {
    own = format::kPriceBytes;
    if (row.bytes <= own) return Status::corrupt;
    layer.price = __uint_as_float(load_word(message.data() + layer.body_at));
    if (!format::is_own_price(layer.price)) return Status::corrupt;
  }
  if (row.form() == format::kGridForm) {
    if (is_set(row, LayerRecord::kThinned) || is_set(row, LayerRecord::kCentred))
      return Status::corrupt;
    layer.price *= format::kGridStepOfPrice;
  }
  layer.body_at += own;
  layer.bytes = row.bytes - own;
  layer.decodes = layer.y != nullptr ? 1 : 0;
  return Status::ok;
}

/// The head's status, with the head found and the rows scanned; by a whole block. `later`: what
/// it comes to when the checksum of the bodies holds.
__device__ Status check_head(const Frame& frame, ConstBytes message, const Header& header,
                             const HeadShared& walked, Status& later) {
  if (walked.status != 0) return static_cast<Status>(walked.status);
  if (walked.checksum != core::load_le<std::uint64_t>(message.data() + format::kHeadChecksumAt))
    return Status::bad_checksum;
  if (!format::is_price(header.price) || !format::is_price(header.grid_step))
    return Status::corrupt;
  bool zeros = true;
  if (!scan_records(frame, message, header, walked.head_bytes, zeros) || walked.sound == 0)
    return Status::corrupt;
  later = !zeros                              ? Status::corrupt
          : header.layers != frame.plan.count ? Status::shape_mismatch
                                              : Status::ok;
  return Status::ok;
}

__device__ void open_layers(const Frame& frame, ConstBytes message, const Header& header,
                            bool planned) {
  for (std::uint32_t i = threadIdx.x; i < frame.plan.count; i += blockDim.x) {
    Status status = Status::ok;
    if (!planned)
      status = check_kind(frame, message, format::read_record(message.data(), i).kind, i);
    if (!failed(status)) status = check_layer(frame, message, header, i);
    if (failed(status))
      frame.refuse(i, status);
    else
      frame.notice(status);
  }
}

/// By a whole block: the head, and what it says of the layers.
__device__ void open_head(const Frame& frame) {
  auto& found = shared<HeadShared>();
  MessageState& state = frame.state();
  const ConstBytes all(frame.message, static_cast<std::size_t>(frame.capacity));
  // Every thread reads the header: what follows is the same for all of them.
  Header header;
  Status status = format::check_header(all, header), later = Status::ok;
  if (!failed(status)) {
    const ConstBytes message = all.first(static_cast<std::size_t>(header.total_bytes));
    const bool planned = find_head(frame, message, header, found);
    status = check_head(frame, message, header, found, later);
    if (!failed(status) && !failed(later)) open_layers(frame, message, header, planned);
  }
  if (threadIdx.x != 0) return;
  state.head_status = static_cast<std::uint32_t>(status);
  state.later_status = static_cast<std::uint32_t>(later);
  if (failed(status)) return;
  state.key = header.key;
  state.price = header.price;
  state.grid_step = header.grid_step;
  state.total_bytes = header.total_bytes;
  state.head_bytes = found.head_bytes;
  state.stated_checksum = header.body_checksum;
}

/// By a whole warp: its share of the bodies' checksum, if the head is as long as planned. A header that is
/// none is the head's affair. The grid is one for the longest message: many warps have no share.
__device__ void hash_bodies(const Frame& frame, HashShare own) {
  if (frame.capacity < format::kHeaderBytes) return;
  const auto total = core::load_le<std::uint64_t>(frame.message + format::kTotalAt);
  const std::uint64_t head = frame.plan.head_bytes;
  if (total > frame.capacity || total <= head + own.warp * format::kChecksumBlock) return;
  add_checksums(bodies_of(frame, head, total), own, frame.state().checksum);
}

/// By the block that comes last, the head being sound: whether the bodies have the checksum that it states.
__device__ bool bodies_hold(const Frame& frame) {
  MessageState& state = frame.state();
  if (state.head_bytes != frame.plan.head_bytes) {
    __syncthreads();
    if (threadIdx.x == 0) state.checksum = 0;
    __syncthreads();
    add_checksums(bodies_of(frame, state.head_bytes, state.total_bytes),
                  {warp_in_block(), kScanThreads / kLanes}, state.checksum);
    __syncthreads();
  }
  return state.checksum == state.stated_checksum;
}

__global__ void __launch_bounds__(kScanThreads, 2) check_messages(const Frames frames) {
  constexpr unsigned kWarps = kScanThreads / kLanes;
  const Frame frame = frames[blockIdx.y];
  MessageState& state = frame.state();
  if (blockIdx.x == 0)
    open_head(frame);
  else
    hash_bodies(frame, {std::uint64_t{blockIdx.x - 1} * kWarps + warp_in_block(),
                        std::uint64_t{gridDim.x - 1} * kWarps});
  if (!is_last_block(state.tickets)) return;
  if (failed(static_cast<Status>(state.head_status))) return;
  const auto status =
      bodies_hold(frame) ? static_cast<Status>(state.later_status) : Status::bad_checksum;
  __syncthreads();  // all have read the state
  if (!failed(status)) return;
  for (std::uint32_t i = threadIdx.x; i < frame.plan.count; i += blockDim.x)
    frame.layer(i).decodes = 0;
  if (threadIdx.x != 0) return;
  state.non_finite = 0;
  state.head_status = static_cast<std::uint32_t>(status);
}

__global__ void round_output(const Frame frame, const Split halves) {
  if (warp_in_grid() >= halves.units) return;
  const UnitOf unit = find_unit(frame, halves, warp_in_grid());
  const LayerState& layer = frame.layer(unit.job);
  if (layer.decodes == 0) return;
  const std::uint64_t n = frame.info(unit.job).n, first = unit.index * kHalfUnit;
  const std::uint64_t end = std::min(first + kHalfUnit, n);
  const Key key = frame.key(unit.job);
  const HalfDraws draws{Philox(key, Purpose::output), Philox(key, Purpose::output_low)};
  const Entries values{layer.y, DType::f32};
  auto* const out = static_cast<std::uint16_t*>(layer.callers);
  const bool aligned = reinterpret_cast<std::uintptr_t>(out) % 8 == 0;
  bool overflow = false;
  for (std::uint64_t i = first + 8 * lane(); i < end; i += 8 * kLanes) {
    float v[8];
    eight_entries(values, i, end, v);
    std::uint32_t pairs[4];
    round_eight(v, layer.callers_dtype, draws, i, pairs, overflow);
#pragma unroll
    for (unsigned k = 0; k < 4; k += 2) {
      if (aligned && i + 2 * k + 4 <= end) {
        *reinterpret_cast<uint2*>(out + i + 2 * k) = make_uint2(pairs[k], pairs[k + 1]);
        continue;
      }
#pragma unroll
      for (unsigned j = 2 * k; j < 2 * k + 4; ++j) {
        if (i + j < end) out[i + j] = static_cast<std::uint16_t>(pairs[j / 2] >> (j % 2 * 16));
      }
    }
  }
  if (overflow) frame.notice(Status::overflow);
}

/// NaNs into one unit of a layer, as the host rounds them into halves.
__device__ void fill_unit(const Frame& frame, UnitOf unit, bool add) {
  const LayerState& layer = frame.layer(unit.job);
  if ((layer.flags & LayerRecord::kNonFinite) == 0) return;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  bool overflow = false;
  const std::uint16_t half =
      layer.callers_dtype == DType::f16 ? to_f16(kNan, overflow) : to_bf16(kNan, overflow);
  const std::uint64_t first = unit.index * kFillEntries;
  const std::uint64_t end = std::min(first + kFillEntries, frame.info(unit.job).n);
  for (std::uint64_t i = first + lane(); i < end; i += kLanes) {
    if (layer.callers != nullptr && !add)
      static_cast<std::uint16_t*>(layer.callers)[i] = half;
    else
      layer.y[i] = kNan;
  }
}

__device__ Status status_of(const MessageState& state) {
  if (const auto head = static_cast<Status>(state.head_status); failed(head)) return head;
  if (state.fault != 0) return static_cast<Status>(~state.fault & 0xFFFFu);
  return static_cast<Status>(state.notices);
}

__global__ void close_messages(const Frames frames, const DecodeInto into, const StatusWords words,
                               bool follows) {
  Status all = Status::ok;
  const bool tells = blockIdx.x == 0 && threadIdx.x == 0;
  if (tells && follows && words.all != nullptr) all = *words.all;
  for (std::uint32_t m = 0; m < frames.count; ++m) {
    const Frame frame = frames[m];
    const MessageState& state = frame.state();
    if (state.non_finite != 0) {
      for (std::uint64_t u = warp_in_grid(); u < frame.plan.fills.units; u += warps_in_grid())
        fill_unit(frame, find_unit(frame, frame.plan.fills, u), into.add);
    }
    const Status own = status_of(state);
    if (!failed(all)) all = failed(own) ? own : all | own;
    if (tells && words.each != nullptr) words.each[m] = own;
  }
  if (tells && words.all != nullptr) *words.all = all;
}

/// Behind `begin`.
void check(const Frames& frames, Queue& queue) {
  std::uint64_t longest = 0;
  for (std::uint32_t m = 0; m < frames.count; ++m)
    longest = std::max(longest, frames.places[m].capacity);
  const std::uint64_t warps = divide_up(checksum_warps(longest), frames.count);
  queue.launch_blocks_each(check_messages, 1 + divide_up(warps, kScanThreads / kLanes),
                           frames.count, kScanThreads, 0, frames);
}

}  // namespace

void open(const Frames& frames, ConstBytes tables, std::span<const TensorView> views,
          CallScratch<float> f32_room, Queue& queue) {
  begin(frames, tables, views, f32_room, queue);
  check(frames, queue);
}

void open_own(const Frames& frames, ConstBytes tables, std::span<const ConstTensorView> views,
              const Elsewhere& elsewhere, Queue& queue) {
  begin_own(frames, tables, views, elsewhere, queue);
  check(frames, queue);
}

void round_halves(const Frame& frame, Split halves, Queue& queue) {
  queue.launch_warps(round_output, halves.units, frame, halves);
}

void close(const Frames& frames, DecodeInto into, StatusWords words, Queue& queue, bool follows) {
  constexpr std::uint64_t kMostWarps = 2048;  // nearly always with nothing to fill
  const std::uint64_t units = frames.first.plan.fills.units;
  queue.launch_warps(close_messages, std::clamp<std::uint64_t>(units, 1, kMostWarps), frames, into,
                     words, follows);
}

}  // namespace atomo::cuda
