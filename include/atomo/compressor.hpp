// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A model: layers registered once, a policy that gives each its codec, one price for all of them.
///
/// ```cpp
/// atomo::Compressor model({{"fc.weight", {128, 784}}, {"fc.bias", {128}}},
///                         atomo::Policy::parse("*=atomo:bits=0.5"));
/// std::vector<std::byte> payload(model.max_encoded_bytes());
/// std::vector<std::byte> workspace(model.encode_workspace_bytes());
/// std::uint64_t bytes = 0;
/// atomo::Status status = model.encode(gradients, {.seed = 1, .step = step, .worker = rank},
///                                     {payload.data(), payload.size(), &bytes},
///                                     {.workspace = workspace});
/// ```

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/codec.hpp"
#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// Which codec a layer gets: the first rule whose pattern matches its name. Patterns know `*` and
/// `?`.
class Policy {
 public:
  /// Layers whose name matches `pattern` get `codec`.
  struct Rule {
    std::string pattern;  ///< `*` any characters, `?` one; no `=;#`, line break or blank end
    Codec codec;          ///< never a null one
  };
  /// One codec for every layer.
  explicit Policy(Codec codec);
  /// Rules in the order in which they are tried. \throws Error for none, or for a pattern that
  /// `to_string` could not write: it names the rule.
  explicit Policy(std::vector<Rule> rules);
  /// Rules `pattern = spec`, one a line or separated by `;`; `#` starts a comment. Every layer must
  /// match one. A spec alone is one codec for every layer; a pattern with a colon wants room around
  /// the `=`, which tells it from a spec. \throws Error naming the line.
  static Policy parse(std::string_view text);

  /// \throws Error when no rule matches.
  [[nodiscard]] const Codec& codec_for(std::string_view layer) const;
  /// The same with `Codec::without_lossless` of every codec.
  [[nodiscard]] Policy without_lossless() const;
  /// The same with `Codec::without_memory` of every codec.
  [[nodiscard]] Policy without_memory() const;
  /// In the order in which they are tried.
  [[nodiscard]] const std::vector<Rule>& rules() const noexcept { return rules_; }
  /// `parse(to_string())` gives the same rules.
  [[nodiscard]] std::string to_string() const;

 private:
  std::vector<Rule> rules_;
};

/// A layer to register.
struct LayerSpec {
  std::string name;          ///< unique in the model, UTF-8
  Shape shape;               ///< of its gradient
  DType dtype = DType::f32;  ///< of its gradient
};

/// What is chosen once for a model.
struct CompressorOptions {
  bool names_on_wire =
      false;  ///< whole-model containers carry the layers' names (files want them, networks do not)
  /// Where the gradients are. On `cuda` the model keeps its tables, and what it learns of its
  /// price, on the device that is current when it is made, and refuses calls while another is
  /// (`Status::unsupported`); those that encode and decode take device pointers (see `Codec::encode`)
  /// and only messages of its own layers and codecs.
  Device device = Device::cpu;
  /// A sketch without a `rank=` of its own looks for as many pairs as earlier messages of the layer
  /// had a use for, which `save` keeps: the same input, key and history give the same bytes. False:
  /// always for as many as its shape allows, so that a whole message follows from its input and key
  /// alone.
  bool learns_ranks = true;
  /// Memories of codecs that have some can be taken back by one message (`take_memory_back`): they take
  /// twice their bytes.
  bool takes_back = false;
};

/// What `Compressor::save` keeps.
enum class Saved : std::uint8_t {
  all,       ///< both
  learnt,    ///< of prices, shares under a cap and ranks
  memories,  ///< what was not sent yet, under the layers' names
};

/// Encodes and decodes all layers of a model. Layers of codecs with a budget (`bits=`) put their
/// budgets in one pool and share one price, so bits go where they save most variance.
///
/// Set-up and `load` allocate; encode and decode do not. `encode`, `begin_...` and `end_...` are
/// called by one thread at a time; between `begin_step` and `end_step`, `encode_layer` may run for
/// different layers on any threads at once, and between `begin_message` and `end_message`,
/// `add_layer`. The decoding calls are const and thread-safe with a
/// workspace each.
///
/// A codec with a memory, `ef+topk:keep=0.01`, encodes a layer's gradient together with what earlier
/// messages of the layer left out. `encode`, `end_message` and `encode_layer` move the memories of what
/// they have written: those of a whole message, or of a part's, only where all its layers are finite,
/// and none where the call failed. Within a step a layer moves its memory once: `encode_layer`, or a
/// part's `encode`, of a layer that was sent before in the step is refused (`wrong_stage`). Each sender
/// has its own, so messages of several compressors may share no memory; receivers need none. Of `ef21` messages
/// are differences (`Traits::differences`): receivers add them to what they decoded before, and never clear that. On a device
/// memories stand there, with the CPU's values, and its kernels move them: the host does not see whether
/// a layer was finite, so there no layer of a step is sent twice.
///
/// On a device no call of a step waits for it, and all but `begin_step`, which is the host's alone,
/// can be captured into a CUDA graph: replays go on from what the last one has learnt. Layers may
/// be encoded on different streams; what `end_step` launches has to come behind them, and the
/// layers of the next step and whole messages behind that, one whole message behind the other.
class Compressor {
 public:
  /// \throws Error for a duplicate or unmatched name, or more than 65,536 layers.
  Compressor(std::vector<LayerSpec> layers, Policy policy, CompressorOptions options = {});
  /// The other one may only be destroyed afterwards.
  Compressor(Compressor&&) noexcept;
  /// The other one may only be destroyed afterwards.
  Compressor& operator=(Compressor&&) noexcept;
  ~Compressor();

  /// As registered.
  [[nodiscard]] const std::vector<LayerSpec>& layers() const noexcept;
  /// What the policy gave the layer.
  [[nodiscard]] const Codec& codec(std::size_t layer) const;
  /// The elements of all layers together.
  [[nodiscard]] std::uint64_t elements() const noexcept;

  /// Capacity that suffices for `encode`, whatever the values (see `Codec::max_encoded_bytes`).
  [[nodiscard]] std::size_t max_encoded_bytes() const noexcept;
  /// Capacity that suffices for `encode_layer`.
  [[nodiscard]] std::size_t max_encoded_bytes(std::size_t layer) const;
  /// Bytes that a whole message is expected to take, header included: budgets and bodies of fixed
  /// size. Nothing when a layer's codec has neither (see `Codec::expected_bytes`).
  [[nodiscard]] std::optional<std::uint64_t> expected_bytes() const noexcept;
  /// Bytes that every worker can send of its whole message, so that lengths need not travel: no
  /// message of `encode` is longer, whatever the gradients. Of layers under a `cap=` what the cap
  /// allows them together, of the others their fixed sizes; nothing when a layer's codec is not
  /// `traits().bounded`. At most `max_encoded_bytes`, and equal to it on a device. What stands behind
  /// a message is sent along and not looked at (see `Codec::wire_bytes`).
  [[nodiscard]] std::optional<std::size_t> wire_bytes() const noexcept;
  /// Workspace of `encode`.
  [[nodiscard]] std::size_t encode_workspace_bytes() const noexcept;
  /// Workspace of `encode_layer` of one layer.
  [[nodiscard]] std::size_t encode_workspace_bytes(std::size_t layer) const;
  /// Workspace of `decode`, `decode_add` and `decode_add_all` into views of the layers' own dtypes, or
  /// f32, which a device takes of layers in f32 alone.
  [[nodiscard]] std::size_t decode_workspace_bytes() const noexcept;
  /// Workspace of `decode_layer`, `decode_layer_add` and `decode_layer_add_all` of one layer, into a
  /// view of any dtype.
  [[nodiscard]] std::size_t decode_workspace_bytes(std::size_t layer) const;

  /// One container of all layers, at one price found from the whole budget. `key.tensor` must be 0:
  /// layers are numbered in registration order. The next streamed step is predicted to need the
  /// same price (on a device a cap is still shared out as the last streamed step's sizes ask).
  /// `wrong_stage` while a message or a step is under way.
  Status encode(std::span<const ConstTensorView> layers, const Key& key, const Payload& payload,
                const Context& context) noexcept;
  /// Begins a whole message whose layers come one by one, as back-propagation makes them: the bytes
  /// and what is learnt are those of `encode`, whose conditions hold. `payload` and the context's
  /// workspace belong to the message until `end_message`. `wrong_stage` when a message or a step is
  /// under way, and of a part, which has `encode` alone; `unsupported` on a device.
  Status begin_message(const Key& key, const Payload& payload, const Context& context) noexcept;
  /// Layer i of the message: all the work that does not need the price of the model, which may be
  /// all there is. Any order, any thread, different layers at once; of a layer that is added again
  /// the last counts. What the view points to stays as it is until `end_message`. Of the context
  /// the executor is used, and `status`. `wrong_stage` outside a message.
  Status add_layer(std::size_t i, const ConstTensorView& view, const Context& context) noexcept;
  /// Finds the price, does the rest of the work and ends the message. Of the context the executor
  /// is used, and `status`. `wrong_stage` outside a message, or when a layer was not added.
  Status end_message(const Context& context = {}) noexcept;
  /// Reads a container of all layers, in registration order. On failure the contents are
  /// unspecified.
  Status decode(ConstBytes message, std::span<const TensorView> layers,
                const Context& context) const noexcept;
  /// `view[i] + (alpha * decoded[i])` for every layer; f32 views only.
  Status decode_add(ConstBytes message, float alpha, std::span<const TensorView> layers,
                    const Context& context) const noexcept;
  /// Adds all workers' messages in the order given (rank order). Views in f32 receive bit for bit
  /// what a `decode_add` of each message gives, in less time: a layer, or a stretch of it, stays in
  /// a cache, or on a device in registers, while one message after the other is added. Half views
  /// are added in f32 and rounded once. A message that is refused keeps none of the others from
  /// being added; `Context::statuses` tells which it was.
  Status decode_add_all(std::span<const ConstBytes> messages, float alpha,
                        std::span<const TensorView> layers, const Context& context) const noexcept;

  /// Majority vote, of layers that are all of `sign` (`Traits::votes`): each entry becomes the sign of the
  /// sum of the messages' signs, as of `atomo::vote` (arithmetic.hpp), also on a device, where no bit
  /// leaves it. f32 views only; a layer that is non-finite in one message becomes NaN. On a device at
  /// most 2^24 messages, and `Context::statuses` tells which was refused; on the host that stays
  /// untouched. On failure the views' contents are unspecified. Neither allocates nor waits.
  Status vote(std::span<const ConstBytes> messages, std::span<const TensorView> layers,
              const Context& context) const noexcept;
  /// Workspace of `vote` for so many messages, where the compressor's tensors are.
  [[nodiscard]] std::size_t vote_workspace_bytes(std::size_t messages) const noexcept;

  /// Fixes the key and the price of a step whose layers come one by one. The price is predicted
  /// from earlier steps; in the first step each layer solves for its own. `key.tensor` must be 0.
  /// `wrong_stage` when a step is under way. `unsupported` when the layers' heads leave no room for
  /// a run of atoms under a `cap=`, which whole messages have. The room kept aside for that run may
  /// be half of a small model's budget where `cap=` is near `bits=`.
  Status begin_step(const Key& key) noexcept;
  /// Fixes the prices by hand (both 0: as in the first step). `invalid_argument` for a price that is
  /// negative, not finite, or whose lower 16 bits are not zero.
  Status begin_step(const Key& key, const Prices& prices) noexcept;
  /// A complete container of layer i. Any order, any thread, each layer once a step; of a layer
  /// encoded again the last counts. Neither allocates nor synchronises unless the codec's traits
  /// say so. Needs `payload.capacity >= max_encoded_bytes(i)` and a workspace of
  /// `encode_workspace_bytes(i)`. `wrong_stage` outside a step, and for a layer that this step has
  /// sent before where its codec has a memory.
  Status encode_layer(std::size_t i, const ConstTensorView& view, const Payload& payload,
                      const Context& context) noexcept;
  /// Learns from the step: updates the predicted price. Layers that were not encoded are left out.
  /// Neither allocates nor synchronises; of the context `status` and, on a device, `stream` are
  /// used. `underspent` when a layer's lowest price holds the next step's up, `overspent` when the
  /// budget does not pay for a message worth sending (a step's first messages do not tell: each
  /// layer of the first step spends at least as much), `wrong_stage` outside a step.
  Status end_step(const Context& context = {}) noexcept;
  /// Layers [first, first + count) as a compressor whose messages belong to this model's steps: a
  /// bucket of gradients as one message, and one budget for all buckets. Its `encode` is called
  /// between `begin_step` and `end_step` of this model, with the step's key (`tensor` 0,
  /// `Context::key` null), once a step; layers are this model's in draws, and numbered so on the wire.
  /// The message is at the step's prices and its layers are learnt from as those of `encode_layer`;
  /// a pool without a price (in the first step) gets one from the part's own budget. A `cap=` bounds
  /// each part's message as that of a model of its own, and its `wire_bytes` are the same; without one
  /// the bytes are those of `join` of the layers' messages, once there is a price. `decode` and its
  /// likes read such messages at any time. On a device a part takes as many launches as a model, and
  /// one more, and has tables of its own there. Parts may be encoded as layers are: on any threads, or
  /// streams. `begin_step`, and with it `encode_layer` and `end_step`, and `begin_message` of
  /// a part are refused (`wrong_stage`), as is its `encode` outside a step of this model; `invalid_argument` for another
  /// key. Set-up: allocates. This model outlives its parts; what is learnt is saved with it.
  /// \throws Error for layers that the model has not, a part of a part, or a cap that leaves no room.
  [[nodiscard]] Compressor part(std::size_t first, std::size_t count);
  /// Reads what `encode_layer(i, ...)` of this or another worker wrote: `view` has the shape of
  /// layer i. `shape_mismatch` for a layer that the model has not, `codec_mismatch` for a message of
  /// another codec. Needs a workspace of `decode_workspace_bytes(i)`.
  Status decode_layer(std::size_t i, ConstBytes message, const TensorView& view,
                      const Context& context) const noexcept;
  /// `view[j] + (alpha * decoded[j])`, otherwise as `decode_layer`; f32 views only.
  Status decode_layer_add(std::size_t i, ConstBytes message, float alpha, const TensorView& view,
                          const Context& context) const noexcept;

  /// Adds several messages of layer i in the order given (see `Codec::decode_add_all`), otherwise as
  /// `decode_layer_add`.
  Status decode_layer_add_all(std::size_t i, std::span<const ConstBytes> messages, float alpha,
                              const TensorView& view, const Context& context) const noexcept;

  /// The prices of the step under way, or of the last one; 0 before the first. On a device this
  /// call and `predicted_prices` wait for all its work, and give 0 when that failed.
  [[nodiscard]] Prices prices() const noexcept;
  /// The prices that `begin_step(key)` would take, 0 before the first step: workers who want one
  /// price (or one grid step, so that payloads add: arithmetic.hpp) agree on theirs and fix it by
  /// hand.
  [[nodiscard]] Prices predicted_prices() const noexcept;
  /// The budget of a whole message in bytes, by its share of it; 0 when no layer has one.
  [[nodiscard]] double budget_bytes() const noexcept;
  /// What messages have of the budgets (`bits=`) of their codecs from now on, for example more while the
  /// learning rate is high (`budget_shares`). Steps take it when the step before ends, because their
  /// price is found then: set the next step's before `end_step`. The layers of a model's first step
  /// have whole budgets. Caps stay as they are. A graph captured on a device keeps the share that it
  /// was captured with. It is not saved. Neither allocates nor waits. \throws Error for a share below
  /// 1/1024 or above 1024, of a part, and within a message.
  void set_budget_share(double share);
  /// The last one set, at first 1; of a part the whole model's.
  [[nodiscard]] double budget_share() const noexcept;

  /// What the memory of a layer keeps, an f32 an entry: what was not sent yet (of `dgc` its velocity
  /// is left out), or of `ef21` what was sent so far. Empty where the layer's codec has no memory. Between steps; allocates, and waits for
  /// a device. \throws Error of a part, which keeps nothing.
  [[nodiscard]] std::vector<float> memory(std::size_t layer) const;
  /// Bytes that the memories take, beside all workspaces; 0 of a part.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  /// Every memory becomes zero, as in a new model. Waits for a device. \throws Error of a part, and
  /// within a step or message.
  void reset_memory();
  /// Memories become what they were before the last step, or message outside a step, which nobody used:
  /// another worker's gradient was not finite, and all skip the step. A layer that this step or message did
  /// not have stays as it is, as all do where the call that was to make the message failed. A second call
  /// changes nothing before the next message. `only_if` may be null, or point to a status (a device word on CUDA), such as that of
  /// `decode_add_all`: then only where it has `non_finite`. Neither allocates nor waits; on a device one
  /// launch on the context's stream, behind the message's (more where the step left layers out). `unsupported` without
  /// `CompressorOptions::takes_back`, `wrong_stage` within a step or message, and of a part.
  Status take_memory_back(const Context& context = {}, const Status* only_if = nullptr) noexcept;

  /// Everything needed to go on after a crash, to the bit: what the controller has learnt of the
  /// model's price, under a `cap=` of its layers' shares, the ranks of its sketches, and the memories
  /// under their layers' names. Within
  /// a step, memories of layers that were sent are those behind their messages. On a device this call and `load`
  /// wait for all its work. \throws Error when that failed, and of a part, which keeps nothing.
  [[nodiscard]] std::vector<std::byte> save(Saved what = Saved::all) const;
  /// What the state does not hold stays as it is. A state of other layers gives its prices, and the memories whose layer's name, shape and rule of
  /// memory are the same: other memories become zero, sketches begin anew. \throws Error when the
  /// bytes are not a saved state of a model with these caps, of a part, and within a step or message.
  void load(ConstBytes state);

 private:
  struct Impl;
  explicit Compressor(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// Shares of a budget for the steps of a run (`Compressor::set_budget_share`), by the learning rate of each
/// step: rate^power, at least `least` of the largest, divided by their mean, so that the run has the bytes it
/// would have had. A step's rate is the sum of its own and later ones, each times what is left of the step's
/// gradient in a first moment that decays by `momentum` and is corrected for its start, as Adam's. What a
/// message's noise does to the weights grows with the square of that rate, and falls with bits^-p, p from 1.5 to
/// 1.8 at half a bit and below: the sum over the steps is least at power 2 / (1 + p) (docs/one-price.md). \throws
/// Error for a rate that is negative or not finite, rates that are all 0, a power that is not in [0, 4], a least
/// share that is not in (0, 1], or a momentum that is not in [0, 1).
[[nodiscard]] std::vector<double> budget_shares(std::span<const double> rates, double power = 0.75,
                                                double least = 0.1, double momentum = 0.9);

}  // namespace atomo
