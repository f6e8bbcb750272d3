// SPDX-License-Identifier: Apache-2.0
/// One tensor and its message: the public `Codec`, on the CPU or on the backend of a device.
#include "atomo/codec.hpp"

#include <algorithm>

#include "backend/backend.hpp"
#include "codec/layer.hpp"
#include "codec/read_layers.hpp"
#include "codec/spec.hpp"
#include "core/fp_guard.hpp"
#include "core/status.hpp"

namespace atomo {

using namespace codec;

namespace codec {

const DeviceBackend& device_backend_for(const EncoderPlan& plan) {
  const DeviceBackend* const device = device_backend();
  if (device == nullptr) {
    throw Error(
        "this build of atomo has no CUDA backend: configure with -DATOMO_CUDA=ON where nvcc is");
  }
  if (!device->runs(plan)) {
    throw Error("'" + plan.stages->to_string() + "' has no CUDA twin" +
                (plan.has_cuda ? " for a tensor " + plan.kind.shape.to_string() : "") +
                ": encode it on the CPU");
  }
  return *device;
}

}  // namespace codec

Codec::Codec(std::shared_ptr<const Stages> stages)
    : stages_(std::move(stages)), traits_(std::make_shared<const Traits>(stages_->traits())) {}

Codec Codec::parse(std::string_view spec) {
  return Codec(std::make_shared<const Stages>(codec::parse_spec(spec)));
}

Codec Codec::without_lossless() const {
  if (!stages_->lossless) return *this;
  Stages plain = *stages_;
  plain.lossless.reset();
  return Codec(std::make_shared<const Stages>(std::move(plain)));
}

Codec Codec::without_memory() const {
  if (!stages_->memory) return *this;
  Stages plain = *stages_;
  plain.memory.reset();
  return Codec(std::make_shared<const Stages>(std::move(plain)));
}

std::string Codec::to_string() const { return stages_->to_string(); }

const Traits& Codec::traits() const noexcept { return *traits_; }

std::size_t Codec::max_encoded_bytes(const Shape& shape, DType dtype) const {
  stages_->body->check_shape(shape);
  const EncoderPlan plan(*stages_, shape, dtype);
  const std::size_t head = one_layer_head_bytes(plan.kind), most = max_message_bytes(plan, head);
  if (most > 0) return most;
  const double least =
      8.0 * static_cast<double>(head + plan.min_limit_bytes) / static_cast<double>(plan.n);
  throw Error("cap=" + codec::format_number(plan.price_rule.cap_bits) + " for a tensor " +
              shape.to_string() + ": one run of its atoms may need " + codec::format_number(least) +
              " bits a parameter; the layers of a model share its cap");
}

std::optional<std::uint64_t> Codec::expected_bytes(const Shape& shape, DType dtype) const {
  const EncoderPlan plan(*stages_, shape, dtype);
  return expected_message_bytes(plan, one_layer_head_bytes(plan.kind));
}

std::optional<std::size_t> Codec::wire_bytes(const Shape& shape, DType dtype) const {
  if (!traits_->bounded) return std::nullopt;
  return max_encoded_bytes(shape, dtype);
}

std::size_t Codec::encode_workspace_bytes(const Shape& shape, DType dtype, Device device) const {
  if (stages_->memory) {
    throw Error("'" + stages_->to_string() +
                "' keeps a memory, and a codec has no state: encode with a Compressor, or with '" +
                without_memory().to_string() + "'");
  }
  stages_->body->check_shape(shape);
  const EncoderPlan plan(*stages_, shape, dtype);
  if (device == Device::cuda) return codec::device_backend_for(plan).encode_workspace_bytes(plan);
  Carver carver;
  LayerEncoder layer(plan);
  layer.carve_price_input(carver);
  layer.carve(carver);
  return carver.bytes();
}

std::size_t Codec::decode_workspace_bytes(const Shape& shape, DType dtype, Device device) const {
  const EncoderPlan plan(*stages_, shape, dtype);
  if (device == Device::cuda) return codec::device_backend_for(plan).decode_workspace_bytes(plan);
  return plan.n == 0 ? 0 : read_layer_workspace(plan.kind, dtype, stages_->lossless.has_value());
}

Status Codec::encode(const ConstTensorView& view, const Key& key, const Payload& payload,
                     const Context& context) const noexcept {
  if (stages_->memory)
    return view.device == Device::cuda ? Status::unsupported : report(context, Status::unsupported);
  const EncoderPlan plan(*stages_, view.shape, view.dtype);
  if (view.device == Device::cuda) {
    const DeviceBackend* const device = backend::device_backend();
    return device == nullptr ? Status::unsupported
                             : device->encode(plan, view, key, payload, context);
  }
  const FpGuard guard;
  const std::size_t head = one_layer_head_bytes(plan.kind), most = max_message_bytes(plan, head);
  if (payload.data == nullptr || payload.bytes == nullptr)
    return report(context, Status::invalid_argument);
  if (most == 0) return report(context, Status::unsupported);
  if (payload.capacity < most) return report(context, Status::buffer_too_small);
  Carver carver(context.workspace);
  LayerEncoder layer(plan);
  layer.carve_price_input(carver);
  layer.carve(carver);
  if (!carver.fits()) return report(context, Status::workspace_too_small);

  Key used = context.key != nullptr ? *context.key : key;
  if (context.step != nullptr) used.step = *context.step;
  Status status = layer.prepare(view, used, context.executor);
  if (failed(status)) return report(context, status);

  LayerPrices prices;
  if (plan.price_rule.from == PriceRule::From::budget && layer.sends()) {
    const PriceInput* const input = &layer.price_input();
    const FoundPrice found =
        find_price({&input, 1}, single_body_budget(plan, 8.0 * static_cast<double>(head)));
    (plan.price_rule.pool == Pool::atoms ? prices.atoms : prices.grid) = found.price;
    status |= found.notices();
  }
  const Bytes bodies{payload.data + head, payload.capacity - head};
  status |= layer.write(prices, bodies, true);
  if (!failed(status)) status |= layer.fit({limit_of(plan, head), 1}, bodies);
  if (failed(status)) return report(context, status);

  const auto body = static_cast<std::size_t>(layer.row().bytes);
  const auto total = head + static_cast<std::size_t>(padded(body));
  std::fill(payload.data + head + body, payload.data + total, std::byte{0});
  write_one_layer_head(payload.data, plan.kind, layer.row(), used, prices.atoms, prices.grid,
                       layer.hashed(), context.executor);
  *payload.bytes = total;
  return report(context, status);
}

namespace {

/// Whether a message is one of this codec, of a tensor of this shape.
Status check_message(const Stages& stages, const Shape& shape, const Head& head) noexcept {
  if (head.layers() != 1) return Status::shape_mismatch;
  LayerCursor layer(head);
  Status status = Status::ok;
  if (!layer.next(status)) return status;
  if (shape != layer.kind.shape) return Status::shape_mismatch;
  const bool lossless = (layer.row.flags & LayerRecord::kLossless) != 0;
  if (stages.body->kind(layer.kind.shape, layer.kind.dtype) != layer.kind ||
      (lossless && !stages.lossless)) {
    return Status::codec_mismatch;
  }
  return Status::ok;
}

/// On the host or on the view's device.
Status decode_anywhere(const Stages& stages, std::span<const ConstBytes> messages, bool add,
                       float alpha, const TensorView& view, const Context& context) noexcept {
  if (view.device == Device::cpu) {
    const FpGuard guard;
    return report(context,
                  read_messages(
                      messages, add, alpha, context,
                      [&](const Head& head) { return check_message(stages, view.shape, head); },
                      [&](std::size_t) { return view; }));
  }
  const DeviceBackend* const device = backend::device_backend();
  return device == nullptr ? Status::unsupported
                           : device->decode(EncoderPlan(stages, view.shape, view.dtype), messages,
                                            add, alpha, view, context);
}

}  // namespace

Status Codec::decode(ConstBytes message, const TensorView& view,
                     const Context& context) const noexcept {
  return decode_anywhere(*stages_, {&message, 1}, false, 1, view, context);
}

Status Codec::decode_add(ConstBytes message, float alpha, const TensorView& view,
                         const Context& context) const noexcept {
  return decode_anywhere(*stages_, {&message, 1}, true, alpha, view, context);
}

Status Codec::decode_add_all(std::span<const ConstBytes> messages, float alpha,
                             const TensorView& view, const Context& context) const noexcept {
  return decode_anywhere(*stages_, messages, true, alpha, view, context);
}

}  // namespace atomo
