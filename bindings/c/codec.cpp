// SPDX-License-Identifier: Apache-2.0
// One tensor: atomo/codec.hpp.
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "boundary.hpp"

using atomo::c::checked_alpha;
using atomo::c::context_of;
using atomo::c::copied_out;
using atomo::c::given;
using atomo::c::guarded;
using atomo::c::handed_out;
using atomo::c::key_of;
using atomo::c::message_of;
using atomo::c::payload_of;
using atomo::c::view_of;

namespace {

const atomo::Codec& codec_of(const atomo_codec* codec) { return given(codec, "codec").codec; }

/// A text that stays as long as the process, one copy of equal ones.
const char* kept(const std::string& text) {
  static std::mutex mutex;
  static auto* const texts = new std::set<std::string>;
  const std::scoped_lock lock(mutex);
  return texts->insert(text).first->c_str();
}

}  // namespace

atomo_status atomo_codec_create(const char* spec, atomo_codec** codec) {
  return handed_out(codec, [&] { return atomo::Codec::parse(&given(spec, "spec")); });
}

void atomo_codec_destroy(atomo_codec* codec) { delete codec; }

atomo_status atomo_codec_without_lossless(const atomo_codec* codec, atomo_codec** plain) {
  return handed_out(plain, [&] { return codec_of(codec).without_lossless(); });
}

atomo_status atomo_codec_without_memory(const atomo_codec* codec, atomo_codec** plain) {
  return handed_out(plain, [&] { return codec_of(codec).without_memory(); });
}

atomo_status atomo_codec_spec(const atomo_codec* codec, char* text, size_t capacity,
                              size_t* needed) {
  return guarded([&] { return copied_out(codec_of(codec).to_string(), text, capacity, needed); });
}

atomo_status atomo_codec_equal(const atomo_codec* a, const atomo_codec* b, int32_t* equal) {
  return guarded([&] {
    const bool same = given(a, "a").codec == given(b, "b").codec;
    given(equal, "equal") = same ? 1 : 0;
  });
}

atomo_status atomo_codec_traits(const atomo_codec* codec, atomo_traits* traits) {
  return guarded([&] {
    const atomo::Traits& t = codec_of(codec).traits();
    atomo_traits& out = given(traits, "traits");
    out = {};
    out.bias_bound = t.bias_bound;
    out.omega = t.omega.value_or(0);
    out.contraction = t.contraction.value_or(0);
    out.largest = t.largest.value_or(0);
    out.step = t.step;
    out.smallest = t.smallest;
    out.highest = t.highest;
    out.has_omega = t.omega.has_value();
    out.has_contraction = t.contraction.has_value();
    out.has_largest = t.largest.has_value();
    out.unbiased = t.unbiased;
    out.linear = t.linear;
    out.averages_over_workers = t.averages_over_workers;
    out.fixed_size = t.fixed_size;
    out.allocates = t.allocates;
    out.synchronises = t.synchronises;
    out.capturable = t.capturable;
    out.cpu = t.cpu;
    out.cuda = t.cuda;
    out.bounded = t.bounded;
    out.memory = t.memory;
    out.votes = t.votes;
    out.differences = t.differences;
  });
}

atomo_status atomo_codec_rows(size_t* count) {
  return guarded([&] { given(count, "rows") = atomo::list_codecs().size(); });
}

atomo_status atomo_codec_row_at(size_t i, atomo_codec_row* row) {
  return guarded([&] {
    atomo_codec_row& out = given(row, "row");
    const std::vector<atomo::CodecHelp> rows = atomo::list_codecs();
    atomo::c::check_index(i, rows.size(), "rows");
    const atomo::CodecHelp& help = rows[i];
    out = {kept(help.name), kept(help.keys), kept(help.summary), kept(help.example)};
  });
}

atomo_status atomo_codec_max_encoded_bytes(const atomo_codec* codec, const int64_t* dims,
                                           int32_t rank, atomo_dtype dtype, size_t* bytes) {
  return guarded([&] {
    given(bytes, "bytes") = codec_of(codec).max_encoded_bytes(atomo::c::shape_of(dims, rank),
                                                              atomo::c::dtype_of(dtype));
  });
}

atomo_status atomo_codec_expected_bytes(const atomo_codec* codec, const int64_t* dims, int32_t rank,
                                        atomo_dtype dtype, uint64_t* bytes) {
  return guarded([&] {
    given(bytes, "bytes") =
        codec_of(codec)
            .expected_bytes(atomo::c::shape_of(dims, rank), atomo::c::dtype_of(dtype))
            .value_or(0);
  });
}

atomo_status atomo_codec_wire_bytes(const atomo_codec* codec, const int64_t* dims, int32_t rank,
                                    atomo_dtype dtype, size_t* bytes) {
  return guarded([&] {
    given(bytes, "bytes") =
        codec_of(codec)
            .wire_bytes(atomo::c::shape_of(dims, rank), atomo::c::dtype_of(dtype))
            .value_or(0);
  });
}

atomo_status atomo_codec_encode_workspace_bytes(const atomo_codec* codec, const int64_t* dims,
                                                int32_t rank, atomo_dtype dtype,
                                                atomo_device device, size_t* bytes) {
  return guarded([&] {
    given(bytes, "bytes") = codec_of(codec).encode_workspace_bytes(
        atomo::c::shape_of(dims, rank), atomo::c::dtype_of(dtype), atomo::c::device_of(device));
  });
}

atomo_status atomo_codec_decode_workspace_bytes(const atomo_codec* codec, const int64_t* dims,
                                                int32_t rank, atomo_dtype dtype,
                                                atomo_device device, size_t* bytes) {
  return guarded([&] {
    given(bytes, "bytes") = codec_of(codec).decode_workspace_bytes(
        atomo::c::shape_of(dims, rank), atomo::c::dtype_of(dtype), atomo::c::device_of(device));
  });
}

atomo_status atomo_codec_encode(const atomo_codec* codec, const atomo_const_tensor* tensor,
                                const atomo_key* key, void* payload, size_t capacity,
                                uint64_t* bytes, const atomo_context* context) {
  return guarded([&] {
    return codec_of(codec).encode(view_of(tensor), key_of(key),
                                  payload_of(payload, capacity, bytes), context_of(context));
  });
}

atomo_status atomo_codec_decode(const atomo_codec* codec, const void* message, size_t message_bytes,
                                const atomo_tensor* tensor, const atomo_context* context) {
  return guarded([&] {
    return codec_of(codec).decode(message_of(message, message_bytes), view_of(tensor),
                                  context_of(context));
  });
}

atomo_status atomo_codec_decode_add(const atomo_codec* codec, const void* message,
                                    size_t message_bytes, float alpha, const atomo_tensor* tensor,
                                    const atomo_context* context) {
  return guarded([&] {
    return codec_of(codec).decode_add(message_of(message, message_bytes), checked_alpha(alpha),
                                      view_of(tensor), context_of(context));
  });
}

atomo_status atomo_codec_decode_add_all(const atomo_codec* codec, const atomo_bytes* messages,
                                        size_t message_count, float alpha,
                                        const atomo_tensor* tensor, const atomo_context* context) {
  return guarded([&] {
    return codec_of(codec).decode_add_all(atomo::c::messages_of(messages, message_count),
                                          checked_alpha(alpha), view_of(tensor),
                                          context_of(context));
  });
}
