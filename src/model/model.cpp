// SPDX-License-Identifier: Apache-2.0
/// Setting a model up; the walk of its layers into a message, once down: prepare, find the prices,
/// write, share the room under a cap, fit; and its way back into halves.
#include "model/model.hpp"
#include "cpu/halves.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>

#include "atomo/container.hpp"
#include "codec/read_layers.hpp"

namespace atomo {

using namespace model;

namespace {

bool is_half(const TensorView& view) noexcept { return view.dtype != DType::f32; }

/// Where the f32 sum of each half view begins among those of all; views are asked for in their
/// order, once or several times.
class HalfSums {
 public:
  explicit HalfSums(std::span<const TensorView> views) noexcept : views_(views) {}
  std::size_t begin(std::size_t view) noexcept {
    if (view < next_) next_ = at_ = 0;
    for (; next_ < view; ++next_)
      at_ += is_half(views_[next_]) ? views_[next_].shape.elements() : 0;
    return at_;
  }
  std::size_t end() noexcept { return begin(views_.size()); }

 private:
  std::span<const TensorView> views_;
  std::size_t next_ = 0, at_ = 0;
};

}  // namespace

void Compressor::Impl::set_up_layers() {
  if (layers.empty()) throw Error("a model without layers: expected at least one");
  if (layers.size() > kMaxLayers) {
    throw Error("a model of " + std::to_string(layers.size()) +
                " layers: at most 65536 are supported");
  }
  std::set<std::string> names;
  std::vector<Kind> kinds;
  std::vector<std::string> on_wire;
  for (const auto& layer : layers) {
    check_layer_name(names.size(), layer.name);
    if (!names.insert(layer.name).second)
      throw Error("two layers are called '" + layer.name + "': names must differ");
    codecs.push_back(policy.codec_for(layer.name));
    Access::stages(codecs.back()).body->check_shape(layer.shape);
    plans.emplace_back(Access::stages(codecs.back()), layer.shape, layer.dtype);
    plans.back().learns_rank &= options.learns_ranks;
    if (plans.back().learns_rank) ranked_layers.push_back(plans.size() - 1);
    kinds.push_back(plans.back().kind);
    one_head.push_back(one_layer_head_bytes(kinds.back()));
    if (options.names_on_wire) on_wire.push_back(layer.name);
  }
  layout = HeadLayout(kinds, on_wire);
}

void Compressor::Impl::set_up_memory() {
  const std::size_t count = layers.size();
  std::size_t end = 0;
  for (const auto& plan : plans) {
    body_offset.push_back(end);
    end += static_cast<std::size_t>(padded(plan.max_body_bytes));
  }
  max_bytes = layout.bytes() + end;
  if (whole_model == nullptr) {
    for (const auto& plan : plans) own_encoders.emplace_back(plan);
    encoders = own_encoders;
  } else {
    encoders = whole_model->encoders.subspan(first_layer, count);
  }
  statuses.resize(count);
  seen.resize(count);
  limits.resize(count);
  ranks.resize(count);
  next_ranks.resize(count);
  capped_bodies.resize(count);
  allotments.resize(count);
  layer_runs.resize(count);
  for (std::size_t i = 0; i < count; ++i) expected_bits.push_back(256 * budget_bits(i));
  pool_inputs.reserve(count);

  const auto carve_price_inputs = [&](Carver carver) {
    for (auto& encoder : encoders) encoder.carve_price_input(carver);
    return carver.bytes();
  };
  if (whole_model == nullptr) {
    price_memory.resize(carve_price_inputs(Carver()));
    carve_price_inputs(Carver(Bytes(price_memory)));
  }

  // Layers are decoded side by side where there is room for them.
  constexpr std::size_t kDecodedAtOnce = 4;
  Carver encoding;
  std::size_t largest = 0, together = 0, halves = 0;
  for (std::size_t i = 0; i < count; ++i) {
    LayerEncoder(plans[i]).carve(encoding);
    largest = std::max(largest, read_workspace(i));
    together += read_workspace(i);
    if (plans[i].kind.dtype != DType::f32) halves += plans[i].n;
  }
  Carver sums;
  sums.take<float>(halves);
  encode_workspace = encoding.bytes();
  decode_workspace = std::min(together, kDecodedAtOnce * largest) + sums.bytes();
}

void Compressor::Impl::set_up_order() {
  layers_by_size.resize(plans.size());
  std::iota(layers_by_size.begin(), layers_by_size.end(), std::size_t{0});
  codec::sort_by_size(std::span(layers_by_size), [&](std::size_t i) { return plans[i].n; });
}

void Compressor::Impl::set_up_device() {
  for (const auto& plan : plans) static_cast<void>(device_backend_for(plan));
  std::vector<StreamedLayer> streamed;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    streamed.push_back({has_budget(i) ? plans[i].price_rule.pool : Pool::none, budget_bits(i),
                        one_layer_fixed_bits(i), limits[i]});
  }
  const std::vector<LayerPlan> plain(plans.begin(), plans.end());
  device = whole_model != nullptr
               ? whole_model->device->make_part(plain, layout, first_layer)
               : device_backend()->make_model(
                     plain, layout, streamed,
                     streams_under_cap() ? cap_room(true) - cap_reserve() : 0, options.takes_back);
  // A device writes a body where it will stay, when all lengths are known.
  if (const auto most = wire_bytes()) max_bytes = *most;
  encode_workspace = device->encode_workspace_bytes();
  decode_workspace = device->decode_workspace_bytes();
}

Status Compressor::Impl::encode_on_device(std::span<const ConstTensorView> views, const Key& key,
                                          const Payload& payload, const Context& context) noexcept {
  if (views.size() != layers.size()) return Status::shape_mismatch;
  if (key.tensor != 0 || payload.data == nullptr || payload.bytes == nullptr)
    return Status::invalid_argument;
  if (payload.capacity < max_bytes) return Status::buffer_too_small;
  std::fill(seen.begin(), seen.end(), std::uint8_t{2});  // what sends is known on the device alone
  const double budgets[2] = {gather(Pool::atoms, false, share()),
                             gather(Pool::grid, false, share())};
  if (whole_model == nullptr) {
    const Status status = device->encode(views, key, budgets, nullptr, payload, context);
    if (!failed(status)) note_moves();
    return status;
  }
  if (const Status s = check_part(key, context); failed(s)) return s;
  if (any_moved()) return Status::wrong_stage;
  Key own = key;
  own.tensor = static_cast<std::uint16_t>(first_layer);
  const StepPrices step = whole_model->step_prices();
  const Status status = device->encode(views, own, budgets, &step, payload, context);
  if (!failed(status)) note_moves();
  return status;
}

Status Compressor::Impl::check_part(const Key& key, const Context& context) const noexcept {
  if (!whole_model->in_step) return Status::wrong_stage;
  return key == whole_model->step_key && context.key == nullptr ? Status::ok
                                                                : Status::invalid_argument;
}

Status Compressor::Impl::carve(Bytes memory) noexcept {
  Carver carver(memory);
  for (auto& encoder : encoders) encoder.carve(carver);
  return carver.fits() ? Status::ok : Status::workspace_too_small;
}

Status Compressor::Impl::encode(std::span<const ConstTensorView> views, const Key& key,
                                const Payload& payload, const Context& context) noexcept {
  if (views.size() != layers.size()) return Status::shape_mismatch;
  if (const Status s = begin_message(key, payload, context); failed(s)) return s;
  const Status status = each_layer(context.executor, [&](std::size_t i, Executor* executor) {
    return add_layer(i, views[i], executor);
  });
  return failed(status) ? status : end_message(context.executor);
}

/// `seen` says per layer: 0 not in this step or message, 1 encoded but nothing to send, 2 sends.
Status Compressor::Impl::begin_message(Key key, const Payload& payload,
                                       const Context& context) noexcept {
  if (key.tensor != 0 || payload.data == nullptr || payload.bytes == nullptr)
    return Status::invalid_argument;
  if (payload.capacity < max_bytes) return Status::buffer_too_small;
  if (whole_model != nullptr) {
    if (const Status s = check_part(key, context); failed(s)) return s;
    if (any_moved()) return Status::wrong_stage;
    key.tensor = static_cast<std::uint16_t>(first_layer);
  }
  if (const Status s = carve(context.workspace); failed(s)) return s;
  if (context.key != nullptr) {
    if (context.key->tensor != 0) return Status::invalid_argument;
    key = *context.key;
  }
  if (context.step != nullptr) key.step = *context.step;
  message_key = key;
  message = payload;
  std::fill(seen.begin(), seen.end(), std::uint8_t{0});
  return Status::ok;
}

Status Compressor::Impl::add_layer(std::size_t i, const ConstTensorView& view,
                                   Executor* executor) noexcept {
  Key own = message_key;
  own.tensor = static_cast<std::uint16_t>(first_layer + i);
  LayerEncoder& layer = encoders[i];
  Status status = layer.prepare(view, own, executor, rank_of(i));
  seen[i] = layer.sends() ? 2 : 1;
  if (stands_alone(i)) {
    if (!failed(status)) status |= layer.write({}, room_of(i));
    if (!failed(status)) status |= layer.fit({0, 1}, room_of(i));
  }
  statuses[i] = status;
  return status;
}

/// The rest of a message, all of whose layers were added.
Status Compressor::Impl::end_message(Executor* executor) noexcept {
  Status status = Status::ok;
  for (std::size_t i = 0; i < encoders.size(); ++i)
    status |= seen[i] == 0 ? Status::wrong_stage : statuses[i];
  if (failed(status)) return status;
  LayerPrices found;
  status |= find_prices(found, executor);
  status |= each_layer(executor, [&](std::size_t i, Executor* own) {
    if (stands_alone(i)) return Status::ok;
    encoders[i].use(own);
    return encoders[i].write(found, room_of(i));
  });
  if (!failed(status)) status |= allot(message_key);
  if (failed(status)) return status;
  status |= each_layer(executor, [&](std::size_t i, Executor*) {
    return stands_alone(i) ? Status::ok : encoders[i].fit(allotments[i], room_of(i));
  });
  if (!failed(status)) status |= keep_unsent(found, status, executor);
  if (failed(status)) return status;

  const std::uint64_t total = close_gaps();
  layout.write_tables(message.data);
  layout.seal(message.data, message_key, found.atoms, found.grid, total, executor);
  *message.bytes = total;
  for (const std::size_t i : ranked_layers) learn_rank(i);
  if (whole_model != nullptr) {  // which learns the rest at the end of its step
    std::ranges::copy(seen, whole_model->seen.begin() + static_cast<std::ptrdiff_t>(first_layer));
    return status;
  }
  ranks = next_ranks;
  prices = found;
  if (found.atoms > 0) atoms.smoothed_price = atoms.price = found.atoms;
  if (found.grid > 0) grid.smoothed_price = grid.price = found.grid;
  return status;
}

/// Moves the bodies, written where the largest would be, behind one another; writes the rows.
/// Returns the total.
std::uint64_t Compressor::Impl::close_gaps() noexcept {
  std::byte* to = message.data + layout.bytes();
  const std::byte* bodies = to;
  for (std::size_t i = 0; i < encoders.size(); ++i) {
    LayerRecord row = encoders[i].row();
    const auto bytes = static_cast<std::size_t>(row.bytes);
    const auto whole = static_cast<std::size_t>(padded(bytes));
    if (bytes > 0) std::memmove(to, bodies + body_offset[i], bytes);
    std::fill(to + bytes, to + whole, std::byte{0});
    to += whole;
    row.kind = layout.kind_of(i);
    write_record(message.data, i, row);
  }
  return static_cast<std::uint64_t>(to - message.data);
}

Status Compressor::Impl::encode_layer(std::size_t i, const ConstTensorView& view,
                                      const Payload& payload, const Context& context) noexcept {
  if (i >= layers.size()) return Status::shape_mismatch;
  if (!in_step) return Status::wrong_stage;
  if (payload.data == nullptr || payload.bytes == nullptr) return Status::invalid_argument;
  const EncoderPlan& plan = plans[i];
  const std::size_t head = one_head[i];
  if (payload.capacity < head + padded(plan.max_body_bytes)) return Status::buffer_too_small;
  if (plan.remembers() && moved[i] != 0) return Status::wrong_stage;
  if (device != nullptr) return encode_layer_on_device(i, view, payload, context);
  LayerEncoder& layer = encoders[i];
  Carver carver(context.workspace);
  layer.carve(carver);
  if (!carver.fits()) return Status::workspace_too_small;

  Key key = step_key;
  if (context.step != nullptr) key.step = *context.step;
  key.tensor = static_cast<std::uint16_t>(i);
  Status status = layer.prepare(view, key, context.executor, rank_of(i));
  if (failed(status)) return status;
  seen[i] = layer.sends() ? 2 : 1;
  LayerPrices used = prices;
  used.finds_own_price = (plan.price_rule.pool == Pool::grid ? prices.grid : prices.atoms) == 0;
  used.limit = limits[i];
  used.fixed_bits = one_layer_fixed_bits(i);
  const Bytes room{payload.data + head, payload.capacity - head};
  status |= layer.write(used, room, true);
  if (!failed(status)) status |= layer.fit(allot_streamed_layer(i, key), room);
  if (!failed(status) && plan.remembers()) {
    status |= layer.take_sent(prices, room);
    if (failed(status)) return status;
    moved[i] = layer.keep_unsent() ? 1 : 0;
  }
  if (failed(status)) return status;
  const auto bytes = static_cast<std::size_t>(layer.row().bytes),
             whole = static_cast<std::size_t>(padded(bytes));
  std::fill(payload.data + head + bytes, payload.data + head + whole, std::byte{0});
  write_one_layer_head(payload.data, plan.kind, layer.row(), key,
                       in_pool(i, Pool::atoms) ? prices.atoms : 0,
                       in_pool(i, Pool::grid) ? prices.grid : 0, layer.hashed(), context.executor);
  *payload.bytes = head + whole;
  if (plan.learns_rank) learn_rank(i);
  return status;
}

Status Compressor::Impl::encode_layer_on_device(std::size_t i, const ConstTensorView& view,
                                                const Payload& payload,
                                                const Context& context) noexcept {
  Key key = step_key;
  key.tensor = static_cast<std::uint16_t>(i);
  const double budget = body_budget(budget_bits(i), one_layer_fixed_bits(i));
  const Status status = device->encode_layer(i, view, key, step_prices(), budget, payload, context);
  if (plans[i].remembers() && !failed(status)) moved[i] = 1;
  return status;
}

Status Compressor::Impl::check(std::span<const TensorView> views) const noexcept {
  if (views.size() != layers.size()) return Status::shape_mismatch;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (views[i].shape != layers[i].shape) return Status::shape_mismatch;
    if (views[i].device != Device::cpu) return Status::unsupported;
    if (views[i].data == nullptr && plans[i].n > 0) return Status::invalid_argument;
  }
  return Status::ok;
}

Status Compressor::Impl::check_layer(std::size_t i, const TensorView& view) const noexcept {
  if (i >= layers.size() || view.shape != layers[i].shape) return Status::shape_mismatch;
  const Device where = device != nullptr ? Device::cuda : Device::cpu;
  return view.device == where ? Status::ok : Status::unsupported;
}

/// Half views: all messages are added in f32 and rounded once, with the first message's key. A
/// message is read once.
Status Compressor::Impl::add_through_f32(std::span<const ConstBytes> messages, float alpha,
                                         std::span<const TensorView> views,
                                         const Context& context) const noexcept {
  Carver carver(context.workspace);
  const auto memory = carver.take<float>(HalfSums(views).end());
  const std::size_t used = carver.bytes();
  if (!carver.fits() || used > context.workspace.size()) return Status::workspace_too_small;
  Context rest = context;
  rest.workspace = context.workspace.subspan(used);

  HalfSums sums(views);
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!is_half(views[i])) continue;
    widen_halves(views[i].data, views[i].dtype, plans[i].n, memory.data() + sums.begin(i),
                 context.executor);
  }
  std::optional<Key> key;  // of the first
  const auto check = [&](const Head& head) {
    if (head.layers() != views.size()) return Status::shape_mismatch;
    if (!key) key = head.header().key;
    return Status::ok;
  };
  sums = HalfSums(views);
  Status status =
      read_messages(messages, true, alpha, rest, check, [&](std::size_t i) -> TensorView {
        if (!is_half(views[i])) return views[i];
        return {memory.data() + sums.begin(i), DType::f32, views[i].shape, views[i].device};
      });
  if (!key) return status;
  sums = HalfSums(views);
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!is_half(views[i])) continue;
    Key own = *key;
    own.tensor = static_cast<std::uint16_t>(own.tensor + i);
    status |= round_to_half(memory.data() + sums.begin(i), plans[i].n, own, kOutputDraws,
                            views[i].dtype, views[i].data, context.executor)
                  .status();
  }
  return status;
}

}  // namespace atomo
