// SPDX-License-Identifier: Apache-2.0
#include "atomo/compressor.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "atomo/container.hpp"
#include "atomo/half.hpp"
#include "fp_guard.hpp"
#include "layer.hpp"
#include "price_search.hpp"

namespace atomo {

using detail::Carver;
using detail::Demand;
using detail::HeadLayout;
using detail::LayerPlan;
using detail::LayerWork;
using detail::Pool;
using detail::Prices;
using detail::report;
using detail::Row;
using detail::worse;

namespace {

/// A body is padded to 4 bytes: 1.5 of them on average.
constexpr double kMeanPaddingBits = 12;

/// How fast and how far the controller follows the ratio of sizes to the budget.
constexpr double kCorrectionRate = 0.1, kLargestCorrection = 1.5;

/// What the steps so far say about the next: one a pool.
struct PoolState {
  float price = 0;        ///< that would have met the budget of the last step; 0 before the first
  double correction = 1;  ///< what the budget is divided by so that messages meet it
};

/// Prices are f32 whose lower 16 bits are zero; 0 stands for none.
bool is_price(float p) noexcept {
  return p >= 0 && std::isfinite(p) && (std::bit_cast<std::uint32_t>(p) & 0xFFFFu) == 0;
}

/// Runs `body(i)` for every layer, on the executor when there is one.
template <typename Body>
void for_each_layer(Executor* executor, std::size_t count, Body body) noexcept {
  if (executor == nullptr) {
    for (std::size_t i = 0; i < count; ++i) body(i);
    return;
  }
  executor->run(
      count,
      [](void* state, std::size_t i) {
        const detail::FpGuard guard;
        (*static_cast<Body*>(state))(i);
      },
      &body);
}

}  // namespace

struct Compressor::Impl {
  std::vector<LayerSpec> layers;
  Policy policy;
  std::vector<Codec> codecs;
  std::vector<LayerPlan> plans;
  HeadLayout layout;
  std::vector<std::size_t> one_head;     // head bytes of a message of this layer alone
  std::vector<std::size_t> body_offset;  // of each body at its largest, within the bodies
  std::size_t max_bytes = 0, workspace = 0;

  // Per layer, written by whoever encodes it: what the price search needs, and whether it was seen this step.
  std::vector<std::byte> demand_memory;
  std::vector<Bytes> demand;
  std::vector<LayerWork> work;
  std::vector<Row> rows;
  std::vector<Status> statuses;
  std::vector<std::uint8_t> seen;
  std::vector<Demand> pool_demands;
  // Layers under a cap: what the last step expected of each, and the bytes each may take in this one.
  std::vector<double> expected_bits;
  std::vector<std::size_t> limits;

  Key step_key;
  Prices prices;             // of the step under way
  PoolState atoms, grid;
  bool in_step = false;

  Impl(std::vector<LayerSpec> specs, Policy p, CompressorOptions options)
      : layers(std::move(specs)), policy(std::move(p)) {
    set_up_layers(options);
    set_up_memory();
    check_cap();
  }

  void set_up_layers(const CompressorOptions& options);
  void set_up_memory();
  [[nodiscard]] bool in_pool(std::size_t i, Pool pool) const {
    return plans[i].n > 0 && plans[i].method->pool() == pool && plans[i].method->budget_bits() > 0;
  }
  [[nodiscard]] double budget_bits(std::size_t i) const {
    return plans[i].method->budget_bits() * static_cast<double>(plans[i].n);
  }
  [[nodiscard]] bool capped(std::size_t i) const { return plans[i].least_limit_bytes > 0; }
  void check_cap() const;
  [[nodiscard]] std::size_t cap_room(bool streamed) const noexcept;
  void expect_sizes(float price) noexcept;
  void set_limits(bool streamed) noexcept;
  [[nodiscard]] double one_layer_fixed_bits(std::size_t i) const {
    return 8.0 * static_cast<double>(one_head[i]) + kMeanPaddingBits;
  }
  double gather(Pool pool, bool streamed) noexcept;
  Status learn(Pool pool, float price, PoolState& state) noexcept;
  Status carve(Bytes memory) noexcept;
  Status encode(std::span<const ConstTensorView> views, Key key, const Payload& payload,
                const Context& context) noexcept;
  std::uint64_t close_gaps(std::byte* message) noexcept;
  Status encode_layer(std::size_t i, const ConstTensorView& view, const Payload& payload,
                      const Context& context) noexcept;
  Status check(std::span<const TensorView> views) const noexcept;
  Status add_through_f32(std::span<const ConstBytes> messages, float alpha, std::span<const TensorView> views,
                         const Context& context) const noexcept;
};

void Compressor::Impl::set_up_layers(const CompressorOptions& options) {
  if (layers.empty()) throw Error("a model without layers: expected at least one");
  if (layers.size() > detail::kMaxLayers) {
    throw Error("a model of " + std::to_string(layers.size()) + " layers: at most 65536 are supported");
  }
  std::set<std::string> names;
  std::vector<detail::Kind> kinds;
  std::vector<std::string> on_wire;
  for (const auto& layer : layers) {
    if (!names.insert(layer.name).second) throw Error("two layers are called '" + layer.name + "': names must differ");
    codecs.push_back(policy.codec_for(layer.name));
    plans.emplace_back(codecs.back().method(), layer.shape, layer.dtype);
    kinds.push_back(plans.back().kind);
    one_head.push_back(detail::one_layer_head_bytes(kinds.back()));
    if (options.names_on_wire) on_wire.push_back(layer.name);
  }
  layout = HeadLayout(kinds, on_wire);
}

void Compressor::Impl::set_up_memory() {
  const std::size_t count = layers.size();
  std::size_t bodies = 0;
  for (const auto& plan : plans) {
    body_offset.push_back(bodies);
    bodies += static_cast<std::size_t>(detail::padded(plan.max_body_bytes));
  }
  max_bytes = layout.bytes() + bodies;
  demand.resize(count);
  work.resize(count);
  rows.resize(count);
  statuses.resize(count);
  seen.resize(count);
  limits.resize(count);
  for (const auto& plan : plans) expected_bits.push_back(static_cast<double>(plan.n));
  pool_demands.reserve(count);

  Carver counted;
  for (const auto& plan : plans) counted.take_bytes(plan.demand_bytes);
  demand_memory.resize(counted.bytes());
  Carver placed{Bytes(demand_memory)};
  for (std::size_t i = 0; i < count; ++i) demand[i] = placed.take_bytes(plans[i].demand_bytes);

  Carver encoding;
  std::size_t decoding = 0, accumulators = 0;
  for (const auto& plan : plans) {
    LayerWork().carve(plan, encoding, false);
    decoding = std::max(decoding, detail::read_layer_workspace(plan.kind, plan.kind.dtype, plan.method->lossless()));
    if (plan.kind.dtype != DType::f32) accumulators += plan.n * sizeof(float) + 64;
  }
  workspace = std::max(encoding.bytes(), decoding + accumulators + 63);
}

/// Bytes that the caps leave for the bodies of the capped layers.
std::size_t Compressor::Impl::cap_room(bool streamed) const noexcept {
  double bytes = 0;
  std::size_t head = streamed ? 0 : layout.bytes();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    bytes += plans[i].method->cap_bits() * static_cast<double>(plans[i].n) / 8;
    if (streamed) head += one_head[i];
  }
  return detail::capped_bytes(bytes * 8, 1, head);
}

void Compressor::Impl::check_cap() const {
  std::size_t least = 0, n = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    least += plans[i].least_limit_bytes;
    if (capped(i)) n += plans[i].n;
  }
  if (n == 0) return;
  const std::size_t room = std::min(cap_room(false), cap_room(true));
  if (room >= least) return;
  throw Error("cap= leaves " + std::to_string(room) + " bytes for the layers' bodies, but one run of atoms of each may need " +
              std::to_string(least) + " (" + std::to_string(8.0 * static_cast<double>(least) / static_cast<double>(n)) +
              " bits a parameter)");
}

/// What each capped layer is expected to take at a price: a function of the gradients alone.
void Compressor::Impl::expect_sizes(float price) noexcept {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!capped(i)) continue;
    const bool sends = seen[i] == 2 && price > 0;
    expected_bits[i] = sends ? static_cast<double>(plans[i].method->expected_bits256(plans[i].kind.shape, demand[i], price)) : 0;
  }
}

/// Shares the room under the cap out: to each layer what one run may need, the rest as expected.
void Compressor::Impl::set_limits(bool streamed) noexcept {
  std::size_t least = 0;
  double all = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    least += plans[i].least_limit_bytes;
    if (capped(i)) all += expected_bits[i];
  }
  if (least == 0) return;
  const auto rest = static_cast<double>(cap_room(streamed) - least);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const double share = all > 0 && capped(i) ? rest * (expected_bits[i] / all) : 0;
    limits[i] = plans[i].least_limit_bytes + static_cast<std::size_t>(share) / 4 * 4;
  }
}

/// Gathers the layers of a pool (those of this step, when streamed) for the price search; returns the bits that their
/// budget leaves for bodies.
double Compressor::Impl::gather(Pool pool, bool streamed) noexcept {
  pool_demands.clear();
  double budget = 0, fixed = 0, share = 0, all = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool budgeted = in_pool(i, Pool::atoms) || in_pool(i, Pool::grid);
    if (budgeted) all += static_cast<double>(plans[i].n);
    if (!in_pool(i, pool) || (streamed && seen[i] == 0)) continue;
    budget += budget_bits(i);
    share += static_cast<double>(plans[i].n);
    fixed += streamed ? one_layer_fixed_bits(i) : kMeanPaddingBits;
    if (seen[i] == 2) pool_demands.push_back({plans[i].method, &plans[i].kind.shape, demand[i]});
  }
  if (!streamed && all > 0) fixed += 8.0 * static_cast<double>(layout.bytes()) * share / all;
  return detail::body_budget(budget, fixed);
}

/// After a streamed step at `price`: corrects by how far its bodies were from the budget (the price came from the step
/// before, and content costs a little more or less than the tables say), then finds the price for the next.
Status Compressor::Impl::learn(Pool pool, float price, PoolState& state) noexcept {
  const double target = gather(pool, true);
  if (pool_demands.empty()) return Status::ok;
  double actual = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (in_pool(i, pool) && seen[i] == 2) actual += 8.0 * static_cast<double>(rows[i].bytes);
  }
  if (price > 0) {
    const double ratio = std::clamp(actual / target, 0.5, 2.0);
    state.correction = std::clamp(state.correction * (1 + kCorrectionRate * (ratio - 1)), 1 / kLargestCorrection,
                                  kLargestCorrection);
  }
  const auto found = detail::find_price(pool_demands, target / state.correction);
  if (found.price > 0) state.price = found.price;
  return found.underspent ? Status::underspent : Status::ok;
}

Status Compressor::Impl::carve(Bytes memory) noexcept {
  Carver carver(memory);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    work[i].demand = demand[i];
    work[i].carve(plans[i], carver, false);
  }
  return carver.fits() ? Status::ok : Status::workspace_too_small;
}

/// `seen` says per layer: 0 not in this step, 1 encoded but nothing to send, 2 sends.
Status Compressor::Impl::encode(std::span<const ConstTensorView> views, Key key, const Payload& payload,
                                const Context& context) noexcept {
  if (views.size() != layers.size() || key.tensor != 0) return Status::shape_mismatch;
  if (payload.data == nullptr || payload.bytes == nullptr) return Status::unsupported;
  if (payload.capacity < max_bytes) return Status::buffer_too_small;
  if (const Status s = carve(context.workspace); failed(s)) return s;
  if (context.step != nullptr) key.step = *context.step;

  const auto key_of = [&](std::size_t i) {
    Key k = key;
    k.tensor = static_cast<std::uint16_t>(i);
    return k;
  };
  for_each_layer(context.executor, layers.size(), [&](std::size_t i) {
    statuses[i] = open_layer(plans[i], views[i], key_of(i), nullptr, work[i]);
    seen[i] = work[i].sends() ? 2 : 1;
  });
  Status status = Status::ok;
  for (const Status s : statuses) status = worse(status, s);
  if (failed(status)) return status;
  const double atoms_target = gather(Pool::atoms, false);
  const auto found_atoms = detail::find_price(pool_demands, atoms_target);
  const double grid_target = gather(Pool::grid, false);
  const auto found_grid = detail::find_price(pool_demands, grid_target);
  if (found_atoms.underspent || found_grid.underspent) status = worse(status, Status::underspent);
  const Prices found{found_atoms.price, found_grid.price, false};

  expect_sizes(found.atoms);
  set_limits(false);

  std::byte* bodies = payload.data + layout.bytes();
  for_each_layer(context.executor, layers.size(), [&](std::size_t i) {
    const auto capacity = static_cast<std::size_t>(detail::padded(plans[i].max_body_bytes));
    work[i].input.limit_bytes = limits[i];
    statuses[i] = write_layer(plans[i], work[i], found, 0, {bodies + body_offset[i], capacity}, rows[i]);
  });
  for (const Status s : statuses) status = worse(status, s);
  if (failed(status)) return status;

  const std::uint64_t total = close_gaps(payload.data);
  layout.write_tables(payload.data);
  layout.seal(payload.data, key, found.atoms, found.grid, total);
  *payload.bytes = total;
  prices = found;
  if (found.atoms > 0) atoms.price = found.atoms;
  if (found.grid > 0) grid.price = found.grid;
  return status;
}

/// Moves the bodies, written where the largest would be, behind one another; writes the rows. Returns the total.
std::uint64_t Compressor::Impl::close_gaps(std::byte* message) noexcept {
  std::byte* to = message + layout.bytes();
  const std::byte* bodies = to;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(rows[i].bytes);
    const auto whole = static_cast<std::size_t>(detail::padded(bytes));
    if (bytes > 0) std::memmove(to, bodies + body_offset[i], bytes);
    std::fill(to + bytes, to + whole, std::byte{0});
    to += whole;
    rows[i].kind = layout.kind_of(i);
    detail::write_row(message, i, rows[i]);
  }
  return static_cast<std::uint64_t>(to - message);
}

Status Compressor::Impl::encode_layer(std::size_t i, const ConstTensorView& view, const Payload& payload,
                                      const Context& context) noexcept {
  if (i >= layers.size()) return Status::shape_mismatch;
  if (!in_step || payload.data == nullptr || payload.bytes == nullptr) return Status::unsupported;
  const LayerPlan& plan = plans[i];
  const std::size_t head = one_head[i];
  if (payload.capacity < head + detail::padded(plan.max_body_bytes)) return Status::buffer_too_small;
  Carver carver(context.workspace);
  LayerWork layer;
  layer.demand = demand[i];
  layer.carve(plan, carver, false);
  if (!carver.fits()) return Status::workspace_too_small;

  Key key = step_key;
  if (context.step != nullptr) key.step = *context.step;
  key.tensor = static_cast<std::uint16_t>(i);
  Status status = open_layer(plan, view, key, context.executor, layer);
  if (failed(status)) return status;
  seen[i] = layer.sends() ? 2 : 1;
  const bool alone = plan.method->pool() == Pool::grid ? prices.grid == 0 : prices.atoms == 0;
  layer.input.limit_bytes = limits[i];
  Prices used = prices;
  used.solve_alone = alone;
  Row row;
  status = worse(status, write_layer(plan, layer, used, one_layer_fixed_bits(i),
                                     {payload.data + head, payload.capacity - head}, row));
  if (failed(status)) return status;
  const auto bytes = static_cast<std::size_t>(row.bytes), whole = static_cast<std::size_t>(detail::padded(bytes));
  std::fill(payload.data + head + bytes, payload.data + head + whole, std::byte{0});
  detail::write_one_layer_head(payload.data, plan.kind, row, key, in_pool(i, Pool::atoms) ? prices.atoms : 0,
                               in_pool(i, Pool::grid) ? prices.grid : 0);
  rows[i] = row;
  *payload.bytes = head + whole;
  return status;
}

Status Compressor::Impl::check(std::span<const TensorView> views) const noexcept {
  if (views.size() != layers.size()) return Status::shape_mismatch;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (views[i].shape != layers[i].shape) return Status::shape_mismatch;
  }
  return Status::ok;
}

/// Half views: all messages are added in f32 and rounded once, with the first message's key.
Status Compressor::Impl::add_through_f32(std::span<const ConstBytes> messages, float alpha,
                                         std::span<const TensorView> views, const Context& context) const noexcept {
  detail::Head first;
  if (const Status s = detail::Head::parse(messages[0], false, first); failed(s)) return s;
  Status status = Status::ok;
  for (std::size_t i = 0; i < views.size(); ++i) {
    Carver carver(context.workspace);
    auto sum = carver.take<float>(views[i].dtype == DType::f32 ? 0 : plans[i].n);
    const std::size_t used = carver.bytes();
    if (!carver.fits() || used > context.workspace.size()) return Status::workspace_too_small;
    TensorView target = views[i];
    if (views[i].dtype != DType::f32) {
      target = {sum.data(), DType::f32, views[i].shape, views[i].device};
      for (std::size_t k = 0; k < plans[i].n; ++k) {
        std::uint16_t h;
        std::memcpy(&h, static_cast<const std::byte*>(views[i].data) + 2 * k, 2);
        sum[k] = views[i].dtype == DType::f16 ? from_f16(h) : from_bf16(h);
      }
    }
    for (const ConstBytes message : messages) {
      detail::Head head;
      if (const Status s = detail::Head::parse(message, false, head); failed(s)) return s;
      if (head.layers() != views.size()) return Status::shape_mismatch;
      detail::LayerCursor layer(head);
      Status s = Status::ok;
      do {
        if (!layer.next(s)) return worse(s, Status::corrupt);
      } while (layer.index < i);
      s = detail::read_layer(layer, head.header(), target, true, alpha, context.workspace.subspan(used),
                             context.executor);
      if (failed(s)) return s;
      status = worse(status, s);
    }
    if (views[i].dtype == DType::f32) continue;
    Key key = first.header().key;
    key.tensor = static_cast<std::uint16_t>(i);
    status = worse(status, detail::round_to_half(sum.data(), plans[i].n, key, views[i].dtype, views[i].data));
  }
  return status;
}

Compressor::Compressor(std::vector<LayerSpec> layers, Policy policy, CompressorOptions options)
    : impl_(std::make_unique<Impl>(std::move(layers), std::move(policy), options)) {}
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
  return impl_->one_head.at(layer) + static_cast<std::size_t>(detail::padded(impl_->plans.at(layer).max_body_bytes));
}
std::size_t Compressor::workspace_bytes() const noexcept { return impl_->workspace; }
std::size_t Compressor::workspace_bytes(std::size_t layer) const {
  const LayerPlan& plan = impl_->plans.at(layer);
  Carver carver;
  LayerWork().carve(plan, carver, false);
  return std::max(carver.bytes(), detail::read_layer_workspace(plan.kind, plan.kind.dtype, plan.method->lossless()));
}

Status Compressor::encode(std::span<const ConstTensorView> layers, const Key& key, const Payload& payload,
                          const Context& context) noexcept {
  const detail::FpGuard guard;
  return report(context, impl_->encode(layers, key, payload, context));
}

Status Compressor::decode(ConstBytes message, std::span<const TensorView> layers,
                          const Context& context) const noexcept {
  if (const Status s = impl_->check(layers); failed(s)) return report(context, s);
  return atomo::decode(message, layers, context);
}

Status Compressor::decode_add(ConstBytes message, float alpha, std::span<const TensorView> layers,
                              const Context& context) const noexcept {
  if (const Status s = impl_->check(layers); failed(s)) return report(context, s);
  return atomo::decode_add(message, alpha, layers, context);
}

Status Compressor::decode_add(std::span<const ConstBytes> messages, float alpha, std::span<const TensorView> layers,
                              const Context& context) const noexcept {
  const detail::FpGuard guard;
  if (const Status s = impl_->check(layers); failed(s)) return report(context, s);
  if (messages.empty()) return report(context, Status::ok);
  const bool half = std::any_of(layers.begin(), layers.end(), [](const auto& v) { return v.dtype != DType::f32; });
  if (half) return report(context, impl_->add_through_f32(messages, alpha, layers, context));
  Status status = Status::ok;
  for (const ConstBytes message : messages) {
    const Status s = atomo::decode_add(message, alpha, layers, context);
    if (failed(s)) return s;
    status = worse(status, s);
  }
  return report(context, status);
}

Status Compressor::begin_step(const Key& key) noexcept {
  return begin_step(key, impl_->atoms.price, impl_->grid.price);
}

Status Compressor::begin_step(const Key& key, float price, float grid_step) noexcept {
  if (impl_->in_step || key.tensor != 0) return Status::unsupported;
  if (!is_price(price) || !is_price(grid_step)) return Status::unsupported;
  impl_->step_key = key;
  impl_->prices = {price, grid_step, false};
  std::fill(impl_->seen.begin(), impl_->seen.end(), std::uint8_t{0});
  impl_->set_limits(true);
  impl_->in_step = true;
  return Status::ok;
}

Status Compressor::encode_layer(std::size_t i, const ConstTensorView& view, const Payload& payload,
                                const Context& context) noexcept {
  const detail::FpGuard guard;
  return report(context, impl_->encode_layer(i, view, payload, context));
}

Status Compressor::end_step() noexcept {
  const detail::FpGuard guard;
  if (!impl_->in_step) return Status::unsupported;
  impl_->in_step = false;
  const Status status = impl_->learn(Pool::atoms, impl_->prices.atoms, impl_->atoms);
  impl_->expect_sizes(impl_->atoms.price);
  return worse(status, impl_->learn(Pool::grid, impl_->prices.grid, impl_->grid));
}

Status Compressor::decode_layer(ConstBytes message, const TensorView& view, const Context& context) const noexcept {
  return atomo::decode(message, {&view, 1}, context);
}

Status Compressor::decode_layer_add(ConstBytes message, float alpha, const TensorView& view,
                                    const Context& context) const noexcept {
  return atomo::decode_add(message, alpha, {&view, 1}, context);
}

float Compressor::price() const noexcept { return impl_->prices.atoms; }
float Compressor::grid_step() const noexcept { return impl_->prices.grid; }

double Compressor::budget_bytes() const noexcept {
  double bits = 0;
  for (std::size_t i = 0; i < impl_->plans.size(); ++i) bits += impl_->budget_bits(i);
  return bits / 8;
}

namespace {

constexpr char kStateMagic[8] = {'A', 'T', 'M', 'O', 'S', 'T', '0', '1'};

struct SavedState {
  char magic[8];
  float atoms_price, grid_price;
  double atoms_correction, grid_correction;
};
static_assert(sizeof(SavedState) == 32);

bool is_correction(double c) noexcept { return c >= 1 / kLargestCorrection && c <= kLargestCorrection; }

}  // namespace

std::vector<std::byte> Compressor::save() const {
  SavedState state{{}, impl_->atoms.price, impl_->grid.price, impl_->atoms.correction, impl_->grid.correction};
  std::memcpy(state.magic, kStateMagic, sizeof kStateMagic);
  std::vector<std::byte> bytes(sizeof state);
  std::memcpy(bytes.data(), &state, sizeof state);
  return bytes;
}

void Compressor::load(ConstBytes bytes) {
  SavedState state{};
  const bool sized = bytes.size() == sizeof state;
  if (sized) std::memcpy(&state, bytes.data(), sizeof state);
  if (!sized || std::memcmp(state.magic, kStateMagic, sizeof kStateMagic) != 0 || !is_price(state.atoms_price) ||
      !is_price(state.grid_price) || !is_correction(state.atoms_correction) || !is_correction(state.grid_correction)) {
    throw Error("not a saved compressor state: expected the " + std::to_string(sizeof state) +
                " bytes that save() returned, found " + std::to_string(bytes.size()));
  }
  impl_->atoms = {state.atoms_price, state.atoms_correction};
  impl_->grid = {state.grid_price, state.grid_correction};
}

}  // namespace atomo
