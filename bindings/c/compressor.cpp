// SPDX-License-Identifier: Apache-2.0
// A model: atomo/compressor.hpp, but for the steps of streamed layers (streaming.cpp).
#include <vector>

#include "boundary.hpp"

using atomo::Error;
using atomo::Status;
using atomo::c::check_index;
using atomo::c::context_of;
using atomo::c::given;
using atomo::c::guarded;
using atomo::c::handed_out;
using atomo::c::message_of;
using atomo::c::views_of;

namespace {

constexpr std::size_t kMaxLayers = 65536;

const atomo::Compressor& model_of(const atomo_compressor* compressor) {
  return given(compressor, "compressor").model;
}

/// The model, which must have a layer `i`.
const atomo::Compressor& model_with(const atomo_compressor* compressor, std::size_t i) {
  const atomo::Compressor& model = model_of(compressor);
  check_index(i, model.layers().size(), "layers");
  return model;
}

/// Tensors as many as the layers; more or fewer fail before they are looked at.
template <typename Tensor, typename Call>
Status with_views(const atomo_compressor& compressor, const Tensor* tensors, std::size_t count,
                  Call call) {
  if (count != compressor.model.layers().size()) return Status::shape_mismatch;
  return call(views_of(tensors, count));
}

std::vector<atomo::LayerSpec> specs_of(const atomo_layer* layers, std::size_t count) {
  if (count > kMaxLayers) {
    throw Error("a model of " + std::to_string(count) + " layers: at most " +
                std::to_string(kMaxLayers) + " are supported");
  }
  if (count > 0) atomo::c::check_given(layers, "layers");
  std::vector<atomo::LayerSpec> specs;
  specs.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const atomo_layer& layer = layers[i];
    try {
      specs.push_back({&given(layer.name, "name"), atomo::c::shape_of(layer.dims, layer.rank),
                       atomo::c::dtype_of(layer.dtype)});
      if (layer.reserved != 0)
        throw Error("`reserved` is not zero: begin with `= {0}` and fill in what is named");
    } catch (const Error& e) {
      throw Error("layers[" + std::to_string(i) + "]: " + e.what());
    }
  }
  return specs;
}

atomo::Policy policy_of(const char* text, bool without_lossless) {
  auto policy = atomo::Policy::parse(&given(text, "policy"));
  return without_lossless ? policy.without_lossless() : policy;
}

}  // namespace

atomo_status atomo_policy_text(const char* policy, int32_t without_lossless, char* text,
                               size_t capacity, size_t* needed) {
  return guarded([&] {
    return atomo::c::copied_out(policy_of(policy, without_lossless != 0).to_string(), text,
                                capacity, needed);
  });
}

atomo_status atomo_policy_codec(const char* policy, const char* layer, atomo_codec** codec) {
  return handed_out(codec,
                    [&] { return policy_of(policy, false).codec_for(&given(layer, "layer")); });
}

atomo_status atomo_compressor_create(const atomo_layer* layers, size_t count, const char* policy,
                                     const atomo_compressor_options* options,
                                     atomo_compressor** compressor) {
  return guarded([&] {
    given(compressor, "the pointer that receives the handle") = nullptr;
    const atomo_compressor_options chosen =
        options == nullptr ? atomo_compressor_options{} : *options;
    for (const std::int32_t word : chosen.reserved) {
      if (word != 0) throw Error("`reserved` of the options is not zero: begin with `= {0}`");
    }
    *compressor = new atomo_compressor{
        atomo::Compressor(specs_of(layers, count), policy_of(policy, chosen.without_lossless != 0),
                          {.names_on_wire = chosen.names_on_wire != 0,
                           .device = atomo::c::device_of(chosen.device),
                           .learns_ranks = chosen.fixed_ranks == 0})};
  });
}

atomo_status atomo_compressor_part(atomo_compressor* compressor, std::size_t first,
                                   std::size_t count, atomo_compressor** part) {
  return handed_out(part, [&] { return given(compressor, "compressor").model.part(first, count); });
}

void atomo_compressor_destroy(atomo_compressor* compressor) { delete compressor; }

atomo_status atomo_compressor_layers(const atomo_compressor* compressor, size_t* layers) {
  return guarded([&] { given(layers, "layers") = model_of(compressor).layers().size(); });
}

atomo_status atomo_compressor_layer(const atomo_compressor* compressor, size_t i,
                                    atomo_layer* layer) {
  return guarded([&] {
    const auto& layers = model_of(compressor).layers();
    atomo_layer& out = given(layer, "layer");
    check_index(i, layers.size(), "layers");
    out = {layers[i].name.c_str(), layers[i].shape.dims().data(), layers[i].shape.rank(),
           static_cast<atomo_dtype>(layers[i].dtype), 0};
  });
}

atomo_status atomo_compressor_codec(const atomo_compressor* compressor, size_t i,
                                    atomo_codec** codec) {
  return handed_out(codec, [&] { return model_with(compressor, i).codec(i); });
}

atomo_status atomo_compressor_elements(const atomo_compressor* compressor, uint64_t* elements) {
  return guarded([&] { given(elements, "elements") = model_of(compressor).elements(); });
}

atomo_status atomo_compressor_budget_bytes(const atomo_compressor* compressor, double* bytes) {
  return guarded([&] { given(bytes, "bytes") = model_of(compressor).budget_bytes(); });
}

atomo_status atomo_compressor_set_budget_share(atomo_compressor* compressor, double share) {
  return guarded([&] { given(compressor, "compressor").model.set_budget_share(share); });
}

atomo_status atomo_budget_shares(const double* rates, size_t count, double power, double least,
                                 double momentum, double* shares) {
  return guarded([&] {
    if (count == 0) return;
    std::ranges::copy(atomo::budget_shares({&given(rates, "rates"), count}, power, least, momentum),
                      &given(shares, "shares"));
  });
}

atomo_status atomo_compressor_max_encoded_bytes(const atomo_compressor* compressor, size_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = model_of(compressor).max_encoded_bytes(); });
}

atomo_status atomo_compressor_expected_bytes(const atomo_compressor* compressor, uint64_t* bytes) {
  return guarded(
      [&] { given(bytes, "bytes") = model_of(compressor).expected_bytes().value_or(0); });
}

atomo_status atomo_compressor_wire_bytes(const atomo_compressor* compressor, size_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = model_of(compressor).wire_bytes().value_or(0); });
}

atomo_status atomo_compressor_encode_workspace_bytes(const atomo_compressor* compressor,
                                                     size_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = model_of(compressor).encode_workspace_bytes(); });
}

atomo_status atomo_compressor_decode_workspace_bytes(const atomo_compressor* compressor,
                                                     size_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = model_of(compressor).decode_workspace_bytes(); });
}

atomo_status atomo_compressor_layer_max_encoded_bytes(const atomo_compressor* compressor, size_t i,
                                                      size_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = model_with(compressor, i).max_encoded_bytes(i); });
}

atomo_status atomo_compressor_layer_encode_workspace_bytes(const atomo_compressor* compressor,
                                                           size_t i, size_t* bytes) {
  return guarded(
      [&] { given(bytes, "bytes") = model_with(compressor, i).encode_workspace_bytes(i); });
}

atomo_status atomo_compressor_layer_decode_workspace_bytes(const atomo_compressor* compressor,
                                                           size_t i, size_t* bytes) {
  return guarded(
      [&] { given(bytes, "bytes") = model_with(compressor, i).decode_workspace_bytes(i); });
}

atomo_status atomo_compressor_encode(atomo_compressor* compressor,
                                     const atomo_const_tensor* tensors, size_t count,
                                     const atomo_key* key, void* payload, size_t capacity,
                                     uint64_t* bytes, const atomo_context* context) {
  return guarded([&] {
    atomo_compressor& c = given(compressor, "compressor");
    const auto to = atomo::c::payload_of(payload, capacity, bytes);
    return with_views(c, tensors, count, [&](const auto& views) {
      return c.model.encode(views, atomo::c::key_of(key), to, context_of(context));
    });
  });
}

atomo_status atomo_compressor_decode(const atomo_compressor* compressor, const void* message,
                                     size_t message_bytes, const atomo_tensor* tensors,
                                     size_t count, const atomo_context* context) {
  return guarded([&] {
    const atomo_compressor& c = given(compressor, "compressor");
    return with_views(c, tensors, count, [&](const auto& views) {
      return c.model.decode(message_of(message, message_bytes), views, context_of(context));
    });
  });
}

atomo_status atomo_compressor_decode_add(const atomo_compressor* compressor, const void* message,
                                         size_t message_bytes, float alpha,
                                         const atomo_tensor* tensors, size_t count,
                                         const atomo_context* context) {
  return guarded([&] {
    const atomo_compressor& c = given(compressor, "compressor");
    const float scale = atomo::c::checked_alpha(alpha);
    return with_views(c, tensors, count, [&](const auto& views) {
      return c.model.decode_add(message_of(message, message_bytes), scale, views,
                                context_of(context));
    });
  });
}

atomo_status atomo_compressor_decode_add_all(const atomo_compressor* compressor,
                                             const atomo_bytes* messages, size_t message_count,
                                             float alpha, const atomo_tensor* tensors, size_t count,
                                             const atomo_context* context) {
  return guarded([&] {
    const atomo_compressor& c = given(compressor, "compressor");
    const float scale = atomo::c::checked_alpha(alpha);
    return with_views(c, tensors, count, [&](const auto& views) {
      return c.model.decode_add_all(atomo::c::messages_of(messages, message_count), scale, views,
                                    context_of(context));
    });
  });
}
