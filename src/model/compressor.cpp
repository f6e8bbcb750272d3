// SPDX-License-Identifier: Apache-2.0
/// The public `Compressor`: checks what the caller gives and guards the floating-point modes;
/// `Impl` does the rest.
#include "atomo/compressor.hpp"

#include <algorithm>
#include <utility>

#include "atomo/arithmetic.hpp"
#include "atomo/container.hpp"
#include "codec/spec.hpp"
#include "core/fp_guard.hpp"
#include "model/model.hpp"

namespace atomo {

using namespace model;

namespace {

bool any_half(std::span<const TensorView> views) noexcept {
  return std::any_of(views.begin(), views.end(),
                     [](const TensorView& v) { return v.dtype != DType::f32; });
}

}  // namespace

Compressor::Compressor(std::vector<LayerSpec> layers, Policy policy, CompressorOptions options)
    : impl_(std::make_unique<Impl>(std::move(layers), std::move(policy), options)) {}
Compressor::Compressor(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Compressor::Compressor(Compressor&&) noexcept = default;
Compressor& Compressor::operator=(Compressor&&) noexcept = default;
Compressor::~Compressor() = default;

const std::vector<LayerSpec>& Compressor::layers() const noexcept { return impl_->layers; }
const Codec& Compressor::codec(std::size_t layer) const { return impl_->codecs.at(layer); }
std::uint64_t Compressor::elements() const noexcept {
  std::uint64_t n = 0;
  for (const auto& plan : impl_->plans) n += plan.n;
  return n;
}
std::size_t Compressor::max_encoded_bytes() const noexcept { return impl_->max_bytes; }
std::size_t Compressor::max_encoded_bytes(std::size_t layer) const {
  return impl_->one_head.at(layer) +
         static_cast<std::size_t>(padded(impl_->plans.at(layer).max_body_bytes));
}
std::optional<std::uint64_t> Compressor::expected_bytes() const noexcept {
  double fixed_bodies = 0;
  for (std::size_t i = 0; i < impl_->plans.size(); ++i) {
    const EncoderPlan& plan = impl_->plans[i];
    if (plan.n == 0 || impl_->has_budget(i)) continue;
    if (!plan.fixed_size) return std::nullopt;
    fixed_bodies += static_cast<double>(padded(plan.max_body_bytes));
  }
  // The budgets pay for the head too.
  const auto head = static_cast<double>(impl_->layout.bytes());
  const double budgeted = body_budget(impl_->budget_bytes(), head);
  return static_cast<std::uint64_t>(head + budgeted + fixed_bodies);
}
std::optional<std::size_t> Compressor::wire_bytes() const noexcept { return impl_->wire_bytes(); }
std::size_t Compressor::encode_workspace_bytes() const noexcept { return impl_->encode_workspace; }
std::size_t Compressor::encode_workspace_bytes(std::size_t layer) const {
  const EncoderPlan& plan = impl_->plans.at(layer);
  if (impl_->device != nullptr) return device_backend()->encode_workspace_bytes(plan);
  Carver carver;
  LayerEncoder(plan).carve(carver);
  return carver.bytes();
}
std::size_t Compressor::decode_workspace_bytes() const noexcept { return impl_->decode_workspace; }
std::size_t Compressor::decode_workspace_bytes(std::size_t layer) const {
  EncoderPlan plan = impl_->plans.at(layer);
  plan.kind.dtype = DType::f16;  // a half view needs f32 values behind it
  return impl_->device != nullptr
             ? device_backend()->decode_workspace_bytes(plan)
             : read_layer_workspace(plan.kind, DType::f16, plan.stages->lossless.has_value());
}

Status Compressor::encode(std::span<const ConstTensorView> layers, const Key& key,
                          const Payload& payload, const Context& context) noexcept {
  if (impl_->in_message || impl_->in_step)
    return impl_->report_on_host(context, Status::wrong_stage);
  impl_->forget_moves();
  if (impl_->device != nullptr) return impl_->encode_on_device(layers, key, payload, context);
  const FpGuard guard;
  return report(context, impl_->encode(layers, key, payload, context));
}

Status Compressor::begin_message(const Key& key, const Payload& payload,
                                 const Context& context) noexcept {
  if (impl_->device != nullptr) return Status::unsupported;
  if (impl_->in_message || impl_->in_step || impl_->whole_model != nullptr)
    return report(context, Status::wrong_stage);
  impl_->forget_moves();
  const Status status = impl_->begin_message(key, payload, context);
  impl_->in_message = !failed(status);
  return report(context, status);
}

Status Compressor::add_layer(std::size_t i, const ConstTensorView& view,
                             const Context& context) noexcept {
  if (impl_->device != nullptr) return Status::unsupported;
  if (!impl_->in_message) return report(context, Status::wrong_stage);
  if (i >= impl_->layers.size()) return report(context, Status::shape_mismatch);
  const FpGuard guard;
  return report(context, impl_->add_layer(i, view, context.executor));
}

Status Compressor::end_message(const Context& context) noexcept {
  if (impl_->device != nullptr) return Status::unsupported;
  if (!std::exchange(impl_->in_message, false)) return report(context, Status::wrong_stage);
  const FpGuard guard;
  return report(context, impl_->end_message(context.executor));
}

Status Compressor::decode(ConstBytes message, std::span<const TensorView> layers,
                          const Context& context) const noexcept {
  if (impl_->device != nullptr)
    return impl_->device->decode({&message, 1}, false, 1, layers, context);
  if (const Status s = impl_->check(layers); failed(s)) return report(context, s);
  return atomo::decode(message, layers, context);
}

Status Compressor::decode_add(ConstBytes message, float alpha, std::span<const TensorView> layers,
                              const Context& context) const noexcept {
  if (impl_->device != nullptr) {
    return any_half(layers) ? Status::unsupported
                            : impl_->device->decode({&message, 1}, true, alpha, layers, context);
  }
  if (const Status s = impl_->check(layers); failed(s)) return report(context, s);
  return atomo::decode_add(message, alpha, layers, context);
}

Status Compressor::decode_add_all(std::span<const ConstBytes> messages, float alpha,
                                  std::span<const TensorView> layers,
                                  const Context& context) const noexcept {
  if (impl_->device != nullptr)
    return impl_->device->decode(messages, true, alpha, layers, context);
  const FpGuard guard;
  if (const Status s = impl_->check(layers); failed(s)) return report(context, s);
  if (messages.empty()) return report(context, Status::ok);
  if (any_half(layers))
    return report(context, impl_->add_through_f32(messages, alpha, layers, context));
  return atomo::decode_add_all(messages, alpha, layers, context);
}

Status Compressor::vote(std::span<const ConstBytes> messages, std::span<const TensorView> layers,
                        const Context& context) const noexcept {
  if (impl_->device != nullptr) return impl_->device->vote(messages, layers, context);
  if (const Status s = impl_->check(layers); failed(s)) return report(context, s);
  return atomo::vote(messages, layers, context);
}

std::size_t Compressor::vote_workspace_bytes(std::size_t messages) const noexcept {
  if (impl_->device != nullptr) return impl_->device->decode_workspace_bytes();
  return atomo::vote_workspace_bytes(messages);
}

Status Compressor::begin_step(const Key& key) noexcept {
  const Status status = begin_step(key, {impl_->atoms.price, impl_->grid.price});
  if (!failed(status)) impl_->given = false;
  return status;
}

Compressor Compressor::part(std::size_t first, std::size_t count) {
  if (impl_->whole_model != nullptr)
    throw Error("a part has no parts: take them of the whole model");
  const std::size_t all = impl_->layers.size();
  if (count == 0 || first >= all || count > all - first) {
    throw Error("a part of " + std::to_string(count) + " layers from layer " +
                std::to_string(first) + " on: the model has " + std::to_string(all) + " layers");
  }
  return Compressor(std::make_unique<Impl>(*impl_, first, count));
}

Status Compressor::begin_step(const Key& key, const Prices& prices) noexcept {
  if (impl_->in_step || impl_->in_message || impl_->whole_model != nullptr)
    return Status::wrong_stage;
  if (key.tensor != 0 || !is_finite_price(prices.atoms) || !is_finite_price(prices.grid))
    return Status::invalid_argument;
  if (!impl_->streams_under_cap()) return Status::unsupported;
  impl_->step_key = key;
  impl_->step_share = impl_->budget_share;
  impl_->prices = {prices.atoms, prices.grid, false};
  impl_->given = true;
  std::fill(impl_->seen.begin(), impl_->seen.end(), std::uint8_t{0});
  impl_->forget_moves();
  impl_->in_step = true;
  return Status::ok;
}

Status Compressor::encode_layer(std::size_t i, const ConstTensorView& view, const Payload& payload,
                                const Context& context) noexcept {
  const FpGuard guard;
  const Status status = impl_->encode_layer(i, view, payload, context);
  return impl_->report_on_host(context, status);
}

Status Compressor::end_step(const Context& context) noexcept {
  const FpGuard guard;
  const bool in_step = std::exchange(impl_->in_step, false);
  if (impl_->device != nullptr) {
    return in_step ? impl_->device->end_step(impl_->step_prices(),
                                             {impl_->step_share, impl_->budget_share}, context)
                   : Status::wrong_stage;
  }
  return report(context, in_step ? impl_->end_step() : Status::wrong_stage);
}

Status Compressor::decode_layer(std::size_t i, ConstBytes message, const TensorView& view,
                                const Context& context) const noexcept {
  if (const Status s = impl_->check_layer(i, view); failed(s))
    return impl_->report_on_host(context, s);
  return impl_->codecs[i].decode(message, view, context);
}

Status Compressor::decode_layer_add(std::size_t i, ConstBytes message, float alpha,
                                    const TensorView& view, const Context& context) const noexcept {
  if (const Status s = impl_->check_layer(i, view); failed(s))
    return impl_->report_on_host(context, s);
  return impl_->codecs[i].decode_add(message, alpha, view, context);
}

Status Compressor::decode_layer_add_all(std::size_t i, std::span<const ConstBytes> messages,
                                        float alpha, const TensorView& view,
                                        const Context& context) const noexcept {
  if (const Status s = impl_->check_layer(i, view); failed(s))
    return impl_->report_on_host(context, s);
  return impl_->codecs[i].decode_add_all(messages, alpha, view, context);
}

void Compressor::reset_memory() {
  if (impl_->whole_model != nullptr) throw Error("a part keeps nothing: reset the whole model");
  impl_->check_between_steps("reset_memory");
  if (failed(impl_->reset_memory())) throw Error("CUDA: the device did not clear the memories");
}

Status Compressor::take_memory_back(const Context& context, const Status* only_if) noexcept {
  return impl_->report_on_host(context, impl_->take_memory_back(context, only_if));
}

std::vector<float> Compressor::memory(std::size_t layer) const {
  if (impl_->whole_model != nullptr) throw Error("a part keeps nothing: ask the whole model");
  const EncoderPlan& plan = impl_->plans.at(layer);
  return plan.remembers() ? codec::unsent(plan.memory, plan.n, impl_->kept_bytes(layer))
                          : std::vector<float>();
}

std::size_t Compressor::memory_bytes() const noexcept { return impl_->memory_bytes(); }

Prices Compressor::prices() const noexcept { return impl_->used_prices(); }
Prices Compressor::predicted_prices() const noexcept { return impl_->predicted_prices(); }

double Compressor::budget_bytes() const noexcept { return impl_->budget_bytes(); }

void Compressor::set_budget_share(double share) {
  constexpr double kLargest = 1024;
  if (!(share >= 1 / kLargest && share <= kLargest)) {
    throw Error("the share of the budget is " + codec::format_number(share) +
                "; expected from 1/1024 to 1024");
  }
  if (impl_->whole_model != nullptr)
    throw Error("a part has the whole model's budget: set the share there");
  if (impl_->in_message) throw Error("the share of the budget is set between messages");
  impl_->budget_share = share;
}

double Compressor::budget_share() const noexcept { return impl_->share(); }

}  // namespace atomo
