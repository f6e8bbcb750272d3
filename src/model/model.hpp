// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A model inside: its layers, the memory a step needs, its budget. model.cpp sets up, encodes and
/// decodes; model_price.cpp finds and predicts prices; model_cap.cpp shares the room under a cap;
/// model_memory.cpp moves and saves memories; saved_state.cpp saves and loads; compressor.cpp is the
/// public face. A part of a model is a model whose encoders, prices and ranks
/// are the whole's.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "atomo/compressor.hpp"
#include "backend/backend.hpp"
#include "codec/layer.hpp"
#include "codec/layer_order.hpp"
#include "core/run_tasks.hpp"
#include "core/status.hpp"
#include "price/price_controller.hpp"

namespace atomo {

namespace model {

/// A body is padded to 4 bytes: 1.5 of them on average.
inline constexpr double kMeanPaddingBits = 12;

/// Prices are f32 whose lower 16 bits are zero; 0 stands for none.
[[nodiscard]] inline bool is_finite_price(float p) noexcept {
  return p >= 0 && std::isfinite(p) && (std::bit_cast<std::uint32_t>(p) & 0xFFFFu) == 0;
}

}  // namespace model

struct Compressor::Impl {
  std::vector<LayerSpec> layers;
  Policy policy;
  CompressorOptions options;
  Impl* whole_model =
      nullptr;  // of a part: the model whose layers, from `first_layer` on, these are
  std::size_t first_layer = 0;
  std::vector<Codec> codecs;
  std::vector<codec::EncoderPlan> plans;
  format::HeadLayout layout;
  std::unique_ptr<backend::DeviceModel> device;  // null for a model on the CPU
  std::vector<std::size_t> one_head;             // head bytes of a message of this layer alone
  std::vector<std::size_t> body_offset;          // of each body at its largest, within the bodies
  std::size_t max_bytes = 0, encode_workspace = 0, decode_workspace = 0;

  // Per layer, written by whoever encodes it: its encoder, what became of it, and whether it was
  // seen this step.
  std::vector<std::byte> price_memory;  // what the price inputs of the layers point to
  std::vector<codec::LayerEncoder> own_encoders;
  std::span<codec::LayerEncoder> encoders;
  std::vector<Status> statuses;
  std::vector<std::uint8_t> seen;
  std::vector<const price::PriceInput*> pool_inputs;
  // Layers under a cap: their bodies in a whole message, what each may take of it; runs of layers.
  std::vector<price::CappedBody> capped_bodies;
  std::vector<price::Allotment> allotments;
  std::vector<std::uint64_t> layer_runs;
  // Of steps layer by layer: what the last one expected of each, and the bytes each may take in the
  // next; on a device the first step's, it keeps the others.
  std::vector<double> expected_bits;
  std::vector<std::size_t> limits;

  std::vector<std::size_t> layers_by_size;
  // Of layers whose sketches learn their rank: what this step takes, and what the next one will; a
  // device keeps its own.
  std::vector<std::size_t> ranked_layers;
  std::vector<price::RankState> ranks, next_ranks;  // a layer each

  // Of layers with a memory: a layer each, empty where there are none, of a part, and on a device,
  // which keeps its own; and whether the last step or message has moved it, or on a device was to.
  std::vector<std::size_t> remembering;
  std::vector<codec::LayerMemory> memories;
  std::vector<std::uint8_t> moved;

  Key step_key;
  codec::LayerPrices prices;           // of the step under way
  bool given = false;                  // these prices were fixed by hand
  price::ControllerState atoms, grid;  // of a model on the CPU; a device keeps its own
  bool in_step = false;

  // Of a whole message whose layers come one by one.
  bool in_message = false;
  double budget_share = 1;  ///< of messages, and of the step after the next `end_step`
  double step_share = 1;    ///< of the step under way
  Key message_key;
  Payload message;

  Impl(std::vector<LayerSpec> specs, Policy p, CompressorOptions o)
      : layers(std::move(specs)), policy(std::move(p)), options(o) {
    set_up();
  }
  /// A part of `all`.
  Impl(Impl& all, std::size_t begin, std::size_t count)
      : layers(all.layers.begin() + static_cast<std::ptrdiff_t>(begin),
               all.layers.begin() + static_cast<std::ptrdiff_t>(begin + count)),
        policy(all.policy),
        options(all.options),
        whole_model(&all),
        first_layer(begin) {
    set_up();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void set_up() {
    set_up_layers();
    set_up_memory();
    set_up_memories();
    set_up_order();
    check_cap();
    set_limits();
    if (options.device == Device::cuda) set_up_device();
  }
  void set_up_layers();
  void set_up_memory();
  void set_up_memories();
  void set_up_order();
  void set_up_device();
  [[nodiscard]] std::size_t read_workspace(std::size_t i) const noexcept {
    return codec::read_layer_workspace(plans[i].kind, plans[i].kind.dtype,
                                       plans[i].stages->lossless.has_value());
  }
  [[nodiscard]] bool in_pool(std::size_t i, price::Pool pool) const {
    const price::PriceRule& rule = plans[i].price_rule;
    return plans[i].n > 0 && rule.pool == pool && rule.from == price::PriceRule::From::budget;
  }
  [[nodiscard]] bool has_budget(std::size_t i) const {
    return in_pool(i, price::Pool::atoms) || in_pool(i, price::Pool::grid);
  }
  [[nodiscard]] double budget_bytes() const noexcept;
  /// That messages now have of their budgets.
  [[nodiscard]] double share() const noexcept {
    return whole_model == nullptr ? budget_share : whole_model->budget_share;
  }
  [[nodiscard]] double budget_bits(std::size_t i) const {
    return plans[i].price_rule.budget_bits * static_cast<double>(plans[i].n);
  }
  [[nodiscard]] bool capped(std::size_t i) const { return plans[i].capped(); }
  void check_cap() const;
  [[nodiscard]] std::size_t cap_room(bool streamed) const noexcept;
  [[nodiscard]] std::optional<std::size_t> wire_bytes() const noexcept;
  void expect_sizes(float price) noexcept;
  void set_limits() noexcept;
  [[nodiscard]] std::uint64_t cap_reserve() const noexcept;
  [[nodiscard]] bool streams_under_cap() const noexcept;
  [[nodiscard]] price::Allotment allot_streamed_layer(std::size_t i, const Key& key) const noexcept;
  Status allot(const Key& key) noexcept;
  Status leave_layers_out(const Key& key, std::uint64_t room) noexcept;
  [[nodiscard]] double one_layer_fixed_bits(std::size_t i) const {
    return 8.0 * static_cast<double>(one_head[i]) + model::kMeanPaddingBits;
  }
  double gather(price::Pool pool, bool streamed, double share) noexcept;
  Status learn(price::Pool pool, float price, price::ControllerState& state) noexcept;
  /// Whether a message of a part may be encoded now, and under this key.
  [[nodiscard]] Status check_part(const Key& key, const Context& context) const noexcept;
  /// The price that a part's layers of a pool share with the whole; 0 where there is none.
  [[nodiscard]] float price_of_whole(price::Pool pool) const noexcept;
  Status carve(Bytes memory) noexcept;
  template <typename Step>
  Status each_layer(Executor* executor, Step step) noexcept;
  Status find_prices(codec::LayerPrices& found, Executor* executor) noexcept;
  Status encode_on_device(std::span<const ConstTensorView> views, const Key& key,
                          const Payload& payload, const Context& context) noexcept;
  Status encode(std::span<const ConstTensorView> views, const Key& key, const Payload& payload,
                const Context& context) noexcept;
  Status begin_message(Key key, const Payload& payload, const Context& context) noexcept;
  Status add_layer(std::size_t i, const ConstTensorView& view, Executor* executor) noexcept;
  Status end_message(Executor* executor) noexcept;
  /// Whether the body of a layer follows from the layer alone.
  [[nodiscard]] bool stands_alone(std::size_t i) const { return !has_budget(i) && !capped(i); }
  /// Where the body of a layer goes before the gaps between bodies are closed.
  [[nodiscard]] Bytes room_of(std::size_t i) const noexcept {
    return {message.data + layout.bytes() + body_offset[i],
            static_cast<std::size_t>(format::padded(plans[i].max_body_bytes))};
  }
  std::uint64_t close_gaps() noexcept;
  /// Whether a message of this step has moved a memory of these layers.
  [[nodiscard]] bool any_moved() const noexcept;
  /// Of a whole message, fitted and not yet closed: its memories move. `so_far` is its status.
  Status keep_unsent(const codec::LayerPrices& found, Status so_far, Executor* executor) noexcept;
  /// A message of these layers was encoded on a device, which moves their memories, or was to.
  void note_moves() noexcept;
  /// A step, or a message outside one, begins: only what it moves can be taken back.
  void forget_moves() noexcept { std::ranges::fill(moved, std::uint8_t{0}); }
  /// \throws Error naming the call where a step or a message is under way.
  void check_between_steps(const char* call) const;
  Status reset_memory() noexcept;
  Status take_memory_back(const Context& context, const Status* only_if) noexcept;
  Status take_back_on_device(const Context& context, const Status* only_if) noexcept;
  /// Of a layer with a memory, as they are saved. \throws Error where a device fails.
  [[nodiscard]] std::vector<std::byte> kept_bytes(std::size_t i) const;
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  /// The saved values of a layer's memory.
  struct SavedValues {
    std::size_t layer = 0;
    ConstBytes bytes;
  };
  void save_memories(std::vector<std::byte>& state) const;
  /// Those of this model's layers among saved ones. False for other bytes.
  [[nodiscard]] bool read_memories(ConstBytes state, std::vector<SavedValues>& found) const;
  /// The others become zero. `corrupt`, and nothing changes, for values that are not finite.
  [[nodiscard]] Status write_memories(std::span<const SavedValues> found) noexcept;
  /// What layer i, once written, says of its next sketch.
  void learn_rank(std::size_t i) noexcept {
    if (whole_model != nullptr) return whole_model->learn_rank(first_layer + i);
    next_ranks[i] = encoders[i].learn_rank(ranks[i]);
  }
  [[nodiscard]] std::size_t rank_of(std::size_t i) const noexcept {
    return whole_model != nullptr ? whole_model->rank_of(first_layer + i) : ranks[i].rank;
  }
  Status encode_layer(std::size_t i, const ConstTensorView& view, const Payload& payload,
                      const Context& context) noexcept;
  Status encode_layer_on_device(std::size_t i, const ConstTensorView& view, const Payload& payload,
                                const Context& context) noexcept;
  Status end_step() noexcept;
  // The controller, wherever it is: a device is waited for.
  [[nodiscard]] price::StepPrices step_prices() const noexcept;
  Status read_prices(price::LearntPrices& learnt) const noexcept;
  Status set_learnt(const price::ControllerState& of_atoms,
                    const price::ControllerState& of_grid) noexcept;
  [[nodiscard]] std::size_t capped_layers() const noexcept;
  [[nodiscard]] bool may_be_limits(std::span<const std::uint64_t> of_capped) const noexcept;
  /// In the order of `ranked_layers`.
  Status read_ranks(std::vector<price::RankState>& learnt) const;
  /// Those of another model are left out: its layers begin anew.
  Status write_ranks(std::span<const price::RankState> learnt) noexcept;
  Status read_limits(std::span<std::uint64_t> of_capped) const noexcept;
  Status write_limits(std::span<const std::uint64_t> of_capped) noexcept;
  [[nodiscard]] Prices used_prices() const noexcept;
  [[nodiscard]] Prices predicted_prices() const noexcept;
  Status check(std::span<const TensorView> views) const noexcept;
  Status check_layer(std::size_t i, const TensorView& view) const noexcept;
  /// A model on a device leaves the context's status, a word there, to its kernels.
  Status report_on_host(const Context& context, Status status) const noexcept {
    return device != nullptr ? status : core::report(context, status);
  }
  Status add_through_f32(std::span<const ConstBytes> messages, float alpha,
                         std::span<const TensorView> views, const Context& context) const noexcept;
};

/// Runs `step(i, executor)` for every layer, several at once when there is an executor; the worst
/// status. A step of a layer that runs beside others has none.
template <typename Step>
Status Compressor::Impl::each_layer(Executor* executor, Step step) noexcept {
  const std::span<const std::size_t> sorted(layers_by_size);
  const std::size_t alone =
      codec::count_alone(sorted, executor, [&](std::size_t i) { return plans[i].n; });
  for (const std::size_t i : sorted.first(alone)) statuses[i] = step(i, executor);
  const std::size_t rest = sorted.size() - alone;
  core::run_tasks(executor, rest, [&](std::size_t k) {
    const std::size_t i = sorted[alone + k];
    statuses[i] = step(i, rest == 1 ? executor : nullptr);
  });
  Status status = Status::ok;
  for (const Status s : statuses) status |= s;
  return status;
}

}  // namespace atomo
