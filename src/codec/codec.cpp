// SPDX-License-Identifier: Apache-2.0
#include "atomo/codec.hpp"
#include "core/status.hpp"

#include <algorithm>

#include "backend/backend.hpp"
#include "codec/layer.hpp"
#include "codec/price_search.hpp"
#include "codec/spec.hpp"
#include "core/fp_guard.hpp"

namespace atomo {

using namespace codec;

using codec::EncoderPlan;
using codec::LayerWork;
using core::Carver;
using core::report;
using format::Head;
using format::LayerCursor;
using price::Pool;

namespace codec {

const DeviceBackend& device_backend_for(const EncoderPlan& plan) {
  const DeviceBackend* const device = device_backend();
  if (device == nullptr) {
    throw Error(
        "this build of atomo has no CUDA backend: configure with -DATOMO_CUDA=ON where nvcc is");
  }
  if (!device->runs(plan)) {
    throw Error("'" + plan.method->to_string() + "' has no CUDA twin" +
                (plan.has_cuda ? " for a tensor " + plan.kind.shape.to_string() : "") +
                ": encode it on the CPU");
  }
  return *device;
}

}  // namespace codec

Codec::Codec(std::shared_ptr<const codec::Method> method)
    : method_(std::move(method)), traits_(std::make_shared<const Traits>(method_->traits())) {}

Codec Codec::parse(std::string_view spec) { return Codec(codec::parse_spec(spec)); }

Codec Codec::without_lossless() const {
  auto plain = method_->without_lossless();
  return plain == nullptr ? *this : Codec(std::move(plain));
}

std::string Codec::to_string() const { return method_->to_string(); }

const Traits& Codec::traits() const noexcept { return *traits_; }

std::size_t Codec::max_encoded_bytes(const Shape& shape, DType dtype) const {
  const EncoderPlan plan(*method_, shape, dtype);
  const std::size_t head = format::one_layer_head_bytes(plan.kind),
                    limit = backend::limit_of(plan, head);
  if (limit > 0 && limit < plan.least_limit_bytes) {
    const double least =
        8.0 * static_cast<double>(head + plan.least_limit_bytes) / static_cast<double>(plan.n);
    throw Error("cap=" + codec::format_number(method_->cap_bits()) + " for a tensor " +
                shape.to_string() + ": one run of its atoms may need " +
                codec::format_number(least) +
                " bits a parameter; the layers of a model share its cap");
  }
  return head + static_cast<std::size_t>(format::padded(
                    limit > 0 ? std::min(limit, plan.max_body_bytes) : plan.max_body_bytes));
}

std::size_t Codec::workspace_bytes(const Shape& shape, DType dtype, Device device) const {
  const EncoderPlan plan(*method_, shape, dtype);
  if (device == Device::cuda) return codec::device_backend_for(plan).workspace_bytes(plan);
  if (plan.n == 0) return 0;
  Carver encode;
  LayerWork().carve(plan, encode, true);
  return std::max(encode.bytes(),
                  codec::read_layer_workspace(plan.kind, dtype, method_->lossless()));
}

Status Codec::encode(const ConstTensorView& view, const Key& key, const Payload& payload,
                     const Context& context) const noexcept {
  if (view.device == Device::cuda) {
    const backend::DeviceBackend* const device = backend::device_backend();
    return device == nullptr ? Status::unsupported
                             : device->encode(EncoderPlan(*method_, view.shape, view.dtype), view,
                                              key, payload, context);
  }
  const core::FpGuard guard;
  const EncoderPlan plan(*method_, view.shape, view.dtype);
  const std::size_t head = format::one_layer_head_bytes(plan.kind),
                    limit = backend::limit_of(plan, head);
  if (limit > 0 && limit < plan.least_limit_bytes) return report(context, Status::unsupported);
  const std::size_t most = limit > 0 ? std::min(plan.max_body_bytes, limit) : plan.max_body_bytes;
  if (payload.data == nullptr || payload.bytes == nullptr)
    return report(context, Status::unsupported);
  if (payload.capacity < head + format::padded(most))
    return report(context, Status::buffer_too_small);
  Carver carver(context.workspace);
  LayerWork work;
  work.carve(plan, carver, true);
  if (!carver.fits()) return report(context, Status::workspace_too_small);

  Key used = key;
  if (context.step != nullptr) used.step = *context.step;
  Status status = open_layer(plan, view, used, context.executor, work);
  if (failed(status)) return report(context, status);

  const double fixed_bits = 8.0 * static_cast<double>(head);
  codec::Prices prices;
  bool overspent = false;
  if (method_->pool() != Pool::none && method_->budget_bits() > 0 && work.sends()) {
    const codec::Demand demand{method_.get(), &plan.kind.shape, work.demand};
    const auto found = codec::find_price(
        {&demand, 1},
        price::body_budget(method_->budget_bits() * static_cast<double>(plan.n), fixed_bits));
    (method_->pool() == Pool::atoms ? prices.atoms : prices.grid) = found.price;
    if (found.underspent) status = core::worse(status, Status::underspent);
    overspent = found.overspent;
  }
  format::Row row;
  const Bytes bodies{payload.data + head, payload.capacity - head};
  status = core::worse(status, write_layer(plan, work, prices, fixed_bits, bodies, row));
  if (!failed(status))
    status = core::worse(status, finish_layer(plan, work, {limit, 1}, bodies, row));
  if (failed(status)) return report(context, status);

  const auto body = static_cast<std::size_t>(row.bytes);
  const auto total = head + static_cast<std::size_t>(format::padded(row.bytes));
  std::fill(payload.data + head + body, payload.data + total, std::byte{0});
  format::write_one_layer_head(payload.data, plan.kind, row, used, prices.atoms, prices.grid);
  *payload.bytes = total;
  return report(context, core::with_overspent(status, overspent));
}

namespace {

Status decode_one(const codec::Method& method, ConstBytes message, bool add, float alpha,
                  const TensorView& view, const Context& context) noexcept {
  const core::FpGuard guard;
  Head head;
  if (const Status s = Head::parse(message, false, head); failed(s)) return s;
  if (head.layers() != 1) return Status::shape_mismatch;
  LayerCursor layer(head);
  Status status = Status::ok;
  if (!layer.next(status)) return status;
  if (view.shape != layer.kind.shape) return Status::shape_mismatch;
  const bool lossless = (layer.row.flags & format::Row::kLossless) != 0;
  if (method.kind(layer.kind.shape, layer.kind.dtype) != layer.kind ||
      (lossless && !method.lossless())) {
    return Status::codec_mismatch;
  }
  return read_layer(layer, head.header(), view, add, alpha, context.workspace, context.executor);
}

/// On the host or on the view's device.
Status decode_anywhere(const codec::Method& method, ConstBytes message, bool add, float alpha,
                       const TensorView& view, const Context& context) noexcept {
  if (view.device == Device::cpu)
    return report(context, decode_one(method, message, add, alpha, view, context));
  const backend::DeviceBackend* const device = backend::device_backend();
  return device == nullptr ? Status::unsupported
                           : device->decode(EncoderPlan(method, view.shape, view.dtype), message,
                                            add, alpha, view, context);
}

}  // namespace

Status Codec::decode(ConstBytes message, const TensorView& view,
                     const Context& context) const noexcept {
  return decode_anywhere(*method_, message, false, 1, view, context);
}

Status Codec::decode_add(ConstBytes message, float alpha, const TensorView& view,
                         const Context& context) const noexcept {
  return decode_anywhere(*method_, message, true, alpha, view, context);
}

}  // namespace atomo
