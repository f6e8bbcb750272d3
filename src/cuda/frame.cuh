// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A message on the device: what every operation shares. The message's head, where bodies go,
/// prices and statuses are kept here; the operations fill and read bodies.
///
/// Encoding goes through stages, each a few launches over all layers at once:
///   begin      the workspace's zeroed part, the call's pointers and key           (container_begin.cu)
///   analyse    what sizes and prices follow from: norms, histograms               (operations)
///   price      the price of each pool from its budget                             (price.cu, coordinate_price.cu)
///   size       bodies of varying length, in the workspace, and their lengths      (operations)
///   place      where each body stands; rows and head                              (container.cu)
///   write      bodies of fixed length, straight into the message                  (operations)
///   assemble   bodies of varying length, from the workspace                       (container.cu)
///   seal       non-finite layers taken out, checksums                             (container.cu)
/// Decoding goes through three:
///   open       the head read and checked                                          (container_open.cu)
///   decode     values, from the bodies                                            (operations)
///   close      half outputs, the checksum of the bodies, the call's status        (container.cu)

#include "core/half.hpp"
#include "cuda/gpu.cuh"
#include "cuda/plan.hpp"
#include "format/layer_record.hpp"
#include "price/budget.hpp"

namespace atomo::price {
struct LearntPrices;
struct RankState;
}

namespace atomo::cuda {

/// Layers that share a price, numbers of `FramePlan::pools`.
enum PoolNumber : std::uint32_t { kAtomsPool = 0, kGridPool = 1 };

/// A price and how it is found (price/price_input.hpp); zeroed, then filled by `begin` and the price
/// stage.
struct PoolPrice {
  std::uint64_t budget_256 = 0;  ///< bits for the pool's bodies, in 1/256
  float given = 0;               ///< > 0: the price of this step, nothing is searched
  std::uint32_t alone = 0;       ///< 1: the layer finds its own price, which stands in its body
  float price = 0;               ///< found or given; 0 when there is nothing to send
  std::uint32_t low = 0, high = 0, lowest = 0;  ///< codes of the bisection
  std::uint32_t unpaid = 0;  ///< 1: the bits at `high` do not fit, a message is not worth sending
};

/// The message's price was searched and is above its budget.
__device__ inline bool is_overspent(const PoolPrice& pool) {
  return pool.unpaid != 0 && pool.alone == 0 && !(pool.given > 0);
}

/// A layer in the tables.
struct PlannedLayer {
  std::uint64_t n = 0;
  std::uint64_t fixed_bytes = 0;  ///< of the body where its length is known beforehand, else 0
  std::uint32_t params = 0;
  std::uint16_t kind = 0;  ///< its number in the message's table of kinds
  MethodId method = MethodId::identity;
  DType dtype = DType::f32;  ///< of what is encoded: f32 where a memory stands in front
  std::uint64_t apart_at =
      0;  ///< decoding: of the layer's entries among those of `FramePlan::apart`
  std::uint64_t body_at = 0;  ///< bytes from the start of a message whose places are planned
};

/// A layer in the workspace; zeroed, then filled by `begin` and `open`.
struct LayerState {
  const void* x = nullptr;  ///< encoding: what is encoded, aligned to its entries
  float* y = nullptr;       ///< decoding: f32 values go here; null: nowhere
  /// The caller's tensor, where x or y is room for it: a gradient that a memory is added to, or a
  /// tensor of halves to decode into.
  void* callers = nullptr;
  DType callers_dtype = DType::f32;  ///< its entries
  std::uint64_t bytes =
      0;  ///< of the body, own price included, padding not; decoding: of the body proper
  std::uint64_t body_at = 0;  ///< bytes from the message's start; decoding: of the body proper
  float price = 0;            ///< that the layer is sent at
  std::uint32_t flags = 0;    ///< format::LayerRecord's; atomicOr
  // Encoding, of bodies of varying length:
  std::uint32_t front_words = 0;  ///< u32 between the own price and what is staged
  std::uint32_t front[2] = {};
  std::uint64_t second_at = 0;  ///< bytes of the first of two staged parts; 0: there is one
  std::uint32_t decodes =
      0;  ///< decoding: 1 when there is a body proper to read (n > 0, finite, no fault yet)
};

/// Which of its forms a layer's body has, where its method knows several (decoding).
__device__ inline std::uint32_t form_of(const LayerState& layer) {
  return layer.flags >> format::LayerRecord::kFormShift & 3u;
}

/// Bodies of varying length, as the size stage leaves them: a prefix of whole bytes, then pieces,
/// bit streams that follow one another without gaps. `assemble` copies them behind the own price
/// and the layer's front. A body may have a second part, staged by itself, at a multiple of 4.
struct StagedBody {
  std::uint64_t prefix = 0;  ///< in the workspace, bytes from its start, a multiple of 4
  std::uint64_t prefix_bytes = 0;
  std::uint64_t slots = 0;       ///< of piece 0, likewise; bits from the lowest of each u32 on
  std::uint64_t slot_words = 0;  ///< u32 from one piece to the next
  std::uint64_t ends = 0;  ///< u64 for each piece, likewise: where it ends in the stream, in bits
  std::uint64_t pieces = 0;
};

/// On the device, a layer each: pairs that a message's sketches look for, and what the next ones
/// will. Null where nothing is learnt.
struct LearntRanks {
  const price::RankState* now = nullptr;
  price::RankState* next = nullptr;     ///< of the next step
  price::RankState* at_once = nullptr;  ///< `now` where the next message follows at once, or null
};

/// One a message, in the workspace; zeroed, then filled by `begin` and `open`.
struct MessageState {
  Key key;                         ///< `tensor` is the first layer's; the step already the device's
  float price = 0, grid_step = 0;  ///< of the header
  std::uint64_t total_bytes = 0, head_bytes = 0;
  unsigned long long checksum = 0;  ///< of the bodies, a sum in any order
  std::uint32_t tickets = 0;        ///< of blocks that are done
  std::uint32_t gaps = 0;           ///< > 0: a layer of fixed length was found non-finite
  std::uint32_t non_finite = 0;     ///< decoding: layers to fill with NaN
  std::uint32_t notices = 0;        ///< flags of a Status; atomicOr
  std::uint32_t fault =
      0;  ///< decoding: ~(layer << 16 | status) of the first layer that failed; atomicMax
  /// A Status, decoding: the head's; from the end of `open` on also that of what stands behind the
  /// checksum of the bodies.
  std::uint32_t head_status = 0;
  price::StreamedCap cap;                 ///< encoding one layer of a step
  price::LearntPrices* learnt = nullptr;  ///< encoding: of the model that keeps the prices, or null
  LearntRanks ranks;                      ///< encoding: of the layers' sketches
  std::uint32_t later_status = 0;         ///< what the head comes to if that checksum holds
  std::uint64_t stated_checksum = 0;      ///< decoding: of the bodies, as the header has it
  // Encoding, where there are gaps:
  std::uint32_t taken = 0;       ///< turns: the first one finds places, each other one moves a part
  std::uint32_t laid_out = 0;    ///< 1: places are known
  std::uint32_t moved = 0;       ///< parts
  std::uint64_t open_bytes = 0;  ///< `total_bytes` before they are closed
};

/// A kind of the head's tables, as decoding compares it.
struct PlannedKind {
  format::KindFields fields;
  std::int64_t dims[Shape::kMaxRank] = {};
};

/// Entries that are filled by a warp.
inline constexpr std::uint64_t kFillEntries = 4096;

/// Bytes of bodies that a block moves at once where gaps are closed.
inline constexpr std::uint64_t kMovedPart = 16384;

/// The shared part of a plan.
struct FramePlan {
  Table<PlannedLayer> infos;
  Table<std::byte> head_tables;      ///< kinds, names and padding, as in the message
  Table<PlannedKind> planned_kinds;  ///< by number
  Split fills;                       ///< a job a layer, a unit for kFillEntries of its entries
  Scratch<MessageState> message;
  Scratch<LayerState> layers;
  Scratch<PoolPrice> pools;         ///< two
  Scratch<std::uint32_t> kinds_at;  ///< decoding: where the message's kinds start, one a layer
  Scratch<StagedBody> staged;       ///< one a layer, then the second parts, likewise
  // Encoding, where gaps may have to be closed:
  Scratch<std::uint32_t> read_parts;  ///< a bit for each kMovedPart of bodies that was read; zeroed
  Scratch<std::uint64_t> moved_to;    ///< one a layer: its `body_at` afterwards
  /// Decoding: values that are added a launch later, of kMessagesOfTurn messages, `apart_entries` each.
  CallScratch<float> apart;
  std::uint64_t apart_entries = 0;
  /// Bytes of the workspace that hold what is a message's own; `begin` fills them.
  std::uint64_t states_begin = 0, states_end = 0;
  std::uint32_t count = 0;  ///< layers
  std::uint32_t kinds = 0;
  std::uint64_t head_bytes = 0, head_table_bytes = 0, max_bytes = 0;
  /// Set when all is planned: what of a message's part of the workspace is cleared, the part, and
  /// all parts.
  std::uint64_t zeroed_bytes = 0, message_bytes = 0, messages_bytes = 0;
  std::uint16_t flags = 0;     ///< of the header
  bool pooled[2] = {};         ///< layers with a budget share the pool's price
  bool staged_layers = false;  ///< there are bodies of varying length

  /// Whether bodies stand where the plan says: all are of fixed length. Gaps are closed in the end.
  [[nodiscard]] __host__ __device__ bool places_planned() const { return !staged_layers; }
};

struct Entries;

/// What every kernel takes: the plan's places as pointers.
struct Frame {
  FramePlan plan;
  const std::byte* tables = nullptr;
  std::byte* work = nullptr;       ///< this message's part of the workspace
  std::byte* call_work = nullptr;  ///< the call's
  std::byte* message = nullptr;    ///< any alignment; only read when decoding
  std::uint64_t capacity = 0;      ///< bytes at `message`

  template <typename T>
  __host__ __device__ const T* operator()(Table<T> place) const {
    return reinterpret_cast<const T*>(tables + place.at);
  }
  template <typename T>
  __host__ __device__ T* operator()(Scratch<T> place) const {
    return reinterpret_cast<T*>(work + place.at);
  }
  template <typename T>
  __host__ __device__ T* operator()(CallScratch<T> place) const {
    return reinterpret_cast<T*>(call_work + place.at);
  }
  __device__ const PlannedLayer& info(std::uint32_t layer) const {
    return (*this)(plan.infos)[layer];
  }
  __device__ LayerState& layer(std::uint32_t i) const { return (*this)(plan.layers)[i]; }
  __device__ Entries entries(std::uint32_t layer) const;
  __device__ MessageState& state() const { return *(*this)(plan.message); }
  __device__ PoolPrice& pool(PoolNumber number) const { return (*this)(plan.pools)[number]; }
  /// The values of a layer that message `slot` of a turn keeps apart, at a multiple of 128 bytes.
  __device__ float* apart(std::uint32_t layer, std::uint32_t slot) const {
    return (*this)(plan.apart) + slot * plan.apart_entries + info(layer).apart_at;
  }
  /// The key under which a layer draws.
  __device__ Key key(std::uint32_t layer) const {
    Key key = state().key;
    key.tensor = static_cast<std::uint16_t>(key.tensor + layer);
    return key;
  }
  /// Notes what is no failure.
  __device__ void notice(Status status) const {
    atomicOr(&state().notices, static_cast<std::uint32_t>(status));
  }
  /// An entry of the layer is Inf or NaN (encoding).
  __device__ void mark_non_finite(std::uint32_t layer) const {
    atomicOr(&(*this)(plan.layers)[layer].flags, std::uint32_t{format::LayerRecord::kNonFinite});
  }
  /// The layer's body is refused; of several layers the first one's status is reported.
  __device__ void refuse(std::uint32_t layer, Status status) const {
    atomicMax(&state().fault, ~(layer << 16 | static_cast<std::uint32_t>(status)));
  }
};

/// How decoded values meet the output: y[i] = v, or y[i] = y[i] + (alpha * v), two roundings.
struct DecodeInto {
  bool add = false;
  float alpha = 1;
};

/// Messages that are decoded together at most: the workspace has parts for so many. A call on more
/// goes on with the next of them.
inline constexpr std::uint32_t kMessagesAtOnce = 8;

/// Messages whose values are in the workspace at once where they take 4 bytes an entry: two fill a GPU,
/// and more would take as much again.
inline constexpr std::uint32_t kMessagesOfTurn = 2;

/// Of the messages of a call, those whose turn it is.
struct MessageRange {
  std::uint32_t first = 0, count = 1;
};

/// Messages of one model that are decoded together, in their order. Each has a part of the workspace
/// for itself; what they share stands behind these.
struct Frames {
  Frame first;
  struct Place {
    std::byte* message = nullptr;
    std::uint64_t capacity = 0;
  };
  Place places[kMessagesAtOnce];
  std::uint32_t count = 0;

  __host__ __device__ Frame operator[](std::uint32_t m) const {
    Frame frame = first;
    frame.work += m * first.plan.message_bytes;
    frame.message = places[m].message;
    frame.capacity = places[m].capacity;
    return frame;
  }
};

/// A unit and the job that it belongs to; false where there is none.
struct UnitOf {
  std::uint32_t job = 0;
  std::uint64_t index = 0;                   ///< of the unit within its job
  std::uint64_t number = ~std::uint64_t{0};  ///< of the unit among those of all jobs
  __device__ explicit operator bool() const { return ~number != 0; }
};

/// The job that a unit belongs to.
__device__ inline UnitOf find_unit(const Frame& frame, const Split& split, std::uint64_t unit) {
  const std::uint64_t* const begin = frame(split.begin);
  std::uint32_t low = 0, high = split.jobs - 1;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (begin[middle] <= unit)
      low = middle;
    else
      high = middle - 1;
  }
  return {low, unit - begin[low], unit};
}

/// The same by a whole warp that looks for one unit: 32 jobs are compared at once.
__device__ inline UnitOf find_unit_together(const Frame& frame, const Split& split,
                                            std::uint64_t unit) {
  const std::uint64_t* const begin = frame(split.begin);
  std::uint32_t job = 0;  // the first of `left` that it can be
  for (std::uint32_t left = split.jobs; left > 1;) {
    const std::uint32_t step = (left + kLanes - 1) / kLanes, ahead = lane() * step;
    const bool begun = ahead < left && begin[job + ahead] <= unit;
    const unsigned last =
        31 -
        static_cast<unsigned>(__clz(static_cast<int>(__ballot_sync(kAllLanes, begun ? 1 : 0))));
    job += last * step;
    left -= last * step;
    left = left < step ? left : step;
  }
  return {job, unit - begin[job], unit};
}

/// The unit of this warp: how a kernel of a warp a unit begins.
__device__ inline UnitOf unit_of_warp(const Frame& frame, const Split& split) {
  const std::uint64_t unit = warp_in_grid();
  return unit < split.units ? find_unit_together(frame, split, unit) : UnitOf{};
}

/// Its job too, where an operation has one table of jobs and units.
template <typename Job>
struct JobUnit : UnitOf {
  const Job* entry = nullptr;  ///< of the table
};
template <typename Job>
__device__ inline JobUnit<Job> unit_of_warp(const Frame& frame, const Jobs<Job>& jobs) {
  const UnitOf at = unit_of_warp(frame, jobs.units);
  return {at, at ? frame(jobs.table) + at.job : nullptr};
}

/// Defines `write` and `decode` of an operation whose two kernels take a warp a unit of the plan's jobs.
#define ATOMO_LAUNCH_UNITS(Plan, write_kernel, decode_kernel)                          \
  void write(const Frame& frame, const Plan& plan, Queue& queue) {                     \
    queue.launch_warps(write_kernel, plan.jobs.units.units, frame, plan);              \
  }                                                                                    \
  void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue) { \
    queue.launch_warps(decode_kernel, plan.jobs.units.units, frames, plan, into);      \
  }

/// from_f16 without its branches: the exponent of f16 in the place of that of f32 is 112 too small, which an exact
/// product makes up for, subnormal or not.
__device__ inline float wide_f16(std::uint16_t half) {
  const std::uint32_t bits = (half & 0x7FFFu) << 13, sign = (half & 0x8000u) << 16;
  const std::uint32_t finite = __float_as_uint(__uint_as_float(bits) * 0x1p112f);
  return __uint_as_float((bits < 0x0F800000u ? finite : bits | 0x7F800000u) | sign);
}
__device__ inline float wide_half(std::uint16_t half, bool f16) {
  return f16 ? wide_f16(half) : from_bf16(half);
}

/// The entries of a tensor, which is aligned to its entries alone, as f32.
struct Entries {
  const void* x = nullptr;
  DType dtype = DType::f32;

  /// Those from entry `first` on.
  __device__ Entries from(std::uint64_t first) const {
    return {static_cast<const std::byte*>(x) + first * size_of(dtype), dtype};
  }
  __device__ float operator()(std::uint64_t i) const {
    if (dtype == DType::f32) return static_cast<const float*>(x)[i];
    const std::uint16_t half = static_cast<const std::uint16_t*>(x)[i];
    return wide_half(half, dtype == DType::f16);
  }
  /// Entries i to i + 3; those from n on are 0. One vector load where the address allows it.
  __device__ void four(std::uint64_t i, std::uint64_t n, float (&out)[4]) const {
    const float* const at = static_cast<const float*>(x) + i;
    if (dtype == DType::f32 && i + 4 <= n && reinterpret_cast<std::uintptr_t>(at) % 16 == 0) {
      const float4 v = *reinterpret_cast<const float4*>(at);
      out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
      return;
    }
    const std::uint16_t* const half = static_cast<const std::uint16_t*>(x) + i;
    if (dtype != DType::f32 && i + 4 <= n && reinterpret_cast<std::uintptr_t>(half) % 8 == 0) {
      const uint2 v = *reinterpret_cast<const uint2*>(half);
      const std::uint32_t pairs[2] = {v.x, v.y};
      for (unsigned k = 0; k < 4; ++k)
        out[k] = wide_half(static_cast<std::uint16_t>(pairs[k / 2] >> (16 * (k % 2))),
                           dtype == DType::f16);
      return;
    }
    for (unsigned k = 0; k < 4; ++k) out[k] = i + k < n ? (*this)(i + k) : 0.0f;
  }
};

__device__ inline Entries Frame::entries(std::uint32_t i) const {
  return {layer(i).x, info(i).dtype};
}

__device__ inline bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u;
}

// ---- words of a message, which may stand at any address

__device__ inline std::uint32_t load_word(const std::byte* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 4 == 0)
    return *reinterpret_cast<const std::uint32_t*>(p);
  std::uint32_t word = 0;
  for (unsigned k = 0; k < 4; ++k) word |= static_cast<std::uint32_t>(p[k]) << (8 * k);
  return word;
}
__device__ inline void store_word(std::byte* p, std::uint32_t word) {
  if (reinterpret_cast<std::uintptr_t>(p) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(p) = word;
    return;
  }
#pragma unroll 1  // a branch that nobody takes, where four stores would be predicated
  for (unsigned k = 0; k < 4; ++k) p[k] = static_cast<std::byte>(word >> (8 * k));
}
/// The first `count` of 4 bytes, for the end of a body.
__device__ inline void store_bytes(std::byte* p, std::uint32_t word, unsigned count) {
  for (unsigned k = 0; k < count; ++k) p[k] = static_cast<std::byte>(word >> (8 * k));
}

}  // namespace atomo::cuda
