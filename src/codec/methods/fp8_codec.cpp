// SPDX-License-Identifier: Apache-2.0
/// identity:dtype=e4m3 and e5m2: eight bits of floating point and a sign, rounded at random, under one
/// scale a layer. FORMAT.md ("fp8") has the body.

#include <array>
#include <cmath>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "core/bits.hpp"
#include "core/philox.hpp"
#include "core/run_tasks.hpp"
#include "core/workspace.hpp"
#include "cpu/fp8.hpp"
#include "cpu/reduce.hpp"
#include "math/fp8_rounding.hpp"

namespace atomo::codec {
namespace {

constexpr std::size_t kGrain = 65536;  ///< entries of a task, whole tiles
constexpr std::size_t kScaleBytes = 4;

std::string spec_of(std::uint32_t params) {
  return params == 0 ? "identity:dtype=e4m3" : "identity:dtype=e5m2";
}

class Fp8 final : public BodyEncoder {
 public:
  explicit Fp8(std::uint32_t params) : params_(params) {}

  std::string to_string() const override { return spec_of(params_); }
  Traits traits() const override {
    Traits t;
    t.cuda = t.unbiased = t.averages_over_workers = t.fixed_size = true;
    t.bias_bound = 0x1p-31;  // a probability to 2^-32 of a step
    return t;                // no omega: far below the largest entry steps are relative no more
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::fp8, dtype, params_, shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return kScaleBytes + shape.elements();
  }
  std::size_t scratch_bytes(const Shape& shape) const override {
    Carver carver;
    carver.take<double>(cpu::reduce_scratch(shape.elements()));
    return carver.bytes();
  }
  bool finds_non_finite() const noexcept override { return true; }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    const LayerInput& layer = in.layer;
    result.bytes = kScaleBytes + layer.n;
    if (body.size() < result.bytes) return Status::buffer_too_small;
    Carver carver(in.scratch);
    const auto scratch = carver.take<double>(cpu::reduce_scratch(layer.n));
    if (!carver.fits()) return Status::workspace_too_small;
    const float largest = cpu::layer_max_abs(layer.x, layer.n, scratch, layer.executor);
    if (!std::isfinite(largest)) return Status::non_finite;
    const math::Fp8Type type = math::fp8_type(params_);
    const int exponent = math::fp8_scale(type, largest);
    store_le(body.data(), static_cast<float>(math::power_of_two(exponent)));
    const math::Fp8Grid grid = math::fp8_grid(type, exponent);
    const Philox draws(layer.key, Purpose::fp8);
    std::byte* const codes = body.data() + kScaleBytes;
    run_ranges(layer.executor, layer.n, kGrain, [&](std::size_t begin, std::size_t end) {
      cpu::fp8_codes(grid, layer.x, draws, begin, end, codes);
    });
    return Status::ok;
  }

 private:
  std::uint32_t params_;
};

std::string describe(const Kind& kind) {
  return valid_kind(kind) ? spec_of(kind.params) : std::string();
}
std::size_t max_bytes(const Kind& kind) noexcept { return kScaleBytes + kind.shape.elements(); }
std::size_t workspace(const Kind&) noexcept { return 0; }

/// A body that was checked.
struct Opened {
  const std::byte* codes;
  float scale;
};

Status open(const math::Fp8Type& type, ConstBytes body, std::size_t n, Opened& opened) noexcept {
  if (body.size() != kScaleBytes + n)
    return body.size() < kScaleBytes + n ? Status::truncated : Status::corrupt;
  int exponent = 0;
  if (!math::read_fp8_scale(type, load_le<std::uint32_t>(body.data()), exponent))
    return Status::corrupt;
  opened = {body.data() + kScaleBytes, load_le<float>(body.data())};
  unsigned beyond = 0;
  for (const std::byte code : body.subspan(kScaleBytes))
    beyond |= (std::to_integer<unsigned>(code) & 0x7Fu) > type.last_code ? 1u : 0u;
  return beyond == 0 ? Status::ok : Status::corrupt;
}

void decode(const LayerOutput& out) noexcept {
  const math::Fp8Type type = math::fp8_type(out.kind->params);
  add_bodies<Opened>(
      out.bodies, out.n, out.executor,
      [&](const LayerBody& body, Opened& opened) { return open(type, body.bytes, out.n, opened); },
      [&](const Opened& body, std::size_t begin, std::size_t end) {
        std::array<float, 256> values;
        for (std::uint32_t code = 0; code < 128; ++code) {
          values[code] = math::fp8_value(type, code, body.scale);
          values[code + 128] = -values[code];
        }
        for (std::size_t i = begin; i < end; ++i) {
          const float v = values[std::to_integer<std::size_t>(body.codes[i])];
          out.y[i] = out.add ? out.y[i] + (out.alpha * v) : v;
        }
      });
}

}  // namespace

const BodyDecoder decoders::fp8{describe, max_bytes, workspace, decode, count_no_atoms};

std::shared_ptr<const BodyEncoder> make_fp8(std::uint32_t params) {
  return std::make_shared<Fp8>(params);
}

}  // namespace atomo::codec
