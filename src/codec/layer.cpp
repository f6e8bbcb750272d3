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
    learns_rank = priced->learns_rank(shape);
  }
  fixed_size = traits.fixed_size;
  bounded = traits.bounded;
  has_cuda = traits.cuda;
  if (n == 0) return;
  max_body_bytes = body().max_body_bytes(shape) + (price_rule.pool == Pool::none ? 0 : kPriceBytes);
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
  scratch_ = carver.take_bytes(plan_->body().scratch_bytes(shape));
  if (is_staged()) staged_ = carver.take_bytes(plan_->max_body_bytes);
  if (plan_->capped()) thinning_ = carver.take_bytes(plan_->thinning_bytes);
  if (plan_->kind.dtype != DType::f32) converted_ = carver.take<float>(plan_->n);
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
  input_.x = as_f32(view, plan_->n, converted_, executor);
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
  const ChosenPrice chosen = choose_price(*plan_, prepared_.price, prices, priced);
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

std::size_t read_layer_workspace(const Kind& kind, DType view, bool lossless) noexcept {
  Carver carver;
  const BodyDecoder& decoder = *find_decoder(kind.method);
  if (view != DType::f32) carver.take<float>(kind.shape.elements());
  if (lossless) carver.take_bytes(decoder.max_body_bytes(kind));
  carver.take_bytes(decoder.workspace_bytes(kind));
  return carver.bytes();
}

Status read_layer(const LayerEntry& layer, const Header& header, const TensorView& view, bool add,
                  float alpha, Bytes workspace, Executor* executor) noexcept {
  const Kind& kind = layer.kind;
  if (view.device != Device::cpu || !is_dtype(view.dtype)) return Status::unsupported;
  if (view.shape != kind.shape) return Status::shape_mismatch;
  const std::size_t n = kind.shape.elements();
  const bool half = view.dtype != DType::f32;
  if (half && add) return Status::unsupported;
  if (n > 0 && view.data == nullptr) return Status::invalid_argument;
  if (const Status s = check_record(layer.row, kind.method, n); failed(s)) return s;
  if (n == 0) return Status::ok;

  const BodyDecoder& decoder = *find_decoder(kind.method);
  Carver carver(workspace);
  auto values = carver.take<float>(half ? n : 0);
  const bool lossless = (layer.row.flags & LayerRecord::kLossless) != 0;
  const Bytes unpacked = carver.take_bytes(lossless ? decoder.max_body_bytes(kind) : 0);
  const Bytes scratch = carver.take_bytes(decoder.workspace_bytes(kind));
  if (!carver.fits()) return Status::workspace_too_small;

  LayerOutput out;
  out.y = half ? values.data() : static_cast<float*>(view.data);
  if ((layer.row.flags & LayerRecord::kNonFinite) != 0) {
    std::fill_n(out.y, n, std::numeric_limits<float>::quiet_NaN());
    if (half) round_to_half(out.y, n, layer.key, kOutputDraws, view.dtype, view.data, executor);
    return Status::non_finite;
  }
  out.body = layer.body;
  out.price = header_price(header, kind.method);
  if ((layer.row.flags & LayerRecord::kOwnPrice) != 0) {
    if (out.body.size() <= kPriceBytes) return Status::corrupt;
    std::memcpy(&out.price, out.body.data(), kPriceBytes);
    if (!is_own_price(out.price)) return Status::corrupt;
    out.body = out.body.subspan(kPriceBytes);
  }
  if (lossless) {
    std::size_t bytes = 0;
    if (const Status s = unpack_frame(kind, out.body, unpacked, bytes); failed(s)) return s;
    out.body = unpacked.first(bytes);
  }
  out.kind = &kind;
  out.key = layer.key;
  out.n = n;
  out.add = add;
  out.thinned = (layer.row.flags & LayerRecord::kThinned) != 0;
  out.form = layer.row.form();
  out.alpha = alpha;
  out.workspace = scratch;
  out.executor = executor;
  const Status status = decoder.decode(out);
  if (failed(status) || !half) return status;
  return status |
         round_to_half(values.data(), n, layer.key, kOutputDraws, view.dtype, view.data, executor)
             .status();
}

}  // namespace atomo::codec
