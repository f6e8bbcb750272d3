// SPDX-License-Identifier: Apache-2.0
/// \file
/// The coder of a CUDA device.
///
///   default stream          work stream                                       host
///   --------------          -----------                                       ----
///   put: values -> array ->  encode; length and message to pinned memory  ->  message
///                            message to the device; decode_add            <-  message
///                            array to host                                ->  values
///
/// A call that encodes waits once. It copies as much as a message can have where that is known
/// (`wire_bytes`, a fixed size), and otherwise an eighth more than the last message of the same
/// layers had; only a message that is longer than that is waited for a second time. Messages that
/// are added later wait in a buffer of pinned memory and a twin of it on the device.

#include <algorithm>
#include <atomo/container.hpp>
#include <atomo/cuda.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "common/workspace.hpp"
#include "exchange/coder.hpp"
#include "exchange/device_memory.hpp"

namespace train {
namespace {

using device::check;
using device::copy;
using device::Memory;

int current_device() {
  int gpu = 0;
  check(cudaGetDevice(&gpu), "the current device");
  return gpu;
}

class DeviceCoder final : public Coder {
 public:
  explicit DeviceCoder(const atomo::Policy& policy)
      : policy_(policy),
        gpu_(current_device()),
        told_(false, kToldBytes),
        told_on_host_(true, kToldBytes) {}

  void prepare(const atomo::Compressor& compressor, Messages kind) override {
    auto& model = models_[&compressor];
    model.codecs.clear();
    for (const auto& layer : compressor.layers())
      model.codecs.push_back(policy_.codec_for(layer.name));
    for (std::size_t i = 0; i < model.codecs.size(); ++i) {
      const auto& codec = compressor.codec(i);
      model.lossless = model.lossless || codec != model.codecs[i];
      // Codecs that wait go through other libraries.
      if (codec.traits().synchronises && !handles_) handles_ = atomo::make_handles();
    }
    workspace_.reserve(kind == Messages::whole
                           ? atomo::programs::workspace_bytes(compressor)
                           : atomo::programs::layer_workspace_bytes(compressor));
  }

  std::span<float> make_array(std::size_t elements) override {
    use_device();
    auto& memory = arrays_.emplace_back(false, elements * sizeof(float));
    const std::span array(memory.as<float>(), elements);
    clear(array);
    work_.wait();  // `put` is in another stream
    return array;
  }
  std::span<float> stand_in(std::span<float> values) override { return make_array(values.size()); }

  void put(std::span<const float> values, std::span<float> array) override {
    use_device();
    // In torch's own stream: torch may give a gradient's memory to its next kernel.
    copy(array.data(), values.data(), values.size_bytes(), cudaMemcpyDefault, cudaStreamLegacy);
    put_.record(cudaStreamLegacy);
    put_.hold(work_.get());
  }
  void clear(std::span<float> array) override {
    use_device();
    check(cudaMemsetAsync(array.data(), 0, array.size_bytes(), work_.get()), "clearing an array");
  }
  void fetch(std::span<const float> array, std::span<float> values) override {
    use_device();
    copy(values.data(), array.data(), array.size_bytes(), cudaMemcpyDeviceToHost, work_.get());
    hear();
  }

  atomo::Status encode(atomo::Compressor& compressor, std::span<const float> values,
                       const atomo::Key& key, const atomo::Payload& payload,
                       atomo::Executor*) override {
    const auto array = begin_encoding(values, compressor.max_encoded_bytes());
    const auto status = compressor.encode(views_of<atomo::ConstTensorView>(compressor, array), key,
                                          on_device(), context(statuses()));
    if (atomo::failed(status)) return status;
    auto& model = models_.at(&compressor);
    return bring(model, model.codecs, compressor.wire_bytes(), model.lengths[kWhole], payload);
  }
  atomo::Status encode_layer(atomo::Compressor& compressor, std::size_t layer,
                             std::span<const float> values, const atomo::Payload& payload,
                             atomo::Executor*) override {
    const std::size_t most = compressor.max_encoded_bytes(layer);
    const auto array = begin_encoding(values, most);
    const auto status =
        compressor.encode_layer(layer, view_of<atomo::ConstTensorView>(compressor, layer, array),
                                on_device(), context(statuses()));
    if (atomo::failed(status)) return status;
    auto& model = models_.at(&compressor);
    const bool fixed = compressor.codec(layer).traits().fixed_size;
    return bring(model, std::span(model.codecs).subspan(layer, 1),
                 fixed ? std::optional(most) : std::nullopt, model.lengths[layer], payload);
  }
  atomo::Status end_step(atomo::Compressor& compressor) override {
    use_device();
    return compressor.end_step({.stream = work_.get()});
  }

  atomo::Status decode(const atomo::Compressor& compressor, atomo::ConstBytes message,
                       std::span<float> values) override {
    return on_array(values, false, [&](std::span<float> array, atomo::Status& status) {
      take(compressor, message, status,
           [&](atomo::ConstBytes there, const atomo::Context& context) {
             return compressor.decode(there, views_of<atomo::TensorView>(compressor, array),
                                      context);
           });
    });
  }
  atomo::Status decode_add(const atomo::Compressor& compressor, atomo::ConstBytes message,
                           float alpha, std::span<float> values) override {
    return on_array(values, true, [&](std::span<float> array, atomo::Status& status) {
      add_later(compressor, message, alpha, array, status);
    });
  }
  atomo::Status decode_layer_add(const atomo::Compressor& compressor, std::size_t layer,
                                 atomo::ConstBytes message, float alpha,
                                 std::span<float> values) override {
    return on_array(values, true, [&](std::span<float> array, atomo::Status& status) {
      add_layer_later(compressor, layer, message, alpha, array, status);
    });
  }
  void add_later(const atomo::Compressor& compressor, atomo::ConstBytes message, float alpha,
                 std::span<float> array, atomo::Status& status) override {
    take(compressor, message, status, [&](atomo::ConstBytes there, const atomo::Context& context) {
      return compressor.decode_add(there, alpha, views_of<atomo::TensorView>(compressor, array),
                                   context);
    });
  }
  void add_layer_later(const atomo::Compressor& compressor, std::size_t layer,
                       atomo::ConstBytes message, float alpha, std::span<float> array,
                       atomo::Status& status) override {
    take(compressor, message, status, [&](atomo::ConstBytes there, const atomo::Context& context) {
      return compressor.decode_layer_add(
          layer, there, alpha, view_of<atomo::TensorView>(compressor, layer, array), context);
    });
  }

 private:
  /// What the device tells: a message's length, the status of an encoding, those of decodings.
  static constexpr std::size_t kWord = sizeof(std::uint64_t), kStatuses = 256;
  static constexpr std::size_t kToldBytes = kWord + kStatuses * sizeof(atomo::Status);
  static constexpr std::size_t kAlignment = 256;
  static constexpr std::size_t kLeastIncoming = std::size_t{1} << 20;
  static constexpr std::size_t kWhole = ~std::size_t{0};  ///< no layer's number

  /// What is known of a compressor.
  struct Model {
    std::vector<atomo::Codec> codecs{};            ///< with their lossless stages
    bool lossless = false;                         ///< whether there is one
    std::map<std::size_t, std::size_t> lengths{};  ///< of the last messages, by layer
  };

  template <class View, class Value>
  static std::vector<View> views_of(const atomo::Compressor& compressor, std::span<Value> array) {
    return atomo::programs::views_of<View>(compressor, array, atomo::Device::cuda);
  }
  template <class View, class Value>
  static View view_of(const atomo::Compressor& compressor, std::size_t layer,
                      std::span<Value> array) {
    return {array.data(), atomo::DType::f32, compressor.layers()[layer].shape, atomo::Device::cuda};
  }

  /// The calling thread may be a new one.
  void use_device() const { check(cudaSetDevice(gpu_), "choosing a GPU"); }

  [[nodiscard]] bool is_array(std::span<const float> values) const {
    const auto* const first = reinterpret_cast<const std::byte*>(values.data());
    return std::any_of(arrays_.begin(), arrays_.end(), [first](const Memory& memory) {
      return first >= memory.data() && first < memory.data() + memory.bytes().size();
    });
  }
  [[nodiscard]] std::span<float> scratch(std::size_t elements) {
    scratch_.reserve(elements * sizeof(float));
    return {scratch_.as<float>(), elements};
  }

  // ---- out

  [[nodiscard]] std::span<const float> begin_encoding(std::span<const float> values,
                                                      std::size_t most) {
    use_device();
    payload_.reserve(most);
    on_host_.reserve(most);
    begin_telling();
    if (is_array(values)) return values;
    const auto array = scratch(values.size());
    put(values, array);
    return array;
  }
  [[nodiscard]] atomo::Payload on_device() const {
    return {payload_.data(), payload_.bytes().size(), told_.as<std::uint64_t>()};
  }

  /// The message that was encoded into `payload`. `bound`: of its length, where one is known; `last`:
  /// the length of the message before.
  atomo::Status bring(const Model& model, std::span<const atomo::Codec> codecs,
                      std::optional<std::size_t> bound, std::size_t& last,
                      const atomo::Payload& payload) {
    const std::size_t likely = std::min(bound.value_or(last + last / 8), on_host_.bytes().size());
    copy(on_host_.data(), payload_.data(), likely, cudaMemcpyDeviceToHost, work_.get());
    hear();
    const auto status = heard()[0];
    if (atomo::failed(status)) return status;
    const std::size_t bytes = *told_on_host_.as<std::uint64_t>();
    if (bytes > likely) {
      copy(on_host_.data() + likely, payload_.data() + likely, bytes - likely,
           cudaMemcpyDeviceToHost, work_.get());
      work_.wait();
    }
    last = bytes;
    if (model.lossless)
      return status | atomo::pack_lossless({on_host_.data(), bytes}, codecs, payload);
    if (bytes > payload.capacity) return atomo::Status::buffer_too_small;
    std::memcpy(payload.data, on_host_.data(), bytes);
    *payload.bytes = bytes;
    return status;
  }

  // ---- in

  /// Hands `message`, on the device, to `decode`, whose status is known later.
  template <class Decode>
  void take(const atomo::Compressor& compressor, atomo::ConstBytes message, atomo::Status& status,
            const Decode& decode) {
    use_device();
    status = atomo::Status::ok;
    if (models_.at(&compressor).lossless) {
      // A message may claim any shape; one that is not the model's is refused all the same.
      const std::size_t most = compressor.max_encoded_bytes() + kLeastIncoming;
      plain_.resize(std::clamp<std::size_t>(atomo::unpacked_bytes(message), 1, most));
      std::uint64_t bytes = 0;
      status = atomo::unpack_lossless(message, {plain_.data(), plain_.size(), &bytes});
      if (atomo::failed(status)) return;
      message = atomo::ConstBytes(plain_).first(bytes);
    }
    if (awaited_.size() + 1 == kStatuses) hear();
    const auto there = bring_in(message);
    begin_telling();
    status |= decode(there, context(statuses() + 1 + awaited_.size()));
    if (!atomo::failed(status)) awaited_.push_back(&status);
  }

  /// A message on the device, once the work stream gets to it.
  atomo::ConstBytes bring_in(atomo::ConstBytes message) {
    if (message.size() > incoming_.bytes().size() - used_) {
      if (used_ != 0) hear();
      const std::size_t room = std::max(kLeastIncoming, 2 * message.size());
      if (message.size() > incoming_.bytes().size()) {
        incoming_.reserve(room);
        incoming_on_device_.reserve(room);
      }
    }
    std::byte* const here = incoming_.data() + used_;
    std::byte* const there = incoming_on_device_.data() + used_;
    std::ranges::copy(message, here);
    copy(there, here, message.size(), cudaMemcpyHostToDevice, work_.get());
    used_ = std::min(incoming_.bytes().size(),
                     (used_ + message.size() + kAlignment - 1) / kAlignment * kAlignment);
    return {there, message.size()};
  }

  /// Does `work` on `values`, or on a copy of them that comes back; `reads` what they are now.
  template <class Work>
  atomo::Status on_array(std::span<float> values, bool reads, const Work& work) {
    use_device();
    auto status = atomo::Status::ok;
    if (is_array(values)) {
      work(values, status);
      hear();
      return status;
    }
    const auto array = scratch(values.size());
    if (reads) put(values, array);
    work(array, status);
    hear();
    if (atomo::failed(status)) return status;
    copy(values.data(), array.data(), array.size_bytes(), cudaMemcpyDeviceToHost, work_.get());
    work_.wait();
    return status;
  }

  // ---- what the device tells

  void begin_telling() {
    if (telling_) return;
    check(cudaMemsetAsync(told_.data(), 0, kToldBytes, work_.get()), "clearing words");
    telling_ = true;
  }
  [[nodiscard]] atomo::Status* statuses() const noexcept {
    return reinterpret_cast<atomo::Status*>(told_.data() + kWord);
  }
  [[nodiscard]] const atomo::Status* heard() const noexcept {
    return reinterpret_cast<const atomo::Status*>(told_on_host_.data() + kWord);
  }
  /// Waits, and gives every status that is awaited.
  void hear() {
    begin_telling();
    check(cudaGetLastError(), "a kernel");
    copy(told_on_host_.data(), told_.data(), kToldBytes, cudaMemcpyDeviceToHost, work_.get());
    work_.wait();
    for (std::size_t i = 0; i < awaited_.size(); ++i) *awaited_[i] |= heard()[1 + i];
    awaited_.clear();
    telling_ = false;
    used_ = 0;
  }
  [[nodiscard]] atomo::Context context(atomo::Status* status) const {
    return {.stream = work_.get(),
            .workspace = workspace_.bytes(),
            .handles = handles_.get(),
            .status = status};
  }

  atomo::Policy policy_;
  int gpu_;
  std::map<const atomo::Compressor*, Model> models_;
  Memory told_, told_on_host_;
  Memory workspace_{false}, scratch_{false};
  Memory payload_{false}, on_host_{true};              ///< a message on its way out
  Memory incoming_{true}, incoming_on_device_{false};  ///< messages on their way in
  std::size_t used_ = 0;                               ///< bytes of both
  std::vector<std::byte> plain_;                       ///< one without lossless stages
  std::vector<atomo::Status*> awaited_;                ///< of those that are in
  bool telling_ = false;                               ///< since the host heard last
  std::deque<Memory> arrays_;
  atomo::HandlesPtr handles_;  ///< null where no codec needs any
  device::Event put_;
  device::StreamOwner work_;
};

}  // namespace

std::unique_ptr<Coder> make_device_coder(const atomo::Policy& policy) {
  return std::make_unique<DeviceCoder>(policy);
}

void device_to_host(std::span<const float> computed, std::span<float> copy) {
  device::copy(copy.data(), computed.data(), computed.size_bytes(), cudaMemcpyDefault,
               cudaStreamLegacy);
  check(cudaStreamSynchronize(cudaStreamLegacy), "a gradient");
}

}  // namespace train
