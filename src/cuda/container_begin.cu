// SPDX-License-Identifier: Apache-2.0
/// The first launch of a message, encoded or decoded: the workspace's zeros, the call's key, prices
/// and tensors, and the tables of a plan that is made anew for every call. Pointers and tables
/// travel in the launch's argument, so that a captured graph keeps them.
///
/// A thread fills the state of a layer, whole, in memory that nobody clears; all threads clear the
/// rest in words of 16 bytes, 4 KiB a warp. So one launch does both, and no order between its parts
/// matters. A warp takes four layers: its lanes read the argument at different places, one after the
/// other, and each place may have to come from memory first. A model of very many layers takes a launch
/// for every kTensorsInLaunch. Where all bodies of a message that is encoded are of fixed length, their
/// places are planned, and rows, tables and padding of the message are written here as well.
///
/// Traffic: a write of the zeroed part of the workspace, which is aligned to 256 bytes. No shared
/// memory, nothing random.

#include <algorithm>
#include <bit>

#include "backend/backend.hpp"
#include "cuda/container.cuh"
#include "cuda/message_head.cuh"
#include "price/allotment.hpp"
#include "price/price_math.hpp"

namespace atomo::cuda {

namespace {

/// A tensor in a launch's argument.
struct TensorInLaunch {
  const void* data = nullptr;
  /// The dtype; plus 4 where its f32 values are in the room, and 8 times the entries before its own there.
  std::uint64_t room_and_dtype = 0;

  TensorInLaunch() = default;
  TensorInLaunch(const void* tensor, DType dtype, std::uint64_t room)
      : data(tensor),
        room_and_dtype(static_cast<std::uint64_t>(dtype) +
                       (room == Elsewhere::kNot ? 0 : 8 * room + 4)) {}
  [[nodiscard]] __device__ DType dtype() const { return static_cast<DType>(room_and_dtype % 4); }
  [[nodiscard]] __device__ bool elsewhere() const { return (room_and_dtype & 4) != 0; }
  [[nodiscard]] __device__ std::uint64_t room() const { return room_and_dtype / 8; }
};

/// Tables, then tensors.
template <std::size_t kBytes>
struct InLaunch {
  alignas(16) std::byte bytes[kBytes];
};
constexpr std::size_t kSizes[] = {512, 2048, 4096, kTablesInLaunch + 2048,
                                  kTensorsInLaunch * sizeof(TensorInLaunch)};

/// Layers of a warp.
constexpr std::uint32_t kLayersTogether = 4;

/// A part of the layers, and what is done with the first of them.
struct BeginJob {
  MessageCall call;
  float* room = nullptr;  ///< of tensors whose values are elsewhere
  std::uint32_t first = 0, layers = 0;
  std::uint32_t table_bytes = 0;  ///< in the argument, a multiple of 16
  bool decodes = false;
};

/// The whole states that no layer has. `kPlaces`: bodies stand where the plan says.
template <bool kPlaces>
__device__ void fill_message(const Frame& frame, const MessageCall& call) {
  MessageState state;
  state.key = call.device_key != nullptr ? *call.device_key : call.key;
  if (call.step != nullptr) state.key.step = *call.step;
  state.cap = call.cap;
  if (call.limit != nullptr) state.cap.limit = *call.limit;
  state.learnt = call.learnt;
  state.ranks = call.ranks;
  if constexpr (kPlaces) {
    state.head_bytes = frame.plan.head_bytes;
    state.total_bytes = frame.plan.max_bytes;
    if (state.learnt != nullptr) keep_prices(state, *state.learnt);
  }
  frame.state() = state;
  for (const PoolNumber number : {kAtomsPool, kGridPool}) {
    PoolPrice pool;
    pool.budget_256 = call.budget_256[number];
    if (call.streamed) {
      const float given =
          call.predicted != nullptr ? call.predicted->pools[number].price : call.given[number];
      pool.given = format::is_own_price(given) ? given : 0;
      pool.alone = pool.given > 0 || call.shares ? 0 : 1;
    }
    if (number == kAtomsPool && state.cap.limit != 0) {
      const std::uint64_t most = price::budget_cost_256(price::limit_budget_bits(state.cap.limit));
      pool.budget_256 = pool.given > 0 || most < pool.budget_256 ? most : pool.budget_256;
    }
    frame.pool(number) = pool;
  }
}

/// Clears the 16-byte words [begin, end) of the workspace, a thread of all every so many.
__device__ void clear(const Frame& frame, std::uint64_t begin, std::uint64_t end,
                      std::uint64_t thread, std::uint64_t threads) {
  auto* const words = reinterpret_cast<uint4*>(frame.work);
  for (std::uint64_t i = begin / 16 + thread; i < end / 16; i += threads)
    words[i] = make_uint4(0, 0, 0, 0);
}

/// Clears the zeroed part of the workspace but for the states.
__device__ void clear_rest(const Frame& frame, std::uint64_t thread, std::uint64_t threads) {
  clear(frame, 0, frame.plan.states_begin, thread, threads);
  clear(frame, (frame.plan.states_end + 63) / 64 * 64, frame.plan.zeroed_bytes, thread, threads);
}

/// `kPlaces`: a message is encoded whose bodies stand where the plan says.
template <std::size_t kBytes, bool kPlaces>
__device__ __forceinline__ void begin_all(const Frames& frames, const BeginJob& job,
                                          const InLaunch<kBytes>& argument) {
  const std::uint64_t thread = warp_in_grid() * kLanes + lane();
  const std::uint64_t threads = warps_in_grid() * kLanes;
  const Frame& frame = frames.first;
  if (job.first == 0) {
    for (std::uint32_t m = 0; m < frames.count; ++m) clear_rest(frames[m], thread, threads);
    if (thread < frames.count)
      fill_message<kPlaces>(frames[static_cast<std::uint32_t>(thread)], job.call);
    auto* const tables = reinterpret_cast<uint4*>(const_cast<std::byte*>(frame.tables));
    for (std::uint64_t i = thread; i < job.table_bytes / 16; i += threads)
      tables[i] = reinterpret_cast<const uint4*>(argument.bytes)[i];
  }
  // Tables that this launch puts are not there yet.
  const std::byte* const tables = job.table_bytes > 0 ? argument.bytes : frame.tables;
  if constexpr (kPlaces) {
    if (job.first == 0)
      store_head_tables(frame, tables + frame.plan.head_tables.at, thread, threads);
  }
  const auto* const infos = reinterpret_cast<const PlannedLayer*>(tables + frame.plan.infos.at);
  const auto* const tensors =
      reinterpret_cast<const TensorInLaunch*>(argument.bytes + job.table_bytes);
  if (lane() >= kLayersTogether) return;
  const auto behind = job.layers * frames.count;
  const auto step = static_cast<std::uint32_t>(warps_in_grid()) * kLayersTogether;
  for (auto k = static_cast<std::uint32_t>(warp_in_grid()) * kLayersTogether + lane(); k < behind;
       k += step) {
    const std::uint32_t m = k / job.layers, i = k % job.layers;
    LayerState state;
    void* const data = const_cast<void*>(tensors[i].data);
    void* values = data;
    if (tensors[i].elsewhere()) {
      values = job.room + tensors[i].room();
      state.callers = data;
      state.callers_dtype = tensors[i].dtype();
    }
    if (!kPlaces && job.decodes) {
      state.y = static_cast<float*>(values);
    } else {
      state.x = values;
      state.bytes = infos[job.first + i].fixed_bytes;
    }
    if constexpr (kPlaces) {
      const PlannedLayer& info = infos[job.first + i];
      state.body_at = info.body_at;
      store_record(frame, job.first + i, info.kind, state);
      store_padding(frame, state);
    }
    frames[m].layer(job.first + i) = state;
  }
}

template <std::size_t kBytes>
__global__ void begin_messages(const Frames frames, const BeginJob job,
                               const __grid_constant__ InLaunch<kBytes> argument) {
  begin_all<kBytes, false>(frames, job, argument);
}

/// A message is encoded whose bodies stand where the plan says.
template <std::size_t kBytes>
__global__ void begin_planned(const Frames frames, const BeginJob job,
                              const __grid_constant__ InLaunch<kBytes> argument) {
  begin_all<kBytes, true>(frames, job, argument);
}

/// Warps that clear the workspace.
std::uint64_t clearing_warps(const Frames& frames) {
  constexpr std::uint64_t kClearedByWarp = 4096, kMostWarps = 8192;
  const std::uint64_t bytes = frames.count * frames.first.plan.zeroed_bytes;
  return std::min(divide_up(bytes, kClearedByWarp), kMostWarps);
}

/// Launches with the smallest argument that `bytes` fit into.
template <std::size_t kChoice = 0>
void launch_begin(const Frames& frames, const BeginJob& job, ConstBytes bytes, std::uint64_t warps,
                  Queue& queue) {
  if constexpr (kChoice + 1 < std::size(kSizes)) {
    if (bytes.size() > kSizes[kChoice])
      return launch_begin<kChoice + 1>(frames, job, bytes, warps, queue);
  }
  InLaunch<kSizes[kChoice]> argument;
  std::copy(bytes.begin(), bytes.end(), argument.bytes);
  std::fill(argument.bytes + bytes.size(), std::end(argument.bytes), std::byte{0});
  const bool places = !job.decodes && frames.first.plan.places_planned();
  queue.launch_warps(places ? begin_planned<kSizes[kChoice]> : begin_messages<kSizes[kChoice]>,
                     warps, frames, job, argument);
}

/// `tensor(i)` is what travels of layer i.
template <typename Tensor>
void begin_layers(const Frames& frames, ConstBytes tables, BeginJob job, Tensor tensor,
                  Queue& queue) {
  constexpr std::size_t kEach = sizeof(TensorInLaunch);
  std::array<std::byte, kSizes[std::size(kSizes) - 1]> bytes;
  std::size_t used = tables.size();
  std::copy(tables.begin(), tables.end(), bytes.begin());
  job.table_bytes = static_cast<std::uint32_t>(used);
  std::uint64_t warps = clearing_warps(frames);
  const std::uint32_t count = frames.first.plan.count;
  for (std::uint32_t i = 0; i < count;) {
    job.first = i;
    for (; i < count && used + kEach <= bytes.size(); ++i, used += kEach) {
      const auto packed = std::bit_cast<std::array<std::byte, kEach>>(tensor(i));
      std::copy(packed.begin(), packed.end(), bytes.begin() + static_cast<std::ptrdiff_t>(used));
    }
    job.layers = i - job.first;
    launch_begin(
        frames, job, ConstBytes(bytes.data(), used),
        std::max(warps, divide_up(std::uint64_t{job.layers} * frames.count, kLayersTogether)),
        queue);
    used = job.table_bytes = 0;
    warps = 1;
  }
}

}  // namespace

void begin(const Frame& frame, ConstBytes tables, const MessageCall& call,
           std::span<const ConstTensorView> views, const Elsewhere& elsewhere, Queue& queue) {
  BeginJob job;
  job.call = call;
  job.room = elsewhere.room;
  Frames one;
  one.first = frame;
  one.places[0] = {frame.message, frame.capacity};
  one.count = 1;
  begin_layers(
      one, tables, job,
      [&](std::uint32_t i) {
        return TensorInLaunch(views[i].data, views[i].dtype, elsewhere.of(i));
      },
      queue);
}

void begin(const Frames& frames, ConstBytes tables, std::span<const TensorView> views,
           CallScratch<float> f32_room, Queue& queue) {
  BeginJob job;
  job.room = frames.first(f32_room);
  job.decodes = true;
  std::uint64_t room = 0;
  begin_layers(
      frames, tables, job,
      [&](std::uint32_t i) {
        const TensorView& view = views[i];
        if (view.dtype == DType::f32) return TensorInLaunch(view.data, view.dtype, Elsewhere::kNot);
        const TensorInLaunch tensor(view.data, view.dtype, room);
        room += view.shape.elements();
        return tensor;
      },
      queue);
}

void begin_own(const Frames& frames, ConstBytes tables, std::span<const ConstTensorView> views,
               const Elsewhere& elsewhere, Queue& queue) {
  BeginJob job;
  job.room = elsewhere.room;
  job.decodes = true;
  begin_layers(
      frames, tables, job,
      [&](std::uint32_t i) {
        const std::uint64_t at = elsewhere.of(i);
        return TensorInLaunch(at == Elsewhere::kNot ? nullptr : views[i].data, views[i].dtype, at);
      },
      queue);
}

}  // namespace atomo::cuda
