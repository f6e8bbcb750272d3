// SPDX-License-Identifier: Apache-2.0
/// Memories of senders (docs/memories.md): x = g + D e is encoded, and e <- x - c kept, c being what the
/// message decodes to; of a velocity u <- M u + g, x = v + u, v <- x - c, and u <- 0 where c took some; of a sum s,
/// x = g - s and s <- s + c, where c is x less what was left of it.
///
/// form_inputs   a warp 2,048 entries of a layer, a lane four neighbours at a time: x, in room of the
///               workspace, where the codec then reads it as f32.
/// keep_...      likewise, eight at a time of bf16 and int8, whose draws are one Philox block: 256 entries a
///               turn, which are a block of int8 under its largest magnitude. The message was decoded
///               into x with alpha -1 before, so that x is what it left. The state of that decoding
///               says whether all of the message is finite; if not, nothing is written. A kernel for
///               residuals and one for velocities, of 4, 2 or 1 bytes, and one for sums, launched where a layer has them.
/// take_back     a thread a layer.
///
/// Traffic an entry: formed from g and e read (4 or 2 bytes each, e also 1), x written; kept from x read,
/// e written; a velocity takes g, u and v read, x written, and g, u, v and x read, u and v written; a sum is kept from
/// g, s and x read, s written. No
/// shared memory. Determinism: an entry depends on itself alone, in int8 on its block. Alignment:
/// gradients to their entries, read in 8 or 16 bytes where they are aligned to them; the library's own
/// memory to 256 bytes, with room behind each part, so that its vectors are whole.
///
/// A model that can take a message back has room for two of each memory. A message is formed with one
/// and writes the other; which one is the memory is a word a layer, that the first warp of its job
/// writes: form_inputs copies `now`, which all its warps read, to `from`, and the kernels that keep, whose warps
/// read that, writes `now`.

#include "cuda/memory.cuh"

#include <algorithm>

#include "cuda/cub.cuh"
#include "cuda/entries.cuh"
#include "cuda/half_rounding.cuh"
#include "math/memory_rules.hpp"

namespace atomo::cuda {
namespace {

using Rule = MemoryPlan::Rule;
using math::KeptType;

constexpr std::uint64_t kMemoryUnit = 2048;
constexpr std::size_t kPartAlignment = 256;

constexpr std::size_t aligned_bytes(std::size_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

/// A warp's part of a job; no job where there is none.
struct MemoryUnit {
  const MemoryJob* job = nullptr;
  MemorySide* side = nullptr;
  std::uint32_t layer = 0;  ///< of the message
  std::uint64_t index = 0;  ///< of the unit within its job
};

__device__ MemoryUnit unit_of(const MemoryRange& range) {
  if (warp_in_grid() >= range.units) return {};
  const std::uint64_t unit = range.first_unit + warp_in_grid();
  std::uint32_t low = 0, high = range.count - 1;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (range.jobs[middle].first_unit <= unit)
      low = middle;
    else
      high = middle - 1;
  }
  const MemoryJob* const job = range.jobs + low;
  return {job, range.sides + low, job->layer - range.first_layer, unit - job->first_unit};
}

/// Four f32 of the library's own memory.
__device__ void load_four(const std::byte* from, std::uint64_t i, float (&v)[4]) {
  const float4 four = reinterpret_cast<const float4*>(from)[i / 4];
  v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}
__device__ void store_four(std::byte* to, std::uint64_t i, const float (&v)[4]) {
  reinterpret_cast<float4*>(to)[i / 4] = make_float4(v[0], v[1], v[2], v[3]);
}

/// Four entries of e, u or v.
__device__ void kept_four(const MemoryJob& job, const std::byte* vector, std::uint64_t i,
                          float (&v)[4]) {
  if (job.type == KeptType::f32) {
    load_four(vector, i, v);
  } else if (job.type == KeptType::bf16) {
    Entries{vector, DType::bf16}.four(i, i + 4, v);
  } else {
    const float scale = reinterpret_cast<const float*>(vector)[i / math::kInt8Block];
    const char4 codes = reinterpret_cast<const char4*>(vector + job.values)[i / 4];
    v[0] = math::int8_value(codes.x, scale), v[1] = math::int8_value(codes.y, scale);
    v[2] = math::int8_value(codes.z, scale), v[3] = math::int8_value(codes.w, scale);
  }
}

/// Four entries of what is encoded.
__device__ void form_four(const MemoryJob& job, const Entries& g, const std::byte* kept,
                          std::uint64_t i, float (&x)[4]) {
  g.four(i, job.n, x);
  float e[4];
  kept_four(job, kept, i, e);
  if (job.rule == Rule::velocity) {
    float v[4];
    kept_four(job, kept + job.pitch, i, v);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) x[k] = with_velocity(x[k], job.factor, e[k], v[k]).x;
  } else {
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) x[k] = with_residual(x[k], job.factor, e[k]);
  }
}

__global__ void form_inputs(const Frame frame, const MemoryRange range, bool scaled) {
  const MemoryUnit unit = unit_of(range);
  if (unit.job == nullptr) return;
  const MemoryJob job = *unit.job;
  if (!scaled && job.scale == 1) return;
  const std::uint32_t now = unit.side->now;
  if (unit.index == 0 && lane() == 0) unit.side->from = now;
  const LayerState& layer = frame.layer(unit.layer);
  const Entries g{layer.callers, layer.callers_dtype};
  const std::byte* const kept = range.memory + job.at + now * job.other;
  auto* const to = static_cast<std::byte*>(const_cast<void*>(layer.x));
  const std::uint64_t first = unit.index * kMemoryUnit;
  const std::uint64_t end = std::min(first + kMemoryUnit, job.n);
  const float scale = scaled ? job.scale : 1.0f;
  for (std::uint64_t i = first + 4 * lane(); i < end; i += 4 * kLanes) {
    float x[4];
    form_four(job, g, kept, i, x);
    if (scale != 1.0f) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) x[k] = scale * x[k];
    }
    store_four(to, i, x);
  }
}

/// By a whole warp: eight values a lane to the entries from i on, which draw as those from `entry` on. Lanes
/// from `end` on hold zeros and write nothing.
template <unsigned kBytes>
__device__ void round_to_kept(const MemoryJob& job, const HalfDraws& draws, const float (&v)[8],
                              std::uint64_t entry, std::uint64_t i, std::uint64_t end,
                              std::byte* vector) {
  if constexpr (kBytes == 2) {
    if (i >= end) return;
    bool overflow = false;
    std::uint32_t pairs[4];
    round_eight(v, DType::bf16, draws, entry, pairs, overflow);
#pragma unroll
    for (unsigned k = 0; k < 4; k += 2)
      reinterpret_cast<uint2*>(vector)[i / 4 + k / 2] = make_uint2(pairs[k], pairs[k + 1]);
  } else {
    std::uint32_t largest = 0;  // magnitudes order as their bits do
#pragma unroll
    for (const float x : v) largest = std::max(largest, __float_as_uint(math::int8_magnitude(x)));
    const float scale = __uint_as_float(warp_max(largest));
    __syncwarp();  // a scale that is kept in place was read by all lanes
    if (i >= end) return;
    if (lane() == 0) reinterpret_cast<float*>(vector)[i / math::kInt8Block] = scale;
    const PhiloxWords words = draws.first(entry / 8);
    std::uint32_t codes[2] = {0, 0};
#pragma unroll
    for (unsigned k = 0; k < 8; ++k) {
      const ShortDraw draw{half_of(words, k), &draws.further, entry + k};
      const auto code = static_cast<std::uint8_t>(math::int8_code(v[k], scale, draw));
      codes[k / 4] |= std::uint32_t{code} << (8 * (k % 4));
    }
    reinterpret_cast<uint2*>(vector + job.values)[i / 8] = make_uint2(codes[0], codes[1]);
  }
}

/// What was formed of u, or 0 where the message took something: of what it left, eight entries from i on.
__device__ void velocity_of_left(const MemoryJob& job, const Entries& g, const std::byte* from,
                                 std::uint64_t i, std::uint64_t end, float (&left)[8]) {
#pragma unroll
  for (unsigned part = 0; part < 8; part += 4) {
    if (i + part >= end) continue;
    float x[4], u[4], v[4];
    g.four(i + part, job.n, x);
    kept_four(job, from, i + part, u);
    kept_four(job, from + job.pitch, i + part, v);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const Velocity of = with_velocity(x[k], job.factor, u[k], v[k]);
      left[part + k] = i + part + k < end ? kept_velocity(of, left[part + k]) : 0.0f;
    }
  }
}

/// What is left of entries [first, end) in fewer bits; `from` and `to` may be one. Of a velocity u comes first, and
/// what is left is read again from a cache, so that one vector at a time is in registers.
template <unsigned kBytes, Rule kRule>
__device__ void keep_rounded(const Frame& frame, std::uint32_t layer, const MemoryJob& job,
                             const float* left, std::uint64_t first, std::uint64_t end,
                             const std::byte* from, std::byte* to) {
  const Key key = frame.key(layer);
  const HalfDraws draws{Philox(key, Purpose::memory), Philox(key, Purpose::memory_low)};
  const Entries g{frame.layer(layer).callers, frame.layer(layer).callers_dtype};
#pragma unroll 1
  for (std::uint64_t turn = first; turn < end; turn += math::kInt8Block) {
    const std::uint64_t i = turn + 8 * lane();
#pragma unroll 1
    for (unsigned vector = kRule == Rule::velocity ? 0 : 1; vector < 2;
         ++vector) {  // u, what is left
      float v[8];
      eight_entries({left, DType::f32}, i, end, v);
      if (vector == 0) velocity_of_left(job, g, from, i, end, v);
      const std::uint64_t entry = vector == 0 ? math::first_draw_of_velocity(job.n) + i : i;
      round_to_kept<kBytes>(job, draws, v, entry, i, end,
                            kRule == Rule::velocity && vector == 1 ? to + job.pitch : to);
    }
  }
}

/// What was sent so far, in place of what the last message left: of four entries.
__device__ void add_what_was_sent(const MemoryJob& job, const Entries& g, const std::byte* from,
                                  std::uint64_t i, float (&left)[4]) {
  float x[4], s[4];
  g.four(i, job.n, x);
  load_four(from, i, s);
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) left[k] = sent_so_far(x[k], s[k], left[k]);
}

/// Those of a velocity; `from` and `to` may be one.
__device__ void keep_velocity(const MemoryJob& job, const Entries& g, const float* left,
                              std::uint64_t first, std::uint64_t end, const std::byte* from,
                              std::byte* to) {
  for (std::uint64_t i = first + 4 * lane(); i < end; i += 4 * kLanes) {
    float x[4], u[4], v[4], rest[4];
    g.four(i, job.n, x);
    load_four(from, i, u);
    load_four(from + job.pitch, i, v);
    load_four(reinterpret_cast<const std::byte*>(left), i, rest);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k)
      u[k] = kept_velocity(with_velocity(x[k], job.factor, u[k], v[k]), rest[k]);
    store_four(to, i, u);
    store_four(to + job.pitch, i, rest);
  }
}

__device__ Status status_of_own(const MessageState& state) {
  if (const auto head = static_cast<Status>(state.head_status); failed(head)) return head;
  return state.fault != 0 ? static_cast<Status>(~state.fault & 0xFFFFu) : Status::ok;
}

/// Of the layers of one rule, of so many bytes a value: those of few registers do not wait
/// for those of many.
template <unsigned kBytes, Rule kRule>
__device__ void keep_unsent(const Frame& frame, const MemoryRange& range, Status* status) {
  const MemoryUnit unit = unit_of(range);
  if (unit.job == nullptr || unit.job->bytes != kBytes || unit.job->rule != kRule) return;
  const MessageState& state = frame.state();
  const Status own = status_of_own(state);
  const bool moves = !failed(own) && state.non_finite == 0;
  if (unit.index == 0 && lane() == 0) {
    unit.side->moved = moves ? 1 : 0;
    if (moves) unit.side->now = unit.side->from ^ 1u;
    if (failed(own) && status != nullptr) *status = own;
  }
  if (!moves) return;
  const MemoryJob job = *unit.job;
  const std::uint32_t side = unit.side->from;
  const LayerState& layer = frame.layer(unit.layer);
  const std::byte* const from = range.memory + job.at + side * job.other;
  std::byte* const to = range.memory + job.at + (side ^ 1u) * job.other;
  const std::uint64_t first = unit.index * kMemoryUnit;
  const std::uint64_t end = std::min(first + kMemoryUnit, job.n);
  if constexpr (kBytes != 4) {
    keep_rounded<kBytes, kRule>(frame, unit.layer, job, layer.y, first, end, from, to);
  } else if constexpr (kRule == Rule::velocity) {
    keep_velocity(job, {layer.callers, layer.callers_dtype}, layer.y, first, end, from, to);
  } else {
    for (std::uint64_t i = first + 4 * lane(); i < end; i += 4 * kLanes) {
      float left[4];
      load_four(reinterpret_cast<const std::byte*>(layer.y), i, left);
      if constexpr (kRule == Rule::sum)
        add_what_was_sent(job, {layer.callers, layer.callers_dtype}, from, i, left);
      store_four(to, i, left);
    }
  }
}

template <unsigned kBytes>
__global__ void keep_residuals(const Frame frame, const MemoryRange range, Status* status) {
  keep_unsent<kBytes, Rule::residual>(frame, range, status);
}
template <unsigned kBytes>
__global__ void keep_velocities(const Frame frame, const MemoryRange range, Status* status) {
  keep_unsent<kBytes, Rule::velocity>(frame, range, status);
}
__global__ void keep_sums(const Frame frame, const MemoryRange range, Status* status) {
  keep_unsent<4, Rule::sum>(frame, range, status);
}

__global__ void take_back_sides(const MemoryRange range, const Status* only_if) {
  if (only_if != nullptr && !has(*only_if, Status::non_finite)) return;
  const std::uint64_t k = warp_in_grid() * kLanes + lane();
  if (k >= range.count) return;
  MemorySide& side = range.sides[k];
  if (side.moved == 0) return;
  side.now ^= 1u;
  side.moved = 0;
}

}  // namespace

MemoryRoom::MemoryRoom(std::span<const LayerPlan> layers) {
  if (std::none_of(layers.begin(), layers.end(), [](const auto& l) { return l.remembers(); }))
    return;
  for (const LayerPlan& layer : layers) {
    at.push_back(layer.remembers() ? bytes / sizeof(float) : Elsewhere::kNot);
    bytes += bytes_of(layer);
  }
}

std::size_t MemoryRoom::bytes_of(const LayerPlan& layer) noexcept {
  return layer.remembers() ? aligned_bytes(layer.n * sizeof(float)) : 0;
}

Memories::Memories(std::span<const LayerPlan> layers, bool takes_back) {
  std::uint64_t units = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerPlan& layer = layers[i];
    const MemoryPlan& memory = layer.memory;
    if (!layer.remembers() || layer.n == 0) continue;
    MemoryJob job;
    job.n = layer.n;
    job.first_unit = units;
    job.units = divide_up(layer.n, kMemoryUnit);
    job.at = bytes_;
    job.values = aligned_bytes(math::scale_bytes(memory.type, layer.n));
    job.pitch = job.values + aligned_bytes(math::value_bytes(memory.type, layer.n));
    const std::size_t kept = memory.vectors() * job.pitch;
    job.other = takes_back ? kept : 0;
    job.layer = static_cast<std::uint32_t>(i);
    job.factor = memory.factor;
    job.scale = memory.scale;
    job.rule = memory.rule;
    job.type = memory.type;
    job.bytes = static_cast<std::uint8_t>(math::value_bytes(memory.type, 1));
    job.vectors = static_cast<std::uint8_t>(memory.vectors());
    units += job.units;
    bytes_ += kept + job.other;
    jobs_.push_back(job);
  }
  if (jobs_.empty()) return;
  memory_ = device_bytes(bytes_);
  check(cudaMemset(memory_.get(), 0, bytes_), "the memories of a model");
  const std::vector<MemorySide> sides(jobs_.size());
  sides_ = on_device(std::as_bytes(std::span(sides)), "the memories of a model");
  table_ = on_device(std::as_bytes(std::span(jobs_)), "the memories of a model");
}

MemoryRange Memories::range(std::size_t first, std::size_t count) const noexcept {
  const auto begin =
      std::lower_bound(jobs_.begin(), jobs_.end(), first,
                       [](const MemoryJob& j, std::size_t l) { return j.layer < l; });
  const auto end = std::lower_bound(begin, jobs_.end(), first + count,
                                    [](const MemoryJob& j, std::size_t l) { return j.layer < l; });
  MemoryRange range;
  if (begin == end) return range;
  const auto skipped = begin - jobs_.begin();
  range.jobs = reinterpret_cast<const MemoryJob*>(table_.get()) + skipped;
  range.sides = reinterpret_cast<MemorySide*>(sides_.get()) + skipped;
  range.memory = memory_.get();
  range.count = static_cast<std::uint32_t>(end - begin);
  range.first_layer = static_cast<std::uint32_t>(first);
  range.first_unit = begin->first_unit;
  range.units = (end - 1)->first_unit + (end - 1)->units - begin->first_unit;
  range.scales = std::any_of(begin, end, [](const MemoryJob& j) { return j.scale != 1; });
  for (auto job = begin; job != end; ++job)
    range.kinds |= MemoryRange::bit_of(job->bytes, job->rule);
  return range;
}

template <typename Copy>
Status Memories::each_part(std::size_t layer, std::size_t bytes, Copy copy) const noexcept {
  const MemoryRange one = range(layer, 1);
  if (one.count == 0) return bytes == 0 ? Status::ok : Status::shape_mismatch;
  const MemoryJob& job = jobs_[static_cast<std::size_t>(
      one.sides - reinterpret_cast<const MemorySide*>(sides_.get()))];
  const std::size_t scales = math::scale_bytes(job.type, job.n);
  const std::size_t values = math::value_bytes(job.type, job.n);
  if (bytes != job.vectors * (scales + values)) return Status::shape_mismatch;
  return device_.wait_on([&] {
    MemorySide side;
    bool done = cudaMemcpy(&side, one.sides, sizeof side, cudaMemcpyDeviceToHost) == cudaSuccess;
    for (std::size_t v = 0; v < job.vectors && done; ++v) {
      std::byte* const vector = memory_.get() + job.at + side.now * job.other + v * job.pitch;
      const std::size_t at = v * (scales + values);
      done = (scales == 0 || copy(vector, at, scales) == cudaSuccess) &&
             copy(vector + job.values, at + scales, values) == cudaSuccess;
    }
    return done;
  });
}

Status Memories::read(std::size_t layer, Bytes values) const noexcept {
  return each_part(layer, values.size(), [&](const std::byte* from, std::size_t at, std::size_t n) {
    return cudaMemcpy(values.data() + at, from, n, cudaMemcpyDeviceToHost);
  });
}

Status Memories::write(std::size_t layer, ConstBytes values) const noexcept {
  return each_part(layer, values.size(), [&](std::byte* to, std::size_t at, std::size_t n) {
    return cudaMemcpy(to, values.data() + at, n, cudaMemcpyHostToDevice);
  });
}

/// What moved cannot be taken back any more.
Status Memories::clear() const noexcept {
  if (jobs_.empty()) return Status::ok;
  return device_.wait_on([&] {
    return cudaMemset(memory_.get(), 0, bytes_) == cudaSuccess &&
           cudaMemset(sides_.get(), 0, jobs_.size() * sizeof(MemorySide)) == cudaSuccess;
  });
}

void form(const Frame& frame, const MemoryRange& range, bool scaled, Queue& queue) {
  queue.launch_warps(form_inputs, range.units, frame, range, scaled);
}

void keep(const Frame& frame, const MemoryRange& range, Status* status, Queue& queue) {
  const auto keep_those = [&](unsigned bytes, Rule rule, auto kernel) {
    if (range.has(bytes, rule)) queue.launch_warps(kernel, range.units, frame, range, status);
  };
  keep_those(4, Rule::residual, keep_residuals<4>);
  keep_those(2, Rule::residual, keep_residuals<2>);
  keep_those(1, Rule::residual, keep_residuals<1>);
  keep_those(4, Rule::velocity, keep_velocities<4>);
  keep_those(2, Rule::velocity, keep_velocities<2>);
  keep_those(1, Rule::velocity, keep_velocities<1>);
  keep_those(4, Rule::sum, keep_sums);
}

void take_back(const MemoryRange& range, const Status* only_if, Queue& queue) {
  queue.launch_warps(take_back_sides, divide_up(range.count, kLanes), range, only_if);
}

}  // namespace atomo::cuda
