// SPDX-License-Identifier: Apache-2.0
/// own: bodies of registered codecs, behind the spec that made them (FORMAT.md, "own"). Whatever their
/// code throws ends here, as a status.

#include <algorithm>
#include <cstring>

#include "codec/body_decoder.hpp"
#include "codec/own_codecs.hpp"
#include "codec/spec.hpp"
#include "core/philox.hpp"
#include "core/workspace.hpp"
#include "format/own_body.hpp"

namespace atomo::codec {
namespace {

using format::max_own_body_bytes;
using format::OwnBody;

/// The words of a layer.
class LayerDraws final : public Draws {
 public:
  explicit LayerDraws(const Key& key) noexcept : draws_(key, Purpose::own) {}
  void fill(std::uint64_t first, std::span<std::uint32_t> words) const noexcept override {
    PhiloxWords block{};
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::uint64_t at = first + i;
      if (i == 0 || at % 4 == 0) block = draws_(at / 4);
      words[i] = block[at % 4];
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

class Own final : public BodyEncoder {
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
    return guarded(*instance_, "encode", [&] {
      const std::size_t bytes = instance_->codec->encode(
          {in.layer.x, in.layer.n}, {shape, in.layer.key, draws}, body.subspan(head(), claimed));
      const bool fits = instance_->traits.fixed_size ? bytes == claimed : bytes <= claimed;
      if (!fits)
        throw Error("it wrote " + std::to_string(bytes) + " bytes for a tensor " +
                    shape.to_string() + ", and its max_bytes says " + std::to_string(claimed));
      result.bytes = head() + bytes;
      return Status::ok;
    });
  }

 private:
  [[nodiscard]] std::size_t head() const noexcept {
    return format::own_head_bytes(instance_->spec);
  }

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

  std::shared_ptr<const OwnInstance> instance_;
  std::uint32_t params_;
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
  return std::make_shared<Own>(parse_own(name, args));
}

}  // namespace atomo::codec

namespace atomo {

void own_draws(const Key& key, std::uint64_t first, std::span<std::uint32_t> words) noexcept {
  codec::LayerDraws(key).fill(first, words);
}

}  // namespace atomo
