// SPDX-License-Identifier: Apache-2.0
/// The walk of one layer: preparing, writing at a price, fitting to a limit; and its way back.
#include "codec/layer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "codec/body_decoder.hpp"
#include "core/philox.hpp"
#include "cpu/halves.hpp"
#include "cpu/scan.hpp"
#include "format/dithered_layer.hpp"
#include "format/thinning.hpp"
#include "price/form_choice.hpp"
#include "price/price_math.hpp"

namespace atomo::codec {
namespace {

/// The f32 entries of a view: the view itself, or its copy in `work`.
const float* as_f32(const ConstTensorView& view, std::size_t n, std::span<float> converted,
                    Executor* executor) noexcept {
  if (view.dtype == DType::f32) return static_cast<const float*>(view.data);
  widen_halves(view.data, view.dtype, n, converted.data(), executor);
  return converted.data();
}

/// `status` tells of a layer that finds its own price.
ChosenPrice choose_price(const LayerPlan& plan, const PriceInput& input, const LayerPrices& prices,
                         Status& status) noexcept {
  const PriceRule& rule = plan.price_rule;
  if (rule.pool == Pool::none) return {};
  if (rule.from != PriceRule::From::budget) return {own_price(rule, input), true};
  const PriceInput* const one = &input;
  const auto budget_of_limit = limit_budget_bits(prices.limit);
  if (!prices.finds_own_price) {
    // A price predicted from earlier steps may be below what this layer can be sent at, or keep its
    // limit at: then it takes its lowest.
    const float shared = rule.pool == Pool::atoms ? prices.atoms : prices.grid;
    const float lowest = prices.limit > 0 ? find_price({&one, 1}, budget_of_limit).price
                                          : price_of_code(input.min_code());
    return at_least(lowest, {shared, false});
  }
  double budget = single_body_budget(plan, prices.fixed_bits);
  if (prices.limit > 0) budget = std::min(budget, budget_of_limit);
  const FoundPrice found = find_price({&one, 1}, budget);
  if (found.underspent) status = Status::underspent;
  return {found.price, true};
}

/// Whether bodies are read at a price, which then may stand in them.
bool reads_price(const Kind& kind) noexcept {
  return rules_of(kind.method).price != HeaderPrice::none;
}

std::size_t own_price_bytes(const LayerRecord& row) noexcept {
  return (row.flags & LayerRecord::kOwnPrice) != 0 ? kPriceBytes : 0;
}

}  // namespace

EncoderPlan::EncoderPlan(const Stages& of, const Shape& shape, DType dtype) : stages(&of) {
  const Traits traits = of.traits();
  kind = body().kind(shape, dtype);
  n = shape.elements();
  price_rule = body().price_rule(shape);
  if (const PricedEncoder* priced = body().priced()) {
    sketch_iterations = priced->sketch_iterations();
    selection = priced->selection();
    learns_rank = priced->learns_rank(shape);
  }
  fixed_size = traits.fixed_size;
  bounded = traits.bounded;
  has_cuda = traits.cuda;
  if (stages->memory) memory = memory_plan(*stages);
  if (n == 0) return;
  max_body_bytes = body().max_body_bytes(shape) + (reads_price(kind) ? kPriceBytes : 0);
  if (price_rule.cap_bits == 0) return;
  std::size_t least = 0;
  for_each_form(kind, [&](std::uint8_t, const DitheredLayer& layer) {
    least = std::max(least, max_thinnest_bytes(layer));
    thinning_bytes = std::max(thinning_bytes, thinning_workspace_bytes(layer));
  });
  min_limit_bytes = static_cast<std::size_t>(padded(least + kPriceBytes));
}

void LayerEncoder::carve_price_input(Carver& carver) {
  if (plan_->n == 0) return;
  if (const PricedEncoder* priced = plan_->body().priced())
    priced->carve_price_input(plan_->kind.shape, prepared_, carver);
}

void LayerEncoder::carve(Carver& carver) {
  if (plan_->n == 0) return;
  const Shape& shape = plan_->kind.shape;
  if (const PricedEncoder* priced = plan_->body().priced())
    priced->carve_state(shape, prepared_, carver);
  const std::size_t scratch = plan_->body().scratch_bytes(shape);
  if (plan_->remembers()) {  // its message is read when it is written
    const std::size_t reading =
        read_layer_workspace(plan_->kind, DType::f32, plan_->stages->lossless.has_value());
    reading_ = carver.take_bytes(std::max(scratch, reading));
    scratch_ = reading_.first(std::min(scratch, reading_.size()));
  } else {
    scratch_ = carver.take_bytes(scratch);
  }
  if (is_staged()) staged_ = carver.take_bytes(plan_->max_body_bytes);
  if (plan_->capped()) thinning_ = carver.take_bytes(plan_->thinning_bytes);
  if (plan_->kind.dtype != DType::f32 || plan_->remembers())
    converted_ = carver.take<float>(plan_->n);
}

Status LayerEncoder::prepare(const ConstTensorView& view, const Key& key, Executor* executor,
                             std::size_t rank) noexcept {
  if (view.device != Device::cpu || view.dtype != plan_->kind.dtype || !is_dtype(view.dtype))
    return Status::unsupported;
  if (view.shape != plan_->kind.shape) return Status::shape_mismatch;
  non_finite_ = false;
  input_ = {};
  input_.n = plan_->n;
  input_.shape = &plan_->kind.shape;
  input_.key = key;
  input_.executor = executor;
  input_.rank = rank;
  if (plan_->n == 0) return Status::ok;
  if (view.data == nullptr) return Status::invalid_argument;
  if (memory_ != nullptr) {
    gradient_ = view;
    memory_->form(view, converted_.data(), executor);
    memory_->scale(converted_.data(), executor);
    input_.x = converted_.data();
  } else {
    input_.x = as_f32(view, plan_->n, converted_, executor);
  }
  if (!plan_->body().finds_non_finite()) {
    const cpu::EntryScan scan = cpu::scan_entries(input_.x, plan_->n, executor);
    non_finite_ = !scan.finite;
    input_.zeros = scan.zeros;
  }
  if (non_finite_) return Status::non_finite;
  const PricedEncoder* const priced = plan_->body().priced();
  const Status status =
      priced == nullptr ? Status::ok : priced->prepare(input_, prepared_, scratch_);
  non_finite_ = status == Status::non_finite;
  return status;
}

Status LayerEncoder::write(const LayerPrices& prices, Bytes body, bool first) noexcept {
  row_ = {};
  hashed_ = {};
  row_.flags = non_finite_ ? LayerRecord::kNonFinite : std::uint8_t{0};
  if (!sends()) return non_finite_ ? Status::non_finite : Status::ok;
  Status priced = Status::ok;
  ChosenPrice chosen = choose_price(*plan_, prepared_.price, prices, priced);
  chosen.own &= reads_price(plan_->kind);
  const std::size_t skip = chosen.own ? kPriceBytes : 0;
  if (is_staged()) body = staged_;
  if (body.size() < plan_->max_body_bytes) return Status::buffer_too_small;
  BodyResult result;
  const Status status = plan_->body().encode(
      {input_, chosen.price, &prepared_, scratch_, first && !is_staged() && skip == 0},
      body.subspan(skip), result);
  if (status == Status::non_finite) {
    non_finite_ = true;
    row_.flags = LayerRecord::kNonFinite;
    return status;
  }
  if (failed(status)) return status;
  if (result.bytes == 0) return status | priced;
  if (chosen.own) {
    std::memcpy(body.data(), &chosen.price, kPriceBytes);
    row_.flags |= LayerRecord::kOwnPrice;
  }
  row_.flags |= static_cast<std::uint8_t>(result.form << LayerRecord::kFormShift);
  if (plan_->selection == Selection::nearest) row_.flags |= LayerRecord::kCentred;
  row_.bytes = result.bytes + skip;
  hashed_ = result.hashed;
  price_ = chosen.price;
  return row_.bytes <= kMaxBodyBytes ? status | priced : Status::unsupported;
}

price::RankState LayerEncoder::learn_rank(price::RankState state) const noexcept {
  const PricedEncoder* const priced = plan_->body().priced();
  if (priced == nullptr || row_.bytes == 0) return state;
  return priced->learn_rank(state, prepared_, row_.form(), price_);
}

CappedBody LayerEncoder::capped_body(bool with_least) const noexcept {
  if (!plan_->capped() || row_.bytes == 0) return {};
  CappedBody body{row_.bytes, row_.bytes, own_price_bytes(row_) > 0};
  if (!with_least) return body;
  const auto skip = own_price_bytes(row_);
  const ConstBytes proper = ConstBytes(staged_).first(row_.bytes).subspan(skip);
  body.least = skip + thinnest_bytes(proper, dithered_layer(plan_->kind, row_.form()), thinning_);
  return body;
}

Status LayerEncoder::fit(const Allotment& allotment, Bytes body) noexcept {
  if (!is_staged() || row_.bytes == 0) return Status::ok;
  if (allotment.gain == 0) {
    row_ = {};
    return Status::ok;
  }
  const std::size_t before = own_price_bytes(row_);
  Bytes proper = staged_.first(row_.bytes).subspan(before);
  if (allotment.gain != 1) row_.flags |= LayerRecord::kOwnPrice;
  const std::size_t skip = own_price_bytes(row_);
  if (skip > 0) {
    const float price = raised_price(price_, allotment.gain);
    std::memcpy(body.data(), &price, kPriceBytes);
  }
  const Bytes out = body.subspan(skip);
  std::size_t bytes = proper.size();
  if (plan_->capped() && bytes > allotment.limit - skip) {
    const std::size_t limit = allotment.limit - skip;
    const Status status = thin(proper, dithered_layer(plan_->kind, row_.form()), limit, input_.key,
                               out.first(limit), thinning_, bytes);
    if (failed(status)) return status;
    row_.flags |= LayerRecord::kThinned;
    proper = staged_.first(bytes);
    std::copy_n(out.data(), bytes, proper.data());
  }
  std::size_t packed = 0;
  if (plan_->stages->lossless)
    packed = pack_body(*plan_->stages->lossless, plan_->kind, proper, out);
  if (packed != 0) {
    row_.flags |= LayerRecord::kLossless;
    bytes = packed;
  } else {
    if (out.size() < bytes) return Status::buffer_too_small;
    std::copy(proper.begin(), proper.end(), out.begin());
  }
  row_.bytes = skip + bytes;
  return Status::ok;
}

Status LayerEncoder::take_sent(const LayerPrices& prices, ConstBytes body) noexcept {
  if (memory_ == nullptr || !sends()) return Status::ok;
  if (memory_->scales()) memory_->form(gradient_, converted_.data(), input_.executor);
  Header header;
  header.price = prices.atoms;
  header.grid_step = prices.grid;
  LayerBody sent{row_, body.first(row_.bytes), input_.key,
                 header_price(header, plan_->kind.method)};
  read_layer(plan_->kind, {&sent, 1}, {converted_.data(), DType::f32, plan_->kind.shape}, true, -1,
             reading_, input_.executor);
  return sent.status;
}

std::size_t read_layer_workspace(const Kind& kind, DType view, bool lossless) noexcept {
  Carver carver;
  const BodyDecoder& decoder = *find_decoder(kind.method);
  if (view != DType::f32) carver.take<float>(kind.shape.elements());
  carver.take_bytes(decoder.workspace_bytes(kind));
  if (lossless) carver.take_bytes(decoder.max_body_bytes(kind));
  return carver.bytes();
}

namespace {

Status check_view(const Kind& kind, const TensorView& view, bool add) noexcept {
  if (view.device != Device::cpu || !is_dtype(view.dtype)) return Status::unsupported;
  if (view.shape != kind.shape) return Status::shape_mismatch;
  if (view.dtype != DType::f32 && add) return Status::unsupported;
  const bool needs_data = kind.shape.elements() > 0;
  return needs_data && view.data == nullptr ? Status::invalid_argument : Status::ok;
}

bool has(const LayerBody& body, std::uint8_t flag) noexcept { return (body.row.flags & flag) != 0; }

/// Checks the row and takes its own price off the body.
Status open_body(const Kind& kind, LayerBody& body) noexcept {
  const std::size_t n = kind.shape.elements();
  if (const Status s = check_record(body.row, kind.method, n); failed(s)) return s;
  const bool sends = n > 0 && !has(body, LayerRecord::kNonFinite);
  if (!sends || !has(body, LayerRecord::kOwnPrice)) return Status::ok;
  if (body.bytes.size() <= kPriceBytes) return Status::corrupt;
  std::memcpy(&body.price, body.bytes.data(), kPriceBytes);
  if (!is_own_price(body.price)) return Status::corrupt;
  body.bytes = body.bytes.subspan(kPriceBytes);
  return Status::ok;
}

}  // namespace

void read_layer(const Kind& kind, std::span<LayerBody> bodies, const TensorView& view, bool add,
                float alpha, Bytes workspace, Executor* executor) noexcept {
  const std::size_t n = kind.shape.elements();
  const bool half = view.dtype != DType::f32;
  const BodyDecoder& decoder = *find_decoder(kind.method);
  const bool lossless = std::any_of(bodies.begin(), bodies.end(), [](const LayerBody& body) {
    return has(body, LayerRecord::kLossless);
  });
  Status status = check_view(kind, view, add);
  Carver carver(workspace);
  auto values = carver.take<float>(half ? n : 0);
  LayerOutput out;
  out.workspace = carver.take_bytes(decoder.workspace_bytes(kind));
  if (!failed(status) && n > 0 && !carver.fits()) status = Status::workspace_too_small;
  // Missed by those bodies alone that need it: a damaged row may say that it is one.
  const Bytes unpacked = carver.take_bytes(lossless ? decoder.max_body_bytes(kind) : 0);
  for (LayerBody& body : bodies) body.status = failed(status) ? status : open_body(kind, body);
  if (failed(status) || n == 0) return;

  out.kind = &kind;
  out.y = half ? values.data() : static_cast<float*>(view.data);
  out.n = n;
  out.add = add;
  out.alpha = alpha;
  out.executor = executor;
  const auto decode = [&](std::size_t begin, std::size_t end) {
    out.bodies = bodies.subspan(begin, end - begin);
    if (begin < end) decoder.decode(out);
  };
  std::size_t begin = 0;  // of the bodies that are decoded together next
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    LayerBody& body = bodies[i];
    const bool finite = !has(body, LayerRecord::kNonFinite);
    if (!failed(body.status) && finite && !has(body, LayerRecord::kLossless)) continue;
    decode(begin, i);
    begin = i + 1;
    if (failed(body.status)) continue;
    if (!finite) {
      std::fill_n(out.y, n, std::numeric_limits<float>::quiet_NaN());
      body.status = Status::non_finite;
      continue;
    }
    std::size_t bytes = 0;
    body.status = carver.fits() ? unpack_frame(kind, body.bytes, unpacked, bytes)
                                : Status::workspace_too_small;
    body.bytes = unpacked.first(failed(body.status) ? 0 : bytes);
    if (!failed(body.status)) decode(i, i + 1);
  }
  decode(begin, bodies.size());
  if (!half || failed(bodies.front().status)) return;
  const LayerBody& body = bodies.front();
  bodies.front().status |=
      round_to_half(values.data(), n, body.key, kOutputDraws, view.dtype, view.data, executor)
          .status();
}

Status read_layer(const LayerEntry& layer, const Header& header, const TensorView& view, bool add,
                  float alpha, Bytes workspace, Executor* executor) noexcept {
  LayerBody body{layer.row, layer.body, layer.key, header_price(header, layer.kind.method)};
  read_layer(layer.kind, {&body, 1}, view, add, alpha, workspace, executor);
  return body.status;
}

}  // namespace atomo::codec
