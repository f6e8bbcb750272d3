// SPDX-License-Identifier: Apache-2.0
/// \file
/// The coder of the CPU hands its calls to the compressor, with one workspace for all of them.
/// Nothing is copied but what `put` is asked to copy.

#include <algorithm>
#include <deque>
#include <vector>

#include "common/workspace.hpp"
#include "exchange/coder.hpp"

namespace train {
namespace {

class HostCoder final : public Coder {
 public:
  explicit HostCoder(Threads& threads) : threads_(threads) {}

  void prepare(const atomo::Compressor& compressor, Messages kind) override {
    std::size_t bytes = workspace_.size();
    if (kind == Messages::whole)
      bytes = std::max(bytes, atomo::programs::workspace_bytes(compressor));
    else
      bytes = std::max(bytes, atomo::programs::layer_workspace_bytes(compressor));
    workspace_.resize(bytes);
  }
  std::span<float> make_array(std::size_t elements) override {
    return arrays_.emplace_back(elements);
  }
  std::span<float> stand_in(std::span<float> values) override { return values; }

  void put(std::span<const float> values, std::span<float> array) override {
    std::ranges::copy(values, array.begin());
  }
  void clear(std::span<float> array) override { std::ranges::fill(array, 0.0F); }
  void fetch(std::span<const float> array, std::span<float> values) override {
    if (array.data() != values.data()) std::ranges::copy(array, values.begin());
  }

  atomo::Status encode(atomo::Compressor& compressor, std::span<const float> values,
                       const atomo::Key& key, const atomo::Payload& payload,
                       atomo::Executor* executor) override {
    return compressor.encode(
        atomo::programs::views_of<atomo::ConstTensorView>(compressor, values, atomo::Device::cpu),
        key, payload, {.workspace = workspace_, .executor = executor});
  }
  atomo::Status encode_layer(atomo::Compressor& compressor, std::size_t layer,
                             std::span<const float> values, const atomo::Payload& payload,
                             atomo::Executor* executor) override {
    return compressor.encode_layer(
        layer, {values.data(), atomo::DType::f32, compressor.layers()[layer].shape}, payload,
        {.workspace = workspace_, .executor = executor});
  }
  atomo::Status end_step(atomo::Compressor& compressor) override { return compressor.end_step(); }
  atomo::Status decode(const atomo::Compressor& compressor, atomo::ConstBytes message,
                       std::span<float> values) override {
    return compressor.decode(message, views_of(compressor, values), context());
  }
  atomo::Status decode_add(const atomo::Compressor& compressor, atomo::ConstBytes message,
                           float alpha, std::span<float> values) override {
    return compressor.decode_add(message, alpha, views_of(compressor, values), context());
  }
  atomo::Status decode_layer_add(const atomo::Compressor& compressor, std::size_t layer,
                                 atomo::ConstBytes message, float alpha,
                                 std::span<float> values) override {
    return compressor.decode_layer_add(
        layer, message, alpha, {values.data(), atomo::DType::f32, compressor.layers()[layer].shape},
        context());
  }
  void add_later(const atomo::Compressor& compressor, atomo::ConstBytes message, float alpha,
                 std::span<float> array, atomo::Status& status) override {
    status = decode_add(compressor, message, alpha, array);
  }
  void add_layer_later(const atomo::Compressor& compressor, std::size_t layer,
                       atomo::ConstBytes message, float alpha, std::span<float> array,
                       atomo::Status& status) override {
    status = decode_layer_add(compressor, layer, message, alpha, array);
  }

 private:
  static std::vector<atomo::TensorView> views_of(const atomo::Compressor& compressor,
                                                 std::span<float> values) {
    return atomo::programs::views_of<atomo::TensorView>(compressor, values, atomo::Device::cpu);
  }
  [[nodiscard]] atomo::Context context() noexcept {
    return {.workspace = workspace_, .executor = threads_.all()};
  }

  Threads& threads_;
  std::vector<std::byte> workspace_;
  std::deque<std::vector<float>> arrays_;  ///< stay where they are when one more is made
};

}  // namespace

std::unique_ptr<Coder> make_host_coder(Threads& threads) {
  return std::make_unique<HostCoder>(threads);
}

}  // namespace train
