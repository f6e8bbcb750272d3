// SPDX-License-Identifier: Apache-2.0
// Containers without their codec, and arithmetic on them: atomo/container.hpp,
// atomo/arithmetic.hpp.
#include <limits>
#include <vector>

#include "boundary.hpp"

using atomo::Error;
using atomo::Status;
using atomo::c::context_of;
using atomo::c::given;
using atomo::c::guarded;
using atomo::c::message_of;
using atomo::c::messages_of;
using atomo::c::payload_of;
using atomo::c::views_of;

namespace {

constexpr std::size_t kMaxLayers = 65536;

const atomo::ContainerInfo& info_of(const atomo_message* message) {
  return given(message, "message").info;
}

/// No message has more; a larger count is refused before a tensor is looked at.
template <typename Tensor>
auto layers_of(const Tensor* tensors, std::size_t count) {
  if (count > kMaxLayers) {
    throw Error("count is " + std::to_string(count) + ": a message has at most " +
                std::to_string(kMaxLayers) + " layers");
  }
  return views_of(tensors, count);
}

}  // namespace

atomo_status atomo_message_inspect(const void* message, size_t message_bytes, int32_t exact,
                                   atomo_message** out) {
  return guarded([&] {
    given(out, "the pointer that receives the handle") = nullptr;
    auto inspected = std::make_unique<atomo_message>();
    const Status status =
        atomo::inspect(message_of(message, message_bytes), inspected->info, exact != 0);
    if (!failed(status)) *out = inspected.release();
    return status;
  });
}

void atomo_message_destroy(atomo_message* message) { delete message; }

atomo_status atomo_message_about(const atomo_message* message, atomo_message_info* info) {
  return guarded([&] {
    const atomo::ContainerInfo& from = info_of(message);
    atomo_message_info& out = given(info, "info");
    out = {};
    out.format_major = from.major;
    out.format_minor = from.minor;
    out.key.seed = from.key.seed;
    out.key.step = from.key.step;
    out.key.tensor = from.key.tensor;
    out.key.worker = from.key.worker;
    out.key.channel = from.key.channel;
    out.prices = {from.prices.atoms, from.prices.grid};
    out.bytes = from.bytes;
    out.head_bytes = from.head_bytes;
    out.elements = from.elements();
    out.layers = from.layers.size();
  });
}

atomo_status atomo_message_layer(const atomo_message* message, size_t i, atomo_layer_info* info) {
  return guarded([&] {
    const auto& layers = info_of(message).layers;
    atomo_layer_info& out = given(info, "info");
    atomo::c::check_index(i, layers.size(), "layers");
    const atomo::LayerInfo& from = layers[i];
    out = {};
    out.name = from.name.c_str();
    out.name_bytes = from.name.size();
    out.codec = from.codec.c_str();
    out.dims = from.shape.dims().data();
    out.rank = from.shape.rank();
    out.dtype = static_cast<atomo_dtype>(from.dtype);
    out.atoms = from.atoms;
    out.kept = from.kept;
    out.bytes = from.bytes;
    out.price = from.price;
    out.non_finite = from.non_finite;
    out.lossless = from.lossless;
    out.thinned = from.thinned;
  });
}

atomo_status atomo_decode(const void* message, size_t message_bytes, const atomo_tensor* tensors,
                          size_t count, const atomo_context* context) {
  return guarded([&] {
    return atomo::decode(message_of(message, message_bytes), layers_of(tensors, count),
                         context_of(context));
  });
}

atomo_status atomo_decode_add(const void* message, size_t message_bytes, float alpha,
                              const atomo_tensor* tensors, size_t count,
                              const atomo_context* context) {
  return guarded([&] {
    return atomo::decode_add(message_of(message, message_bytes), atomo::c::checked_alpha(alpha),
                             layers_of(tensors, count), context_of(context));
  });
}

atomo_status atomo_decode_add_all(const atomo_bytes* messages, size_t message_count, float alpha,
                                  const atomo_tensor* tensors, size_t count,
                                  const atomo_context* context) {
  return guarded([&] {
    return atomo::decode_add_all(messages_of(messages, message_count),
                                 atomo::c::checked_alpha(alpha), layers_of(tensors, count),
                                 context_of(context));
  });
}

atomo_status atomo_decode_workspace_bytes(const int64_t* dims, int32_t rank, atomo_dtype dtype,
                                          size_t* bytes) {
  return guarded([&] {
    given(bytes, "bytes") =
        atomo::decode_workspace_bytes(atomo::c::shape_of(dims, rank), atomo::c::dtype_of(dtype));
  });
}

atomo_status atomo_join(const atomo_bytes* parts, size_t count, void* payload, size_t capacity,
                        uint64_t* bytes) {
  return guarded([&] {
    if (count == 0) throw atomo::Error("count is 0: expected at least one part to join");
    return atomo::join(messages_of(parts, count), payload_of(payload, capacity, bytes));
  });
}

atomo_status atomo_joined_bytes_bound(const atomo_bytes* parts, size_t count, size_t* bytes) {
  return guarded(
      [&] { given(bytes, "bytes") = atomo::joined_bytes_bound(messages_of(parts, count)); });
}

atomo_status atomo_pack_lossless(const void* message, size_t message_bytes,
                                 const atomo_codec* const* codecs, size_t count, void* payload,
                                 size_t capacity, uint64_t* bytes) {
  return guarded([&] {
    if (count > kMaxLayers) return Status::shape_mismatch;
    if (count > 0) atomo::c::check_given(codecs, "codecs");
    std::vector<atomo::Codec> list;
    list.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
      list.push_back(given(codecs[i], ("codecs[" + std::to_string(i) + "]").c_str()).codec);
    return atomo::pack_lossless(message_of(message, message_bytes), list,
                                payload_of(payload, capacity, bytes));
  });
}

atomo_status atomo_unpack_lossless(const void* message, size_t message_bytes, void* payload,
                                   size_t capacity, uint64_t* bytes) {
  return guarded([&] {
    return atomo::unpack_lossless(message_of(message, message_bytes),
                                  payload_of(payload, capacity, bytes));
  });
}

atomo_status atomo_unpacked_bytes(const void* message, size_t message_bytes, uint64_t* bytes) {
  return guarded(
      [&] { given(bytes, "bytes") = atomo::unpacked_bytes(message_of(message, message_bytes)); });
}

atomo_status atomo_add(const atomo_bytes* messages, size_t count, void* workspace,
                       size_t workspace_bytes, void* sum, size_t capacity, uint64_t* bytes) {
  return guarded([&] {
    atomo::c::check_given(workspace, "workspace");
    return atomo::add(messages_of(messages, count),
                      {static_cast<std::byte*>(workspace), workspace_bytes},
                      payload_of(sum, capacity, bytes));
  });
}

atomo_status atomo_vote(const atomo_bytes* messages, size_t message_count,
                        const atomo_tensor* tensors, size_t count, const atomo_context* context) {
  return guarded([&] {
    return atomo::vote(messages_of(messages, message_count), layers_of(tensors, count),
                       context_of(context));
  });
}

atomo_status atomo_vote_workspace_bytes(size_t count, size_t* bytes) {
  return guarded([&] {
    if (count > std::size_t{1} << 31) {
      throw Error("count is " + std::to_string(count) + ": at most 2147483648 messages vote");
    }
    given(bytes, "bytes") = atomo::vote_workspace_bytes(count);
  });
}

atomo_status atomo_add_workspace_bytes(size_t count, size_t* bytes) {
  return guarded([&] {
    if (count > std::numeric_limits<std::uint32_t>::max()) {
      throw Error("count is " + std::to_string(count) + ": at most 4294967295 messages add");
    }
    given(bytes, "bytes") = atomo::add_workspace_bytes(count);
  });
}

atomo_status atomo_added_bytes_bound(const atomo_bytes* messages, size_t count, uint64_t* bytes) {
  return guarded(
      [&] { given(bytes, "bytes") = atomo::added_bytes_bound(messages_of(messages, count)); });
}
