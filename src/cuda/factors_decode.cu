// SPDX-License-Identifier: Apache-2.0
/// Decoding of pairs with f32 factors: the vectors of a body into the workspace, which
/// outer_products.cu sums up.
///
/// Mapping: a warp for 1,024 entries of a vector, or of a tensor that is no matrix, which stands in
/// the body as it is.
///
/// Traffic in bytes an entry of a factor: 4 read, 4 written, which the sums read again.
///
/// Shared memory: none. Determinism: every entry is written by one lane. Alignment: bodies begin at
/// any byte.

#include "cuda/factors_decode.cuh"

#include "cuda/entries.cuh"
#include "format/factors_body.hpp"

namespace atomo::cuda::factors {
namespace {

using coding::kPieceEntries;
using coding::pieces_of;

/// 2^exponent, a normal f64.
__device__ double power_of_two(std::int32_t exponent) {
  return __longlong_as_double(static_cast<long long>(1023 + exponent) << 52);
}

/// By a whole warp: up to 1,024 f32 of a body, of which some may not be there. False when one is
/// not finite, in whose place a 0 keeps the other messages' sum what it is.
template <typename Put>
__device__ bool read_values(const std::byte* from, std::uint64_t count, std::uint64_t room,
                            Put put) {
  bool finite = true;
  for (std::uint64_t i = lane(); i < room; i += kLanes) {
    float v = i < count ? __uint_as_float(load_word(from + 4 * i)) : 0.0f;
    if (!is_finite(v)) finite = false, v = 0;
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

__global__ void read_factors(Frame frame, DecodePlan plan, DecodeInto into) {
  const auto at = unit_of_warp(frame, plan.jobs);
  if (!at) return;
  const DecodeJob& job = *at.entry;
  const LayerState& layer = frame.layer(job.layer);
  if (layer.decodes == 0 || (job.matrix != 0 && layer.bytes == 0)) return;
  const std::byte* const body = frame.message + layer.body_at;
  const bool good = job.matrix == 0
                        ? read_raw(layer, body, frame.info(job.layer).n, at.index, into)
                        : read_vector(frame, layer, body, frame(plan.outer.jobs)[job.outer],
                                      frame(plan.outer.states)[job.outer], at.index);
  if (!good) frame.refuse(job.layer, Status::corrupt);
}

}  // namespace

void plan(std::span<const LayerPlan> layers, Layout& layout, DecodePlan& plan) {
  constexpr MethodId kId = MethodId::factors;
  const std::size_t count = count_of_method<kId>(layers);
  plan = {};
  if (count == 0) return;
  std::size_t matrices = 0;
  for_each_of_method<kId>(layers, [&](std::uint32_t, const LayerPlan& layer) {
    matrices += format::is_matrix(layer.kind.shape) ? 1 : 0;
  });
  JobMaker<DecodeJob> jobs(layout, count);
  OuterPlanner outer(layout, matrices, 1);
  for_each_of_method<kId>(layers, [&](std::uint32_t number, const LayerPlan& layer) {
    if (!format::is_matrix(layer.kind.shape)) {
      jobs.add({number, 0, 0}, pieces_of(layer.n));
      return;
    }
    const MatrixShape shape = format::matrix_view(layer.kind.shape);
    jobs.add({number, outer.count(), 1},
             shape.shorter() * (pieces_of(shape.shorter()) + pieces_of(shape.longer())));
    OuterJob sum;
    sum.layer = number;
    outer.add(format::PairLayer::all_of(shape), sum, false);
  });
  plan = {jobs.jobs(), outer.finish()};
}

void decode_in_turn(const Frames& frames, const MessageRange& turn, const DecodePlan& plan,
                    DecodeInto into, Queue& queue) {
  for (std::uint32_t m = turn.first; m < turn.first + turn.count; ++m) {
    queue.launch_warps(read_factors, plan.jobs.units.units, frames[m], plan, into);
    sum_outer_products(frames, {m, 1}, plan.outer, into, queue);
  }
}

}  // namespace atomo::cuda::factors
