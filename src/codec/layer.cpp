// SPDX-License-Identifier: Apache-2.0
#include "codec/layer.hpp"
#include "core/status.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/lossless_stage.hpp"
#include "codec/price_search.hpp"
#include "core/halves.hpp"
#include "core/philox.hpp"
#include "format/kind.hpp"

namespace atomo::codec {
namespace {

bool all_finite(const float* x, std::size_t n) noexcept {
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto exponent = std::bit_cast<std::uint32_t>(x[i]) & 0x7F800000u;
    bad |= exponent == 0x7F800000u ? 1u : 0u;
  }
  return bad == 0;
}

/// The f32 entries of a view: the view itself, or its copy in `work`.
const float* as_f32(const ConstTensorView& view, std::size_t n, std::span<float> converted,
                    Executor* executor) noexcept {
  if (view.dtype == DType::f32) return static_cast<const float*>(view.data);
  widen_halves(view.data, view.dtype, n, converted.data(), executor);
  return converted.data();
}

struct ChosenPrice {
  float price = 0;
  bool own = false;
  Status status = Status::ok;
};

ChosenPrice choose_price(const EncoderPlan& plan, const LayerWork& work, const Prices& prices,
                         double fixed_bits) noexcept {
  const Method& method = *plan.method;
  if (method.pool() == Pool::none) return {};
  if (method.budget_bits() == 0) return {method.own_price(plan.kind.shape, work.demand), true};
  const Demand demand{&method, &plan.kind.shape, work.demand};
  const auto budget_of_limit = lone_budget(prices.limit);
  if (!prices.solve_alone) {
    // A price predicted from earlier steps may be below what this layer can be sent at, or keep its
    // limit at: then it takes its lowest.
    const float shared = method.pool() == Pool::atoms ? prices.atoms : prices.grid;
    const float lowest = prices.limit > 0
                             ? find_price({&demand, 1}, budget_of_limit).price
                             : price_of_code(method.lowest_price(plan.kind.shape, work.demand));
    return shared < lowest && shared > 0 ? ChosenPrice{lowest, true} : ChosenPrice{shared, false};
  }
  double budget = body_budget(method.budget_bits() * static_cast<double>(plan.n), fixed_bits);
  if (prices.limit > 0) budget = std::min(budget, budget_of_limit);
  const FoundPrice found = find_price({&demand, 1}, budget);
  return {found.price, true, found.underspent ? Status::underspent : Status::ok};
}

std::size_t own_price_bytes(const Row& row) noexcept {
  return (row.flags & Row::kOwnPrice) != 0 ? kPriceBytes : 0;
}

}  // namespace

EncoderPlan::EncoderPlan(const Method& m, const Shape& shape, DType dtype) : method(&m) {
  const Traits traits = m.traits();
  kind = m.kind(shape, dtype);
  n = shape.elements();
  pool = m.pool();
  budget_bits = m.budget_bits();
  cap_bits = m.cap_bits();
  price_rule = m.price_rule(shape);
  sketch_iterations = m.sketch_iterations();
  fixed_size = traits.fixed_size;
  has_cuda = traits.cuda;
  if (n == 0) return;
  max_body_bytes = m.max_body_bytes(shape) + (pool == Pool::none ? 0 : kPriceBytes);
  demand_bytes = m.demand_bytes(shape);
  if (cap_bits == 0) return;
  least_limit_bytes = static_cast<std::size_t>(padded(m.least_limit_bytes(shape) + kPriceBytes));
  for (std::uint8_t form = 0; form < kGridForm; ++form)
    thinning_bytes =
        std::max(thinning_bytes, thinning_workspace_bytes(m.thinned_layer(shape, form)));
}

void LayerWork::carve(const EncoderPlan& plan, Carver& carver, bool with_demand) {
  if (plan.n == 0) return;
  if (with_demand) demand = carver.take_bytes(plan.demand_bytes);
  state = carver.take_bytes(plan.method->state_bytes(plan.kind.shape));
  scratch = carver.take_bytes(plan.method->scratch_bytes(plan.kind.shape));
  if (plan.least_limit_bytes > 0) {
    whole = carver.take_bytes(plan.max_body_bytes);
    thinning = carver.take_bytes(plan.thinning_bytes);
  }
  if (plan.kind.dtype != DType::f32) converted = carver.take<float>(plan.n);
}

Status open_layer(const EncoderPlan& plan, const ConstTensorView& view, const Key& key,
                  Executor* executor, LayerWork& work) noexcept {
  if (view.device != Device::cpu || view.dtype != plan.kind.dtype || !is_dtype(view.dtype))
    return Status::unsupported;
  if (view.shape != plan.kind.shape) return Status::shape_mismatch;
  work.non_finite = false;
  work.input = {};
  work.input.n = plan.n;
  work.input.shape = &plan.kind.shape;
  work.input.key = key;
  work.input.executor = executor;
  if (plan.n == 0) return Status::ok;
  if (view.data == nullptr) return Status::unsupported;
  work.input.x = as_f32(view, plan.n, work.converted, executor);
  work.non_finite = !all_finite(work.input.x, plan.n);
  if (work.non_finite) return Status::non_finite;
  return plan.method->analyse(work.input, work.demand, work.state, work.scratch);
}

Status write_layer(const EncoderPlan& plan, LayerWork& work, const Prices& prices,
                   double fixed_bits, Bytes body, Row& row) noexcept {
  row.bytes = 0;
  row.flags = work.non_finite ? Row::kNonFinite : std::uint8_t{0};
  if (!work.sends()) return work.non_finite ? Status::non_finite : Status::ok;
  const ChosenPrice chosen = choose_price(plan, work, prices, fixed_bits);
  const std::size_t skip = chosen.own ? kPriceBytes : 0;
  const bool capped = plan.least_limit_bytes > 0;
  if (capped) body = work.whole;
  if (body.size() < plan.max_body_bytes) return Status::buffer_too_small;
  // What is thinned has no lossless stage yet.
  const Method* method = plan.method;
  if (capped && method->lossless()) method = method->without_lossless().get();
  BodyResult result;
  const Status status = method->encode(work.input, chosen.price, work.demand, work.state,
                                       work.scratch, body.subspan(skip), result);
  if (failed(status)) return status;
  if (result.bytes == 0) return worse(status, chosen.status);
  if (chosen.own) {
    std::memcpy(body.data(), &chosen.price, kPriceBytes);
    row.flags |= Row::kOwnPrice;
  }
  if (result.lossless) row.flags |= Row::kLossless;
  row.flags |= static_cast<std::uint8_t>(result.form << Row::kFormShift);
  row.bytes = result.bytes + skip;
  work.price = chosen.price;
  return row.bytes <= kMaxBodyBytes ? worse(status, chosen.status) : Status::unsupported;
}

CappedBody capped_body(const EncoderPlan& plan, const LayerWork& work, const Row& row,
                       bool with_least) noexcept {
  if (plan.least_limit_bytes == 0 || row.bytes == 0) return {};
  CappedBody body{row.bytes, row.bytes, own_price_bytes(row) > 0};
  if (!with_least) return body;
  const auto skip = own_price_bytes(row);
  const ConstBytes proper = ConstBytes(work.whole).first(row.bytes).subspan(skip);
  body.least =
      skip + thinnest_bytes(proper, plan.method->thinned_layer(plan.kind.shape, row.form()),
                            work.thinning);
  return body;
}

Status finish_layer(const EncoderPlan& plan, const LayerWork& work, const Allotment& allotment,
                    Bytes body, Row& row) noexcept {
  if (plan.least_limit_bytes == 0 || row.bytes == 0) return Status::ok;
  if (allotment.gain == 0) {
    row = {};
    return Status::ok;
  }
  const ConstBytes proper = ConstBytes(work.whole).first(row.bytes).subspan(own_price_bytes(row));
  if (allotment.gain != 1) row.flags |= Row::kOwnPrice;
  const std::size_t skip = own_price_bytes(row);
  if (skip > 0) {
    const float price = raised_price(work.price, allotment.gain);
    std::memcpy(body.data(), &price, kPriceBytes);
  }
  const Bytes out = body.subspan(skip);
  std::size_t bytes = proper.size();
  if (const std::size_t limit = allotment.limit - skip; bytes > limit) {
    const ThinnedLayer layer = plan.method->thinned_layer(plan.kind.shape, row.form());
    const Status status =
        thin(proper, layer, limit, work.input.key, out.first(limit), work.thinning, bytes);
    if (failed(status)) return status;
    row.flags |= Row::kThinned;
  } else {
    std::copy(proper.begin(), proper.end(), out.begin());
  }
  if (plan.method->lossless()) {
    std::copy_n(out.data(), bytes, work.whole.data());
    const std::size_t packed = plan.method->pack(plan.kind, work.whole.first(bytes), out);
    if (packed != 0) row.flags |= Row::kLossless;
    if (packed == 0) std::copy_n(work.whole.data(), bytes, out.data());
    if (packed != 0) bytes = packed;
  }
  row.bytes = skip + bytes;
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
  if ((half && add) || (n > 0 && view.data == nullptr)) return Status::unsupported;
  if (const Status s = check_row(layer.row, kind.method, n); failed(s)) return s;
  if (n == 0) return Status::ok;

  const BodyDecoder& decoder = *find_decoder(kind.method);
  Carver carver(workspace);
  auto values = carver.take<float>(half ? n : 0);
  const bool lossless = (layer.row.flags & Row::kLossless) != 0;
  const Bytes unpacked = carver.take_bytes(lossless ? decoder.max_body_bytes(kind) : 0);
  const Bytes scratch = carver.take_bytes(decoder.workspace_bytes(kind));
  if (!carver.fits()) return Status::workspace_too_small;

  LayerOutput out;
  out.y = half ? values.data() : static_cast<float*>(view.data);
  if ((layer.row.flags & Row::kNonFinite) != 0) {
    std::fill_n(out.y, n, std::numeric_limits<float>::quiet_NaN());
    return half ? worse(Status::non_finite, round_to_half(out.y, n, layer.key, Purpose::output,
                                                          view.dtype, view.data, executor))
                : Status::non_finite;
  }
  out.body = layer.body;
  out.price = kind.method == MethodId::coordinate ? header.grid_step : header.price;
  if ((layer.row.flags & Row::kOwnPrice) != 0) {
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
  out.thinned = (layer.row.flags & Row::kThinned) != 0;
  out.form = layer.row.form();
  out.alpha = alpha;
  out.workspace = scratch;
  out.executor = executor;
  const Status status = decoder.decode(out);
  if (failed(status) || !half) return status;
  return worse(status, round_to_half(values.data(), n, layer.key, Purpose::output, view.dtype,
                                     view.data, executor));
}

}  // namespace atomo::codec
