// SPDX-License-Identifier: Apache-2.0
// Whole messages and steps whose layers come one by one, a model's prices, and what it has learnt:
// atomo/compressor.hpp.
#include "boundary.hpp"

using atomo::c::checked_alpha;
using atomo::c::context_of;
using atomo::c::given;
using atomo::c::guarded;
using atomo::c::key_of;
using atomo::c::message_of;
using atomo::c::payload_of;
using atomo::c::view_of;

atomo_status atomo_compressor_begin_message(atomo_compressor* compressor, const atomo_key* key,
                                            void* payload, size_t capacity, uint64_t* bytes,
                                            const atomo_context* context) {
  return guarded([&] {
    return given(compressor, "compressor")
        .model.begin_message(key_of(key), payload_of(payload, capacity, bytes),
                             context_of(context));
  });
}

atomo_status atomo_compressor_add_layer(atomo_compressor* compressor, size_t i,
                                        const atomo_const_tensor* tensor,
                                        const atomo_context* context) {
  return guarded([&] {
    atomo::Compressor& model = given(compressor, "compressor").model;
    atomo::c::check_index(i, model.layers().size(), "layers");
    return model.add_layer(i, view_of(tensor), context_of(context));
  });
}

atomo_status atomo_compressor_end_message(atomo_compressor* compressor,
                                          const atomo_context* context) {
  return guarded(
      [&] { return given(compressor, "compressor").model.end_message(context_of(context)); });
}

atomo_status atomo_compressor_begin_step(atomo_compressor* compressor, const atomo_key* key) {
  return guarded([&] { return given(compressor, "compressor").model.begin_step(key_of(key)); });
}

atomo_status atomo_compressor_begin_step_at(atomo_compressor* compressor, const atomo_key* key,
                                            const atomo_prices* prices) {
  return guarded([&] {
    const atomo_prices& p = given(prices, "prices");
    return given(compressor, "compressor").model.begin_step(key_of(key), {p.atoms, p.grid});
  });
}

atomo_status atomo_compressor_encode_layer(atomo_compressor* compressor, size_t i,
                                           const atomo_const_tensor* tensor, void* payload,
                                           size_t capacity, uint64_t* bytes,
                                           const atomo_context* context) {
  return guarded([&] {
    atomo::Compressor& model = given(compressor, "compressor").model;
    atomo::c::check_index(i, model.layers().size(), "layers");
    return model.encode_layer(i, view_of(tensor), payload_of(payload, capacity, bytes),
                              context_of(context));
  });
}

atomo_status atomo_compressor_end_step(atomo_compressor* compressor, const atomo_context* context) {
  return guarded(
      [&] { return given(compressor, "compressor").model.end_step(context_of(context)); });
}

atomo_status atomo_compressor_decode_layer(const atomo_compressor* compressor, size_t i,
                                           const void* message, size_t message_bytes,
                                           const atomo_tensor* tensor,
                                           const atomo_context* context) {
  return guarded([&] {
    const atomo::Compressor& model = given(compressor, "compressor").model;
    atomo::c::check_index(i, model.layers().size(), "layers");
    return model.decode_layer(i, message_of(message, message_bytes), view_of(tensor),
                              context_of(context));
  });
}

atomo_status atomo_compressor_decode_layer_add(const atomo_compressor* compressor, size_t i,
                                               const void* message, size_t message_bytes,
                                               float alpha, const atomo_tensor* tensor,
                                               const atomo_context* context) {
  return guarded([&] {
    const atomo::Compressor& model = given(compressor, "compressor").model;
    atomo::c::check_index(i, model.layers().size(), "layers");
    return model.decode_layer_add(i, message_of(message, message_bytes), checked_alpha(alpha),
                                  view_of(tensor), context_of(context));
  });
}

atomo_status atomo_compressor_decode_layer_add_all(const atomo_compressor* compressor, size_t i,
                                                   const atomo_bytes* messages,
                                                   size_t message_count, float alpha,
                                                   const atomo_tensor* tensor,
                                                   const atomo_context* context) {
  return guarded([&] {
    const atomo::Compressor& model = given(compressor, "compressor").model;
    atomo::c::check_index(i, model.layers().size(), "layers");
    return model.decode_layer_add_all(i, atomo::c::messages_of(messages, message_count),
                                      checked_alpha(alpha), view_of(tensor), context_of(context));
  });
}

atomo_status atomo_compressor_prices(const atomo_compressor* compressor, atomo_prices* prices) {
  return guarded([&] {
    const atomo::Prices used = given(compressor, "compressor").model.prices();
    given(prices, "prices") = {used.atoms, used.grid};
  });
}

atomo_status atomo_compressor_predicted_prices(const atomo_compressor* compressor,
                                               atomo_prices* prices) {
  return guarded([&] {
    const atomo::Prices predicted = given(compressor, "compressor").model.predicted_prices();
    given(prices, "prices") = {predicted.atoms, predicted.grid};
  });
}

atomo_status atomo_compressor_memory(const atomo_compressor* compressor, size_t i, float* values,
                                     size_t capacity, size_t* needed) {
  return guarded([&] {
    const atomo::Compressor& model = given(compressor, "compressor").model;
    atomo::c::check_index(i, model.layers().size(), "layers");
    const std::vector<float> kept = model.memory(i);
    if (needed != nullptr) *needed = kept.size();
    if (values == nullptr) return atomo::Status::ok;
    if (capacity < kept.size()) return atomo::Status::buffer_too_small;
    std::copy(kept.begin(), kept.end(), values);
    return atomo::Status::ok;
  });
}

atomo_status atomo_compressor_reset_memory(atomo_compressor* compressor) {
  return guarded([&] { given(compressor, "compressor").model.reset_memory(); });
}

atomo_status atomo_compressor_save(const atomo_compressor* compressor, void* state, size_t capacity,
                                   size_t* needed) {
  return guarded([&] {
    return atomo::c::copied_out(given(compressor, "compressor").model.save(), state, capacity,
                                needed);
  });
}

atomo_status atomo_compressor_load(atomo_compressor* compressor, const void* state,
                                   size_t state_bytes) {
  return guarded([&] {
    atomo::c::check_given(state, "state");
    given(compressor, "compressor").model.load(message_of(state, state_bytes));
  });
}
