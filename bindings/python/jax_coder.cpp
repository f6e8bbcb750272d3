// SPDX-License-Identifier: Apache-2.0
/// \file
/// The two kinds of coder, one for a tensor and one for a model, are implemented here, together
/// with a store that keeps idle coders until the process ends. A call from XLA carries attributes
/// and buffers but no C++ object, so the store finds a coder by a text that is made of the spec,
/// names, dtypes, shapes and device of the request.

#include "jax_coder.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace atomo_jax {
namespace {

using atomo::Codec;
using atomo::ConstBytes;
using atomo::ConstTensorView;
using atomo::Context;
using atomo::Key;
using atomo::LayerSpec;
using atomo::Payload;
using atomo::Status;
using atomo::TensorView;

/// XLA may run a call as often as it likes, and on any coder.
void check_stateless(const Codec& codec) {
  if (codec.traits().memory) {
    throw atomo::Error("'" + codec.to_string() +
                       "' keeps a memory, and calls inside JAX have no state: take '" +
                       codec.without_memory().to_string() +
                       "' and keep the memory in the program (docs/memories.md, From JAX), or an "
                       "atomo.Compressor outside");
  }
}

class TensorCoder final : public Coder {
 public:
  explicit TensorCoder(const Request& request) : codec_(Codec::parse(request.spec)) {
    check_stateless(codec_);
    const LayerSpec& layer = request.layers.at(0);
    max_encoded_bytes = longest_message = codec_.max_encoded_bytes(layer.shape, layer.dtype);
    workspace_bytes =
        std::max(codec_.encode_workspace_bytes(layer.shape, layer.dtype, request.device),
                 codec_.decode_workspace_bytes(layer.shape, layer.dtype, request.device));
    if (request.device == atomo::Device::cuda && codec_.traits().synchronises)
      handles = atomo::make_handles();
  }
  Status encode(std::span<const ConstTensorView> layers, const Key& key, const Payload& payload,
                const Context& context) noexcept override {
    return codec_.encode(layers[0], key, payload, context);
  }
  Status decode(ConstBytes message, std::span<const TensorView> layers,
                const Context& context) const noexcept override {
    return codec_.decode(message, layers[0], context);
  }
  Status decode_add_all(std::span<const ConstBytes> messages, float alpha,
                        std::span<const TensorView> layers,
                        const Context& context) const noexcept override {
    return codec_.decode_add_all(messages, alpha, layers[0], context);
  }

 private:
  Codec codec_;
};

std::vector<LayerSpec> named(const Request& request) {
  std::vector<LayerSpec> layers = request.layers;
  std::string_view names = request.names;
  for (LayerSpec& layer : layers) {
    const std::size_t end = names.find('\n');
    layer.name = names.substr(0, end);
    names = end == names.npos ? std::string_view() : names.substr(end + 1);
  }
  return layers;
}

class ModelCoder final : public Coder {
 public:
  explicit ModelCoder(const Request& request)
      : compressor_(named(request), atomo::Policy::parse(request.spec),
                    {.device = request.device, .learns_ranks = false}) {
    for (std::size_t i = 0; i < request.layers.size(); ++i) check_stateless(compressor_.codec(i));
    max_encoded_bytes = compressor_.max_encoded_bytes();
    longest_message = compressor_.wire_bytes().value_or(max_encoded_bytes);
    workspace_bytes =
        std::max(compressor_.encode_workspace_bytes(), compressor_.decode_workspace_bytes());
    bool solves = false;
    for (std::size_t i = 0; i < request.layers.size(); ++i)
      solves = solves || compressor_.codec(i).traits().synchronises;
    if (request.device == atomo::Device::cuda && solves) handles = atomo::make_handles();
  }
  Status encode(std::span<const ConstTensorView> layers, const Key& key, const Payload& payload,
                const Context& context) noexcept override {
    return compressor_.encode(layers, key, payload, context);
  }
  Status decode(ConstBytes message, std::span<const TensorView> layers,
                const Context& context) const noexcept override {
    return compressor_.decode(message, layers, context);
  }
  Status decode_add_all(std::span<const ConstBytes> messages, float alpha,
                        std::span<const TensorView> layers,
                        const Context& context) const noexcept override {
    return compressor_.decode_add_all(messages, alpha, layers, context);
  }

 private:
  atomo::Compressor compressor_;
};

std::string identity_of(const Request& request) {
  std::string text = request.model ? "model\n" : "tensor\n";
  text.append(request.spec).append(1, '\0').append(request.names).append(1, '\0');
  if (request.device != atomo::Device::cpu) text += "cuda" + std::to_string(request.ordinal);
  for (const LayerSpec& layer : request.layers)
    text.append(name_of(layer.dtype)).append(layer.shape.to_string());
  return text;
}

/// Never destroyed: threads of XLA may still run a call while the process ends. Pointers to the
/// lists stay valid, for an unordered_map moves no elements.
struct Coders {
  std::mutex mutex;
  std::unordered_map<std::string, std::vector<std::unique_ptr<Coder>>> idle;
  std::uint64_t forgotten = 0;
};
Coders& coders() {
  static auto* const all = new Coders;
  return *all;
}

}  // namespace

void ReturnCoder::operator()(Coder* coder) const noexcept {
  std::unique_ptr<Coder> owner(coder);
  const std::lock_guard lock(coders().mutex);
  if (forgotten != coders().forgotten) return;
  try {
    idle->push_back(std::move(owner));
  } catch (...) {
    // Without memory for the list the coder goes; the next call makes another.
  }
}

CoderLease take_coder(const Request& request) {
  const std::string identity = identity_of(request);
  ReturnCoder giving_back;
  {
    const std::lock_guard lock(coders().mutex);
    auto& idle = coders().idle[identity];
    giving_back = {&idle, coders().forgotten};
    if (!idle.empty()) {
      std::unique_ptr<Coder> coder = std::move(idle.back());
      idle.pop_back();
      return CoderLease(coder.release(), giving_back);
    }
  }
  if (request.model) return CoderLease(new ModelCoder(request), giving_back);
  return CoderLease(new TensorCoder(request), giving_back);
}

void forget_coders() {
  std::vector<std::unique_ptr<Coder>>
      owners;  // a codec in Python takes the GIL to end, not this lock
  const std::lock_guard lock(coders().mutex);
  ++coders().forgotten;
  for (auto& [identity, idle] : coders().idle) {
    std::ranges::move(idle, std::back_inserter(owners));
    idle.clear();
  }
}

}  // namespace atomo_jax
