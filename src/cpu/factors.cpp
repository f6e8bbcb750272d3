// SPDX-License-Identifier: Apache-2.0
/// Keeps singular pairs with the probabilities of ATOMO's Algorithm 1 and sends them as f32; reads
/// them back as a sum of outer products.
#include "cpu/factors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/bits.hpp"
#include "core/philox.hpp"
#include "core/workspace.hpp"
#include "cpu/outer_products.hpp"
#include "cpu/svd.hpp"
#include "format/factors_body.hpp"

namespace atomo::cpu {
namespace {

struct FactorsMemory {
  std::span<float> shorter, longer;
  std::span<double> sigma;
  std::span<std::uint64_t> probabilities;
  std::span<std::uint32_t> numbers;
  Bytes svd;

  FactorsMemory(Carver& carver, const MatrixShape& shape) noexcept
      : shorter(carver.take<float>(shape.shorter() * shape.shorter())),
        longer(carver.take<float>(shape.shorter() * shape.longer())),
        sigma(carver.take<double>(shape.shorter())),
        probabilities(carver.take<std::uint64_t>(shape.shorter())),
        numbers(carver.take<std::uint32_t>(shape.shorter())),
        svd(carver.take_bytes(cpu::svd_workspace_bytes(shape))) {}
};

/// The vectors of a body, one kind after the other.
struct FactorsBody {
  std::size_t kept = 0;
  std::int32_t exponent = 0;
  const std::byte* shorter = nullptr;
  const std::byte* longer = nullptr;

  [[nodiscard]] bool open(ConstBytes body, const MatrixShape& shape) noexcept {
    if (body.size() < kFactorsHeadBytes) return false;
    kept = load_le<std::uint32_t>(body.data());
    exponent = load_le<std::int32_t>(body.data() + 4);
    if (kept == 0 || kept > shape.shorter() || body.size() != factors_bytes(shape, kept)) {
      return false;
    }
    if (exponent < -kMaxFactorsExponent || exponent > kMaxFactorsExponent) return false;
    shorter = body.data() + kFactorsHeadBytes;
    longer = shorter + 4 * kept * shape.shorter();
    return all_finite(shorter, kept * (shape.shorter() + shape.longer()));
  }

 private:
  static bool all_finite(const std::byte* values, std::size_t count) noexcept {
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits = load_le<std::uint32_t>(values + 4 * i);
      bad |= (bits & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
    }
    return bad == 0;
  }
};

void add_zeros(std::size_t n, cpu::DecodeMode mode, float* y) noexcept {
  for (std::size_t i = 0; i < n; ++i) y[i] = mode.add ? y[i] + (mode.alpha * 0.0f) : 0.0f;
}

}  // namespace

std::size_t encode_factors_workspace_bytes(const MatrixShape& shape) noexcept {
  Carver carver;
  FactorsMemory(carver, shape);
  return carver.bytes();
}

Status encode_factors(const float* g, const MatrixShape& shape, std::uint64_t keep, const Key& key,
                      Bytes workspace, Bytes body, std::size_t& bytes) noexcept {
  bytes = 0;
  if (body.size() < factors_bytes(shape, max_kept_pairs(shape, keep))) {
    return Status::buffer_too_small;
  }
  Carver carver(workspace);
  const FactorsMemory memory(carver, shape);
  if (!carver.fits()) return Status::workspace_too_small;
  SingularPairs pairs{memory.shorter, memory.longer, memory.sigma};
  const Status status = cpu::svd(g, shape, pairs, memory.svd);
  if (failed(status)) return status;
  cpu::water_fill(pairs.sigma, keep, memory.probabilities, memory.numbers);
  const Philox draws(key, Purpose::select_pair);
  const std::size_t kept = draw_pairs(
      memory.probabilities, [&](std::size_t c) { return draws(c)[0]; }, memory.numbers);
  if (kept == 0) return status;
  store_le(body.data(), static_cast<std::uint32_t>(kept));
  store_le(body.data() + 4, std::int32_t{pairs.exponent});
  std::byte* out = body.data() + kFactorsHeadBytes;
  const std::size_t side = shape.shorter(), length = shape.longer();
  for (const std::uint32_t k : memory.numbers.first(kept)) {
    std::memcpy(out, pairs.shorter.data() + k * side, 4 * side);
    out += 4 * side;
  }
  for (const std::uint32_t k : memory.numbers.first(kept)) {
    const double weight = pair_scale(memory.probabilities[k]);
    for (std::size_t j = 0; j < length; ++j, out += 4) {
      store_le(out, static_cast<float>(static_cast<double>(pairs.longer[k * length + j]) * weight));
    }
  }
  bytes = factors_bytes(shape, kept);
  return status;
}

std::size_t decode_factors_workspace_bytes(const MatrixShape& shape) noexcept {
  Carver carver;
  carver.take_bytes(factors_bytes(shape, shape.shorter()) - kFactorsHeadBytes);
  return carver.bytes();
}

Status decode_factors(ConstBytes body, const MatrixShape& shape, cpu::DecodeMode mode, float* y,
                      Bytes workspace, Executor* executor) noexcept {
  if (body.empty()) {
    add_zeros(shape.rows * shape.columns, mode, y);
    return Status::ok;
  }
  FactorsBody factors;
  if (!factors.open(body, shape)) return Status::corrupt;
  const std::size_t shorter_bytes = 4 * factors.kept * shape.shorter();
  const std::size_t longer_bytes = 4 * factors.kept * shape.longer();
  // A body may lie at any address.
  Carver carver(workspace);
  const auto copy = carver.take<float>((shorter_bytes + longer_bytes) / 4);
  if (!carver.fits()) return Status::workspace_too_small;
  std::memcpy(copy.data(), factors.shorter, shorter_bytes + longer_bytes);
  const float* const shorter = copy.data();
  const float* const longer = shorter + shorter_bytes / 4;
  const bool wide = shape.rows <= shape.columns;
  return sum_outer_products({wide ? shorter : longer, wide ? longer : shorter, factors.kept,
                             shape.rows, shape.columns, std::ldexp(1.0, factors.exponent)},
                            mode, y, executor);
}

Status count_factors(ConstBytes body, const MatrixShape& shape, std::uint64_t& kept) noexcept {
  kept = 0;
  if (body.empty()) return Status::ok;
  FactorsBody factors;
  if (!factors.open(body, shape)) return Status::corrupt;
  kept = factors.kept;
  return Status::ok;
}

}  // namespace atomo::cpu
