// SPDX-License-Identifier: Apache-2.0
/// own: bodies of registered codecs, behind the spec that made them (FORMAT.md, "own"). Those with a
/// budget choose a setting of theirs at the price. Whatever their code throws ends here, as a status.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/body_decoder.hpp"
#include "codec/own_codecs.hpp"
#include "codec/spec.hpp"
#include "core/philox.hpp"
#include "core/workspace.hpp"
#include "format/own_body.hpp"
#include "price/settings.hpp"

namespace atomo::codec {
namespace {

using format::max_own_body_bytes;
using format::OwnBody;

/// The words of a layer.
class LayerDraws final : public Draws {
 public:
  explicit LayerDraws(const Key& key) noexcept : draws_(key, Purpose::own) {}
  void fill(std::uint64_t first, std::span<std::uint32_t> words) const noexcept override {
    for (std::size_t i = 0; i < words.size();) {
      const std::uint64_t at = first + i;
      const PhiloxWords block = draws_(at / 4);
      if (at % 4 == 0 && words.size() - i >= 4) {
        std::ranges::copy(block, words.data() + i);
        i += 4;
      } else {
        words[i++] = block[at % 4];
      }
    }
  }

 private:
  Philox draws_;
};

/// Runs a codec's code. What it throws becomes a status, and the text of `codec_error`.
template <typename Call>
Status guarded(const OwnInstance& instance, const char* doing, Call call) noexcept {
  try {
    return call();
  } catch (const std::exception& e) {
    try {
      note_codec_error(instance.spec, "failed in " + std::string(doing) + ": " + e.what());
    } catch (...) {  // out of memory: the status stays
    }
  } catch (...) {
    note_codec_error(instance.spec, "failed: it threw what is no std::exception");
  }
  return Status::codec_failed;
}

/// `Base`: BodyEncoder, or PricedEncoder for a codec with a budget.
template <typename Base>
class Own : public Base {
 public:
  explicit Own(std::shared_ptr<const OwnInstance> instance)
      : instance_(std::move(instance)), params_(format::own_params(instance_->spec)) {}

  std::string to_string() const override { return instance_->spec; }
  Traits traits() const override { return instance_->traits; }
  Kind kind(const Shape& shape, DType dtype) const override {
    return {MethodId::own, dtype, params_, shape};
  }
  /// The format's bound where the codec states none; `check_shape` and `encode` refuse that.
  std::size_t max_body_bytes(const Shape& shape) const override {
    std::size_t claimed = 0;
    return failed(claim(shape, claimed)) ? max_own_body_bytes(shape.elements()) : head() + claimed;
  }
  void check_shape(const Shape& shape) const override {
    std::size_t claimed = 0;
    if (shape.elements() > 0 && failed(claim(shape, claimed))) throw Error(codec_error());
  }

  Status encode(const BodyInput& in, Bytes body, BodyResult& result) const noexcept override {
    const Shape& shape = *in.layer.shape;
    std::size_t claimed = 0;
    if (const Status s = claim(shape, claimed); failed(s)) return s;
    if (body.size() < head() + claimed) return Status::buffer_too_small;
    body[0] = static_cast<std::byte>(instance_->spec.size());
    std::memcpy(body.data() + 1, instance_->spec.data(), instance_->spec.size());
    const LayerDraws draws(in.layer.key);
    const std::size_t setting = setting_of(in);
    return guarded(*instance_, "encode", [&] {
      const std::size_t bytes =
          instance_->codec->encode({in.layer.x, in.layer.n}, {shape, in.layer.key, draws, setting},
                                   body.subspan(head(), claimed));
      const bool fits = instance_->traits.fixed_size ? bytes == claimed : bytes <= claimed;
      if (!fits)
        throw Error("it wrote " + std::to_string(bytes) + " bytes for a tensor " +
                    shape.to_string() + ", and its max_bytes says " + std::to_string(claimed));
      result.bytes = head() + bytes;
      return Status::ok;
    });
  }

 protected:
  [[nodiscard]] virtual std::size_t setting_of(const BodyInput&) const noexcept { return 0; }
  [[nodiscard]] std::size_t head() const noexcept {
    return format::own_head_bytes(instance_->spec);
  }
  [[nodiscard]] const OwnInstance& instance() const noexcept { return *instance_; }
  /// What the codec says that a body takes at most.
  Status claim(const Shape& shape, std::size_t& bytes) const noexcept {
    return guarded(*instance_, "max_bytes", [&] {
      bytes = instance_->codec->max_bytes(shape);
      const std::size_t most = max_own_body_bytes(shape.elements()) - head();
      if (bytes > most)
        throw Error(std::to_string(bytes) + " bytes for a tensor " + shape.to_string() +
                    ": expected at most " + std::to_string(most));
      return Status::ok;
    });
  }

 private:
  std::shared_ptr<const OwnInstance> instance_;
  std::uint32_t params_;
};

/// A codec with a budget: it shares the price of atoms.
class PricedOwn final : public Own<PricedEncoder> {
 public:
  using Own::Own;

  PriceRule price_rule(const Shape&) const noexcept override {
    PriceRule rule;
    rule.pool = Pool::atoms;
    rule.from = PriceRule::From::budget;
    rule.budget_bits = instance().budget_bits;
    return rule;
  }
  void carve_price_input(const Shape&, Prepared& prepared, Carver& carver) const override {
    prepared.settings = carver.take<Setting>(OwnCodec::kMaxRatePoints);
  }
  Status prepare(const LayerInput& in, Prepared& prepared, Bytes) const noexcept override {
    return guarded(instance(), "price", [&] {
      const std::vector<RatePoint> points = instance().codec->price({in.x, in.n}, *in.shape);
      if (points.empty() || points.size() > OwnCodec::kMaxRatePoints)
        throw Error("it gave " + std::to_string(points.size()) + " rate points for a tensor " +
                    in.shape->to_string() + ": expected 1 to " +
                    std::to_string(OwnCodec::kMaxRatePoints));
      std::size_t claimed = 0;
      if (const Status s = claim(*in.shape, claimed); failed(s)) return s;
      for (std::size_t i = 0; i < points.size(); ++i) {
        check_point(points[i], i, claimed);
        const double bytes = points[i].bytes + static_cast<double>(head());
        prepared.settings[i] = {static_cast<std::uint64_t>(std::llround(8 * 256 * bytes)),
                                points[i].squared_error};
      }
      prepared.price.settings = prepared.settings.first(points.size());
      return Status::ok;
    });
  }

 private:
  std::size_t setting_of(const BodyInput& in) const noexcept override {
    return price::best_setting(in.prepared->price.settings, in.price);
  }

  /// \throws Error
  static void check_point(const RatePoint& point, std::size_t setting, std::size_t most) {
    const std::string what = "rate point " + std::to_string(setting) + " has ";
    if (!(point.bytes >= 0 && point.bytes <= static_cast<double>(most)))
      throw Error(what + format_number(point.bytes) + " bytes: expected 0 to its max_bytes, " +
                  std::to_string(most));
    if (!(point.squared_error >= 0 && std::isfinite(point.squared_error)))
      throw Error(what + "the squared error " + format_number(point.squared_error) +
                  ": expected a finite number of at least 0");
  }
};

std::string describe(const Kind&) { return "own"; }
std::size_t max_bytes(const Kind& kind) noexcept {
  return max_own_body_bytes(kind.shape.elements());
}
/// Values of a body that is added.
std::size_t workspace(const Kind& kind) noexcept {
  Carver carver;
  carver.take<float>(kind.shape.elements());
  return carver.bytes();
}

Status decode_body(const LayerOutput& out, const LayerBody& body, std::span<float> y) noexcept {
  OwnBody opened;
  if (const Status s = format::open_own_body(body.bytes, out.kind->params, out.n, opened);
      failed(s))
    return s;
  Status status = Status::ok;
  const auto instance = find_own(opened.spec, status);
  if (instance == nullptr) return status;
  std::fill(y.begin(), y.end(), 0.0f);
  const LayerDraws draws(body.key);
  return guarded(*instance, "decode", [&] {
    instance->codec->decode(opened.proper, {out.kind->shape, body.key, draws}, y);
    return Status::ok;
  });
}

void decode(const LayerOutput& out) noexcept {
  if (!out.add) {
    LayerBody& body = out.bodies.front();
    body.status = decode_body(out, body, {out.y, out.n});
    return;
  }
  Carver carver(out.workspace);
  const auto values = carver.take<float>(out.n);
  for (LayerBody& body : out.bodies) {
    body.status = carver.fits() ? decode_body(out, body, values) : Status::workspace_too_small;
    if (failed(body.status)) continue;
    for (std::size_t i = 0; i < out.n; ++i) out.y[i] = out.y[i] + (out.alpha * values[i]);
  }
}

Status count(ConstBytes body, const Kind& kind, std::uint8_t, std::uint64_t& atoms,
             std::uint64_t& kept) noexcept {
  atoms = kept = 0;
  OwnBody opened;
  return format::open_own_body(body, kind.params, kind.shape.elements(), opened);
}

}  // namespace

const BodyDecoder decoders::own{describe, max_bytes, workspace, decode, count};

std::shared_ptr<const BodyEncoder> make_own(std::string_view name, SpecArgs& args) {
  auto instance = parse_own(name, args);
  if (instance->budget_bits > 0) return std::make_shared<PricedOwn>(std::move(instance));
  return std::make_shared<Own<BodyEncoder>>(std::move(instance));
}

}  // namespace atomo::codec

namespace atomo {

void own_draws(const Key& key, std::uint64_t first, std::span<std::uint32_t> words) noexcept {
  codec::LayerDraws(key).fill(first, words);
}

}  // namespace atomo
