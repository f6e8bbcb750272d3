// SPDX-License-Identifier: Apache-2.0
/// minmax: stochastic int8 or int4 between a bucket's least and largest entry, as CGX (arXiv
/// 2111.08617) and ZeRO++ (arXiv 2306.10209) send gradients. FORMAT.md ("minmax") has the body.

#include <algorithm>
#include <atomic>
#include <cmath>

#include "codec/body_decoder.hpp"
#include "codec/spec.hpp"
#include "core/bits.hpp"
#include "core/philox.hpp"
#include "core/run_tasks.hpp"
#include "cpu/minmax.hpp"
#include "format/method_configs.hpp"
#include "math/minmax_rounding.hpp"

namespace atomo::codec {
namespace {

const std::vector<std::string> kBits = {"8", "4"};
const std::vector<std::string> kBuckets = {"128", "256", "512", "1024"};

/// A body of n entries, cut into its parts.
struct Parts {
  MinmaxConfig config;
  std::size_t n, bucket, buckets, code_bytes;

  Parts(const MinmaxConfig& of, std::size_t entries) noexcept
      : config(of),
        n(entries),
        bucket(std::size_t{1} << of.bucket_log),
        buckets(n / bucket + (n % bucket != 0)),
        code_bytes(of.bits == 8 ? n : n / 2 + n % 2) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return 8 * buckets + code_bytes; }
  [[nodiscard]] std::uint32_t levels() const noexcept { return (1u << config.bits) - 1; }
  [[nodiscard]] std::size_t end_of(std::size_t b) const noexcept {
    return std::min(n, (b + 1) * bucket);
  }
};

/// Entries of a task: whole buckets.
constexpr std::size_t kGrain = 65536;

MinmaxGrid load_grid(const std::byte* grids, std::size_t bucket) noexcept {
  return {load_le<float>(grids + 8 * bucket), load_le<float>(grids + 8 * bucket + 4)};
}

class Minmax final : public BodyEncoder {
 public:
  explicit Minmax(MinmaxConfig config) : config_(config) {}

  std::string to_string() const override { return spec_of(config_); }
  static std::string spec_of(const MinmaxConfig& config) {
    return "minmax:bits=" + std::to_string(config.bits) +
           ",bucket=" + std::to_string(1u << config.bucket_log);
  }
  Traits traits() const override {
    Traits t;
    t.cuda = t.unbiased = t.averages_over_workers = t.fixed_size = true;
    t.bias_bound = 0x1p-31;  // a probability to 2^-32 of a step
    // Between values a step apart the variance is at most a quarter of its square, and the square of
    // L steps at most 2 ||x||^2, as both ends are entries. A little more for values that f32 rounds.
    const double levels = (1 << config_.bits) - 1;
    t.omega = (1 << config_.bucket_log) / (2 * levels * levels) * (1 + 0x1p-8);
    t.smallest = 0x1p-126;  // steps of smaller layers have too few bits
    return t;
  }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::minmax, dtype, minmax_params(config_), shape};
  }
  std::size_t max_body_bytes(const Shape& shape) const override {
    return Parts(config_, shape.elements()).bytes();
  }
  bool finds_non_finite() const noexcept override { return true; }
  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    const LayerInput& layer = in.layer;
    const Parts parts(config_, layer.n);
    result.bytes = parts.bytes();
    if (body.size() < result.bytes) return Status::buffer_too_small;
    const Philox draws(layer.key, Purpose::minmax);
    std::byte* const codes = body.data() + 8 * parts.buckets;
    std::atomic<bool> finite{true};
    run_ranges(layer.executor, layer.n, kGrain, [&](std::size_t begin, std::size_t end) {
      for (std::size_t b = begin / parts.bucket; b * parts.bucket < end; ++b) {
        const std::size_t at = b * parts.bucket, to = parts.end_of(b);
        float least, largest;
        if (!cpu::minmax_ends(layer.x + at, to - at, least, largest)) {
          finite = false;
          return;
        }
        const MinmaxGrid grid = math::minmax_grid(least, largest, parts.levels());
        store_le(body.data() + 8 * b, grid.low);
        store_le(body.data() + 8 * b + 4, grid.step);
        cpu::minmax_codes(grid, largest, config_.bits, layer.x, draws, at, to, codes);
      }
    });
    return finite ? Status::ok : Status::non_finite;
  }

 private:
  MinmaxConfig config_;
};

std::string describe(const Kind& kind) {
  return valid_kind(kind) ? Minmax::spec_of(minmax_config(kind.params)) : std::string();
}
std::size_t max_bytes(const Kind& kind) noexcept {
  return Parts(minmax_config(kind.params), kind.shape.elements()).bytes();
}
std::size_t workspace(const Kind&) noexcept { return 0; }

/// Checks everything a body can break.
Status check(const Parts& parts, ConstBytes body) noexcept {
  if (body.size() != parts.bytes())
    return body.size() < parts.bytes() ? Status::truncated : Status::corrupt;
  for (std::size_t b = 0; b < parts.buckets; ++b) {
    const MinmaxGrid grid = load_grid(body.data(), b);
    if (!std::isfinite(grid.low) || !std::isfinite(grid.step) || std::signbit(grid.step))
      return Status::corrupt;
  }
  const bool padded = parts.config.bits == 4 && parts.n % 2 != 0;
  return padded && std::to_integer<unsigned>(body.back()) >> 4 != 0 ? Status::corrupt : Status::ok;
}

void decode(const LayerOutput& out) noexcept {
  const Parts parts(minmax_config(out.kind->params), out.n);
  add_bodies<const std::byte*>(
      out.bodies, out.n, out.executor,
      [&](const LayerBody& body, const std::byte*& grids) {
        grids = body.bytes.data();
        return check(parts, body.bytes);
      },
      [&](const std::byte* grids, std::size_t begin, std::size_t end) {
        const std::byte* const codes = grids + 8 * parts.buckets;
        for (std::size_t b = begin / parts.bucket; b * parts.bucket < end; ++b) {
          const MinmaxGrid grid = load_grid(grids, b);
          for (std::size_t i = b * parts.bucket; i < std::min(end, parts.end_of(b)); ++i) {
            const auto byte =
                std::to_integer<std::uint32_t>(codes[parts.config.bits == 8 ? i : i / 2]);
            const std::uint32_t code = parts.config.bits == 8 ? byte : byte >> (4 * (i % 2)) & 15u;
            const float v = math::minmax_value(grid, code);
            out.y[i] = out.add ? out.y[i] + (out.alpha * v) : v;
          }
        }
      });
}
static_assert(cpu::kStretch % (std::size_t{1} << MinmaxConfig::kMaxBucketLog) == 0);

}  // namespace

const BodyDecoder decoders::minmax{describe, max_bytes, workspace, decode, count_no_atoms};

std::shared_ptr<const BodyEncoder> make_minmax(SpecArgs& args) {
  MinmaxConfig config;
  config.bits = args.choice("bits", kBits, 0) == 0 ? 8 : 4;
  config.bucket_log =
      MinmaxConfig::kMinBucketLog + static_cast<int>(args.choice("bucket", kBuckets, 2));
  return std::make_shared<Minmax>(config);
}

}  // namespace atomo::codec
