// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What tests of the C interface share: handles that give themselves back, and calls that own their
/// buffers, beside those of support.hpp that do the same in C++.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "atomo/atomo.h"
#include "support/support.hpp"

namespace atomo::test {

struct GiveBack {
  void operator()(atomo_codec* p) const { atomo_codec_destroy(p); }
  void operator()(atomo_compressor* p) const { atomo_compressor_destroy(p); }
  void operator()(atomo_threads* p) const { atomo_threads_destroy(p); }
  void operator()(atomo_message* p) const { atomo_message_destroy(p); }
  void operator()(atomo_patch* p) const { atomo_patch_destroy(p); }
};
template <typename Handle>
using Owned = std::unique_ptr<Handle, GiveBack>;

using Buffer = std::vector<std::byte>;

inline Owned<atomo_codec> c_codec(const std::string& spec) {
  atomo_codec* codec = nullptr;
  EXPECT_EQ(atomo_codec_create(spec.c_str(), &codec), ATOMO_OK) << atomo_last_error();
  return Owned<atomo_codec>(codec);
}

inline atomo_key c_key(const Key& key) {
  return {key.seed, key.step, key.tensor, key.worker, key.channel, {}};
}

inline atomo_const_tensor c_tensor(const void* data, const Shape& shape, DType dtype = DType::f32) {
  return {data, shape.dims().data(), shape.rank(), static_cast<atomo_dtype>(dtype), ATOMO_CPU, 0};
}
inline atomo_tensor c_tensor(void* data, const Shape& shape, DType dtype = DType::f32) {
  return {data, shape.dims().data(), shape.rank(), static_cast<atomo_dtype>(dtype), ATOMO_CPU, 0};
}

/// A context with a workspace of its own.
struct CContext {
  explicit CContext(std::size_t bytes, atomo_threads* threads = nullptr) : memory(bytes + 1) {
    context.workspace = memory.data();
    context.workspace_bytes = bytes;
    context.threads = threads;
  }
  [[nodiscard]] const atomo_context* get() const { return &context; }
  Buffer memory;
  atomo_context context{};
};

struct CMessage {
  atomo_status status = ATOMO_OK;
  Buffer bytes;
};

/// What a codec needs for both directions.
inline std::size_t c_workspace_bytes(const atomo_codec* codec, const Shape& shape, DType dtype) {
  std::size_t to_encode = 0, to_decode = 0;
  EXPECT_EQ(
      atomo_codec_encode_workspace_bytes(codec, shape.dims().data(), shape.rank(),
                                         static_cast<atomo_dtype>(dtype), ATOMO_CPU, &to_encode),
      ATOMO_OK)
      << atomo_last_error();
  EXPECT_EQ(
      atomo_codec_decode_workspace_bytes(codec, shape.dims().data(), shape.rank(),
                                         static_cast<atomo_dtype>(dtype), ATOMO_CPU, &to_decode),
      ATOMO_OK)
      << atomo_last_error();
  return std::max(to_encode, to_decode);
}

inline CMessage c_encode(const atomo_codec* codec, const void* x, const Shape& shape,
                         const Key& key, DType dtype = DType::f32,
                         atomo_threads* threads = nullptr) {
  std::size_t capacity = 0;
  EXPECT_EQ(atomo_codec_max_encoded_bytes(codec, shape.dims().data(), shape.rank(),
                                          static_cast<atomo_dtype>(dtype), &capacity),
            ATOMO_OK)
      << atomo_last_error();
  const CContext context(c_workspace_bytes(codec, shape, dtype), threads);
  CMessage message{ATOMO_OK, Buffer(capacity)};
  const auto tensor = c_tensor(x, shape, dtype);
  const auto k = c_key(key);
  std::uint64_t bytes = 0;
  message.status =
      atomo_codec_encode(codec, &tensor, &k, message.bytes.data(), capacity, &bytes, context.get());
  message.bytes.resize(atomo_failed(message.status) != 0 ? 0 : bytes);
  return message;
}

}  // namespace atomo::test
