// SPDX-License-Identifier: Apache-2.0
/// QSGD (arXiv 1610.02132, section 3): a norm for each bucket, each entry rounded stochastically to
/// one of 2^(bits-1) - 1 levels a side; src/codec/methods/qsgd_codec.cpp and math/stochastic_level.hpp have it to the bit.
///
/// Mapping: a warp a unit of 1,024 entries (128 when buckets hold fewer than 8), whole words of codes
/// whatever the bucket: neighbours share no word. The unit is staged in shared memory, eight
/// neighbours a lane. From there come the norms of all buckets it touches (of those that reach
/// beyond it the rest is read from the tensor, which the neighbour reads too, so from a cache); the
/// largest magnitudes of buckets that lanes share out evenly are found on the way into shared
/// memory. Then a lane makes the codes of its eight neighbours, which have one scale where buckets
/// are multiples of 8. The unit in which a bucket begins writes its norm. Norms of buckets of more
/// than 1,024 entries are reduced beforehand (reduce.cu). Sums of squares follow cpu/reduce.hpp: a
/// bucket here is one segment, lane = lane.
///
/// Decoding: a lane reads the codes of four neighbours of a row of 128 entries, whose steps are
/// made once a bucket, unit and message. Four neighbours of a whole unit that have one step take
/// their codes from words of the message, all others bit by bit.
///
/// Traffic an element: written from 4 bytes read (2 for halves), the least, once more when buckets
/// are reduced beforehand, bits / 8 + 4 / bucket written; decoded from as much a message, 4 written (and 4
/// read when added) for all messages together. Shared memory: 5.8 KiB a warp to write, 0.5 KiB a message to decode. Words of the
/// message are stored whole where it is aligned to 4, else in bytes; values in 16 bytes where the
/// tensor is aligned to them.

#include "cuda/qsgd.cuh"

#include <algorithm>

#include "core/bit_counts.hpp"
#include "cuda/bit_stream.cuh"
#include "cuda/entries.cuh"
#include "cuda/level_tile.cuh"
#include "cuda/row_sums.cuh"
#include "format/method_configs.hpp"

namespace atomo::cuda::qsgd {
namespace {

constexpr unsigned kQsgdUnit = 1024, kSmallUnit = 128;
constexpr unsigned kSmallBucket = 8;       ///< below it the unit is small
constexpr unsigned kLongestDirect = 1024;  ///< entries of a bucket that is one segment of a sum
/// Buckets that a unit touches: 128 of 8 entries or of 1, or fewer and two cut off.
constexpr unsigned kMaxBuckets = 130;
/// Rows that a message is added to at once.
constexpr unsigned kRowsTogether = kSumRows;
constexpr unsigned kRow = 8 * kLanes;  ///< entries coded at once, eight neighbours a lane

struct Scale {
  float pre, inv;
};

/// Of one warp that writes.
struct QsgdMemory {
  float4 x[kQsgdUnit / 4];
  Scale scales[kMaxBuckets];
  float norms[kMaxBuckets];
  std::uint32_t packed[kRow * 8 / 32];
};

/// A message as one warp decodes it.
struct MessageCodes {
  const std::byte* codes;
  float steps[kMaxBuckets];
};

__host__ __device__ constexpr int levels_of(std::uint32_t bits) {
  return bits == 1 ? 1 : (1 << (bits - 1)) - 1;
}

/// The entries of one unit and the buckets that they belong to.
struct UnitView {
  Job job;                     ///< a copy, which stores do not change
  std::uint64_t first;         ///< entry of the layer
  std::uint32_t count;         ///< entries
  std::uint64_t first_bucket;  ///< that the unit touches
  std::uint32_t skip;          ///< entries of that bucket before the unit
  std::uint32_t buckets;       ///< that the unit touches

  __device__ UnitView(const Job& of, std::uint64_t index) : job(of), first(index * of.unit) {
    count = static_cast<std::uint32_t>(job.n - first < job.unit ? job.n - first : job.unit);
    if (job.shift != 0) {
      first_bucket = first >> job.shift;
      skip = 0;
      buckets = ((count - 1) >> job.shift) + 1;
    } else {
      first_bucket = first / job.bucket;
      skip = static_cast<std::uint32_t>(first - first_bucket * job.bucket);
      buckets = (skip + count - 1) / job.bucket + 1;
    }
  }
  /// Whether a bucket's norm is the largest magnitude of a whole number of lanes of one row, or of rows.
  __device__ bool is_even() const { return job.shift != 0 && !job.l2; }
  /// Of the unit's entry e, counted from the first. `inverse` + 1 is 2^32 / bucket rounded up, and
  /// place * bucket is below 2^32: the quotient is exact. Of longer buckets there are two at most.
  __device__ std::uint32_t bucket_of(std::uint32_t e) const {
    const std::uint32_t place = skip + e;
    if (job.inverse == 0) return place >= job.bucket ? 1 : 0;
    return static_cast<std::uint32_t>((std::uint64_t{place} * job.inverse + place) >> 32);
  }
  __device__ bool is_last() const { return first + count == job.n; }
};

/// Reads the unit; false in a lane that met a non-finite entry, which counts as 0. The norms of even
/// buckets too.
__device__ bool stage(const UnitView& unit, const Entries& entries, QsgdMemory& memory) {
  const bool even = unit.is_even();
  const unsigned bucket = unit.job.bucket;
  const unsigned lanes = bucket < kRow ? bucket / 8 : kLanes;  // of an even bucket in a row
  bool finite = true;
  std::uint32_t largest = 0;
#pragma unroll 1
  for (unsigned row = 0; row < unit.count; row += kRow) {
    const unsigned e = row + 8 * lane();
    float x[8];
    eight_entries(entries, unit.first + e, unit.job.n, x);
    std::uint32_t of_lane;
    finite &= drop_non_finite(x, of_lane);
    largest = std::max(largest, of_lane);
    memory.x[e / 4] = {x[0], x[1], x[2], x[3]};
    memory.x[e / 4 + 1] = {x[4], x[5], x[6], x[7]};
    const bool ends =
        ((row + kRow) & (bucket - 1)) == 0 || bucket < kRow || row + kRow >= unit.count;
    if (!even || !ends) continue;
    if (lanes == kLanes) {
      largest = __reduce_max_sync(kAllLanes, largest);
    } else {
      for (unsigned half = lanes / 2; half != 0; half /= 2)
        largest = std::max(largest, __shfl_xor_sync(kAllLanes, largest, static_cast<int>(half)));
    }
    if ((lane() & (lanes - 1)) == 0 && e < unit.count)
      memory.norms[unit.bucket_of(e)] = __uint_as_float(largest);
    largest = 0;
  }
  return finite;
}

/// The norm of the bucket whose entries are [begin, end) counted from the unit's first, by a group
/// of lanes, in the group's first lane. A group has at least as many lanes as the bucket entries,
/// or is the warp.
__device__ float group_norm(const UnitView& unit, const Entries& entries, const float* x, int begin,
                            int end, unsigned group) {
  double sum = 0;
  float largest = 0;
  for (int i = begin + static_cast<int>(lane() % group); i < end; i += static_cast<int>(group)) {
    float v;
    if (i >= 0 && i < static_cast<int>(unit.count)) {
      v = x[i];
    } else {  // another unit's
      v = entries(unit.first + static_cast<std::uint64_t>(static_cast<std::int64_t>(i)));
      v = is_finite(v) ? v : 0.0f;
    }
    if (unit.job.l2) {
      sum += static_cast<double>(v) * static_cast<double>(v);
    } else {
      largest = std::fabs(v) > largest ? std::fabs(v) : largest;
    }
  }
  for (unsigned half = group / 2; half != 0; half /= 2) {
    if (unit.job.l2) {
      sum += __shfl_down_sync(kAllLanes, sum, half);
    } else {
      const float other = __shfl_down_sync(kAllLanes, largest, half);
      largest = other > largest ? other : largest;
    }
  }
  return unit.job.l2 ? math::norm_from_squares(sum) : largest;
}

/// The norms of all buckets that the unit touches, into shared memory.
__device__ void find_norms(const UnitView& unit, const Entries& entries, QsgdMemory& memory) {
  const Job& job = unit.job;
  unsigned group = 1;
  while (group < kLanes && group < job.bucket) group *= 2;
  const unsigned groups = kLanes / group;
  const auto* const x = reinterpret_cast<const float*>(memory.x);
  for (std::uint32_t base = 0; base < unit.buckets; base += groups) {
    const std::uint32_t b = base + lane() / group;
    const int begin = static_cast<int>(b * job.bucket) - static_cast<int>(unit.skip);
    const std::uint64_t left = job.n - unit.first;  // the layer's last bucket may be shorter
    int end = begin + static_cast<int>(job.bucket);
    if (end > 0 && static_cast<unsigned>(end) > left) end = static_cast<int>(left);
    if (b >= unit.buckets) end = begin;
    const float norm = group_norm(unit, entries, x, begin, end, group);
    if (b < unit.buckets && lane() % group == 0) memory.norms[b] = norm;
  }
}

/// The scales of all buckets that the unit touches; of those that begin in it the norms are written.
__device__ void write_norms(const UnitView& unit, const float* norms, Scale* scales,
                            std::byte* body) {
  const Job& job = unit.job;
  for (std::uint32_t b = lane(); b < unit.buckets; b += kLanes) {
    const float norm = norms[b];
    const math::LevelScale scale = math::level_scale(math::level_step(norm, levels_of(job.bits)),
                                                     job.bits == 1 ? 32768.0f : 65536.0f);
    scales[b] = {scale.pre, scale.inv};
    if (b > 0 || unit.skip == 0)
      store_word(body + 4 * (unit.first_bucket + b), __float_as_uint(norm));
  }
}

/// Codes of all entries of the unit. `kOneScale`: eight neighbours have one.
template <bool kOneBit, bool kOneScale>
__device__ void write_codes(const UnitView& unit, const LevelDraws& draws, QsgdMemory& memory,
                            std::byte* out) {
  const unsigned bits = unit.job.bits;
  const LevelCode<kOneBit> rule{kOneBit ? 32768.0f : 65536.0f * static_cast<float>(levels_of(bits)),
                                bits - 1};
  // The last row may reach into the next unit, or beyond the last entry.
  const std::uint64_t words =
      divide_up(unit.is_last() ? 8 * unit.job.code_bytes : (unit.first + unit.count) * bits, 32);
  auto* const packed = reinterpret_cast<unsigned char*>(memory.packed);
#pragma unroll 1
  for (std::uint32_t row = 0; row < unit.count; row += kRow) {
    const std::uint32_t e = row + 8 * lane();
    const float4 low = memory.x[e / 4], high = memory.x[e / 4 + 1];
    const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const auto there = [&](unsigned k) { return e + k < unit.count; };
    const auto scale_of = [&](unsigned k) {
      const Scale of = memory.scales[unit.bucket_of(there(k) ? e + k : 0)];
      return math::LevelScale{of.pre, of.inv};
    };
    const math::LevelScale first = scale_of(0);
    const auto scale = [&](unsigned k) {
      math::LevelScale of = kOneScale ? first : scale_of(k);
      if (kOneBit && !there(k)) of.inv = 0;  // of more bits the code of 0 is 0 anyway
      return of;
    };
    std::uint32_t codes[2];
    eight_codes(
        rule, draws, (unit.first + e) / 8, bits, [&](unsigned k) { return choose(x, k); }, scale,
        codes);
    const std::uint64_t first_word = (unit.first + row) / 32 * bits;
    const std::uint64_t eight = codes[0] | std::uint64_t{codes[1]} << (4 * bits);
    if (bits % 4 == 0) {  // one word a lane, or two
      const std::uint64_t word = first_word + lane() * (bits / 4);
      if (word < words) store_word(out + 4 * word, static_cast<std::uint32_t>(eight));
      if (bits == 8 && word + 1 < words) store_word(out + 4 * (word + 1), codes[1]);
      continue;
    }
    __syncwarp();  // the words of the row before are stored
    for (unsigned k = 0; k < bits; ++k)
      packed[lane() * bits + k] = static_cast<unsigned char>(eight >> (8 * k));
    __syncwarp();
    for (unsigned k = lane(); k < kRow * bits / 32 && first_word + k < words; k += kLanes)
      store_word(out + 4 * (first_word + k), memory.packed[k]);
  }
}

__global__ void write_qsgd(const Frame frame, const Plan plan) {
  const JobUnit<Job> at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const Job job = *at.entry;
  const bool reduced = job.inverse == 0;
  if (reduced && was_non_finite(frame, job.layer)) return;

  const UnitView unit(job, at.index);
  const Entries entries = frame.entries(job.layer);
  QsgdMemory& memory = dynamic_shared<QsgdMemory>()[warp_in_block()];
  std::byte* const body = frame.message + frame.layer(job.layer).body_at;
  const bool finite = stage(unit, entries, memory);
  if (!reduced) note_finite(frame, job.layer, finite);
  __syncwarp();
  if (!reduced && !unit.is_even()) {
    find_norms(unit, entries, memory);
    __syncwarp();
  }
  write_norms(
      unit, reduced ? frame(plan.norms.results) + job.first_norm + unit.first_bucket : memory.norms,
      memory.scales, body);
  __syncwarp();

  const Key key = frame.key(job.layer);
  const LevelDraws draws{Philox(key, Purpose::qsgd), Philox(key, Purpose::qsgd_low)};
  std::byte* const codes = body + 4 * job.buckets;
  const bool one_scale = job.bucket % 8 == 0;
  if (job.bits == 1 && one_scale) {
    write_codes<true, true>(unit, draws, memory, codes);
  } else if (job.bits == 1) {
    write_codes<true, false>(unit, draws, memory, codes);
  } else if (one_scale) {
    write_codes<false, true>(unit, draws, memory, codes);
  } else {
    write_codes<false, false>(unit, draws, memory, codes);
  }
}

/// Steps of the buckets that the unit touches; refuses what qsgd.cpp refuses of a body of the right
/// size.
__device__ void open_qsgd(const Frame& frame, const UnitView& unit, const std::byte* body,
                          float* steps) {
  const Job& job = unit.job;
  bool valid = true;
  for (std::uint32_t b = lane(); b < unit.buckets; b += kLanes) {
    const std::uint32_t norm = load_word(body + 4 * (unit.first_bucket + b));
    valid &= is_magnitude(norm);
    steps[b] =
        is_magnitude(norm) ? math::level_step(__uint_as_float(norm), levels_of(job.bits)) : 0.0f;
  }
  const unsigned used = static_cast<unsigned>(job.n % 8) * job.bits % 8;
  if (unit.is_last() && used != 0) {
    const std::byte last = body[4 * job.buckets + job.code_bytes - 1];
    valid &= (static_cast<unsigned>(last) >> used) == 0;
  }
  if (!__all_sync(kAllLanes, valid) && lane() == 0) frame.refuse(job.layer, Status::corrupt);
}

/// What a code stands for, in steps: its magnitude, 1 at one bit, below 0 where its highest bit is set.
class LevelValues {
 public:
  explicit __device__ LevelValues(unsigned bits)
      : bits_(bits), mask_((1u << (bits - 1)) - 1), below_(bits == 1 ? kWhole - 2 : kWhole) {}
  /// Of code k in `codes`. An f32 from 2^23 on has a whole number in its low bits, which a difference
  /// of two of one sign leaves: exact, and +0 of magnitude 0 whatever the sign.
  [[nodiscard]] __device__ float operator()(std::uint32_t codes, unsigned k) const {
    const std::uint32_t sign = codes << (32 - (k + 1) * bits_) & 0x80000000u;
    const std::uint32_t whole = (codes >> (k * bits_) & mask_) | (sign | kWhole);
    return __uint_as_float(whole) - __uint_as_float(sign | below_);
  }

 private:
  static constexpr std::uint32_t kWhole = 0x4B000000u;  // 2^23; two less is 2^23 - 1
  unsigned bits_;
  std::uint32_t mask_, below_;
};

/// The codes of four neighbours of each row of a whole unit, where the message is aligned to 4.
/// Words behind the codes are not read.
class WholeRows {
 public:
  __device__ WholeRows(const std::byte* codes, const UnitView& unit)
      : words_(reinterpret_cast<const std::uint32_t*>(codes + unit.first / 8 * unit.job.bits) +
               lane() * unit.job.bits / 8),
        row_words_(kSumRow / 32 * unit.job.bits),
        shift_(4 * lane() * unit.job.bits % 32),
        next_(shift_ + 4 * unit.job.bits > 32 ? 1 : 0) {}
  [[nodiscard]] __device__ std::uint32_t operator()(unsigned row) const {
    const std::uint32_t* const word = words_ + row * row_words_;
    return next_ == 0 ? word[0] >> shift_ : __funnelshift_r(word[0], word[1], shift_);
  }

 private:
  const std::uint32_t* words_;
  unsigned row_words_, shift_, next_;
};

/// The codes of four neighbours of each row from entry `part` of the unit on.
__device__ void read_codes(const UnitView& unit, unsigned part, const std::byte* out,
                           std::uint32_t (&four)[kRowsTogether]) {
  if (unit.count == kQsgdUnit && reinterpret_cast<std::uintptr_t>(out) % 4 == 0) {
    const WholeRows codes(out, unit);
#pragma unroll
    for (unsigned row = 0; row < kRowsTogether; ++row) four[row] = codes(part / kSumRow + row);
    return;
  }
  const BitView codes(out, unit.job.code_bytes);
#pragma unroll 1
  for (unsigned row = 0; row < kRowsTogether; ++row) {
    const std::uint32_t e = part + row * kSumRow + 4 * lane();
    const std::uint32_t read = e < unit.count ? codes.peek32((unit.first + e) * unit.job.bits) : 0;
#pragma unroll
    for (unsigned k = 0; k < kRowsTogether; ++k) four[k] = k == row ? read : four[k];
  }
}

/// Adds a message's values of the rows from entry `part` of the unit on. kOneStep: four neighbours
/// have one.
template <bool kOneStep, bool kAdd>
__device__ void add_codes(RowSums<kRowsTogether, kAdd>& sums, const UnitView& unit, unsigned part,
                          const MessageCodes& message) {
  const LevelValues level(unit.job.bits);
  std::uint32_t four[kRowsTogether] = {};
  read_codes(unit, part, message.codes, four);
#pragma unroll
  for (unsigned row = 0; row < kRowsTogether; ++row) {
    const std::uint32_t e = not_ahead(part + row * kSumRow + 4 * lane());
    const auto step_of = [&](unsigned k) {
      return message.steps[unit.bucket_of(e + k < unit.count ? e + k : 0)];
    };
    const float first = step_of(0);
    float v[4];
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) v[k] = level(four[row], k) * (kOneStep ? first : step_of(k));
    sums.put(row, v);
  }
}

__global__ void decode_qsgd(const Frames frames, const Plan plan, const DecodeInto into) {
  const JobUnit<Job> at = unit_of_warp(frames.first, plan.jobs);
  if (!at) return;
  const Job job = *at.entry;
  const std::uint64_t bytes = 4 * job.buckets + job.code_bytes;
  const UnitView unit(job, at.index);
  MessageCodes* const messages = dynamic_shared<MessageCodes>() + warp_in_block() * frames.count;
  const std::uint32_t sound = open_fixed_bodies(frames, job.layer, bytes, Status::truncated);
  if (sound == 0) return;
#pragma unroll 1
  for (std::uint32_t left = sound; left != 0;) {
    const std::uint32_t m = take_message(left);
    const Frame frame = frames[m];
    const std::byte* const body = frame.message + frame.layer(job.layer).body_at;
    open_qsgd(frame, unit, body, messages[m].steps);
    if (lane() == 0) messages[m].codes = body + 4 * job.buckets;
  }
  __syncwarp();
  float* const y = frames.first.layer(job.layer).y;
  with_add(into, [&](auto adds) {
#pragma unroll 1
    for (unsigned part = 0; part < unit.count; part += kRowsTogether * kSumRow) {
      RowSums<kRowsTogether, decltype(adds)::value> sums(y, unit.first + part,
                                                         unit.first + unit.count, into);
#pragma unroll 1
      for (std::uint32_t left = sound; left != 0;) {
        const MessageCodes& message = messages[take_message(left)];
        if (job.bucket % 4 == 0) {
          add_codes<true>(sums, unit, part, message);
        } else {
          add_codes<false>(sums, unit, part, message);
        }
      }
      sums.store();
    }
  });
}

QsgdConfig config_of(const LayerPlan& layer) {
  QsgdConfig config = format::qsgd_config(layer.kind.params);
  if (layer.n < config.bucket) config.bucket = static_cast<std::uint32_t>(layer.n);
  return config;
}
bool needs_reduction(const LayerPlan& layer) {
  return is_of<MethodId::qsgd>(layer) && config_of(layer).bucket > kLongestDirect;
}

Job job_of(const LayerPlan& layer, std::uint32_t number) {
  const QsgdConfig config = config_of(layer);
  Job job{.n = layer.n,
          .layer = number,
          .bucket = config.bucket,
          .bits = static_cast<std::uint32_t>(config.bits),
          .unit = config.bucket < kSmallBucket ? kSmallUnit : kQsgdUnit,
          .l2 = config.norm == QsgdNorm::l2};
  job.buckets = divide_up(layer.n, config.bucket);
  job.code_bytes = divide_up(layer.n * static_cast<std::uint64_t>(config.bits), 8);
  if (!needs_reduction(layer)) job.inverse = 0xFFFFFFFFu / config.bucket;
  if (config.bucket >= kSmallBucket && kQsgdUnit % config.bucket == 0)
    job.shift = static_cast<std::uint32_t>(core::countr_zero(config.bucket));
  return job;
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, Plan& plan) {
  const std::size_t count = count_of_method<MethodId::qsgd>(layers);
  plan = {};
  if (count == 0) return;
  JobMaker<Job> jobs(layout, count);
  ReducePlanner norms(layout,
                      static_cast<std::size_t>(std::ranges::count_if(layers, needs_reduction)));
  for_each_of_method<MethodId::qsgd>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    Job job = job_of(layer, number);
    if (needs_reduction(layer)) {
      job.first_norm = norms.add({.n = job.n,
                                  .span = job.bucket,
                                  .layer = job.layer,
                                  .rule = job.l2 ? ReduceRule::norm : ReduceRule::max_abs});
    }
    jobs.add(job, divide_up(job.n, job.unit));
  });
  plan.jobs = jobs.jobs();
  plan.norms = norms.finish();
}

void analyse(const Frame& frame, const Plan& plan, Queue& queue) {
  reduce(frame, plan.norms, queue);
}

void write(const Frame& frame, const Plan& plan, Queue& queue) {
  queue.launch_blocks(write_qsgd, divide_up(plan.jobs.units.units, warps_per_block),
                      warps_per_block * kLanes, warps_per_block * sizeof(QsgdMemory), frame, plan);
}

void decode(const Frames& frames, const Plan& plan, DecodeInto into, Queue& queue) {
  queue.launch_blocks(decode_qsgd, divide_up(plan.jobs.units.units, warps_per_block),
                      warps_per_block * kLanes,
                      warps_per_block * frames.count * sizeof(MessageCodes), frames, plan, into);
}

}  // namespace atomo::cuda::qsgd
