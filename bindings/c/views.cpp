// SPDX-License-Identifier: Apache-2.0
// Arguments of C as the library's types.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "boundary.hpp"

namespace atomo::c {
namespace {

template <typename View, typename Tensor>
View checked_view(const Tensor& tensor) {
  View view;
  view.data = tensor.data;
  view.dtype = dtype_of(tensor.dtype);
  view.shape = shape_of(tensor.dims, tensor.rank);
  view.device = device_of(tensor.device);
  check_zero("a tensor", tensor.reserved);
  if (view.data == nullptr && view.shape.elements() > 0) {
    throw Error("data is NULL for a tensor " + view.shape.to_string() + " of " +
                std::to_string(view.shape.elements()) + " elements");
  }
  return view;
}

/// `one(items[i])` for each; an error says which item it was.
template <typename Made, typename Item, typename One>
Lent<Made> listed(const Item* items, std::size_t count, const char* name, One one) {
  if (count > 0) check_given(items, name);
  Lent<Made> list;
  list.items().reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    try {
      list.items().push_back(one(items[i]));
    } catch (const Error& e) {
      throw Error(std::string(name) + "[" + std::to_string(i) + "]: " + e.what());
    }
  }
  return list;
}

}  // namespace

void check_given(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(std::string(name) + " is NULL: this call needs it");
}

void check_index(std::size_t i, std::size_t count, const char* what) {
  if (i >= count)
    throw Error("i is " + std::to_string(i) + ": there are " + std::to_string(count) + " " + what);
}

float checked_alpha(float alpha) {
  if (std::isnan(alpha))
    throw Error("alpha is NaN: nothing would be left of the tensor; expected a number");
  return alpha;
}

Shape shape_of(const std::int64_t* dims, std::int32_t rank) {
  if (rank < 0 || rank > Shape::kMaxRank)
    throw Error("rank is " + std::to_string(rank) + ": expected 0 to 8 dimensions");
  if (rank == 0) return {};
  return Shape(std::span(&given(dims, "dims"), static_cast<std::size_t>(rank)));
}

DType dtype_of(atomo_dtype dtype) {
  if (dtype < ATOMO_F32 || dtype > ATOMO_BF16) {
    throw Error("dtype is " + std::to_string(dtype) +
                ": expected 0 (ATOMO_F32), 1 (ATOMO_F16) or 2 (ATOMO_BF16)");
  }
  return static_cast<DType>(dtype);
}

Device device_of(atomo_device device) {
  if (device != ATOMO_CPU && device != ATOMO_CUDA) {
    throw Error("device is " + std::to_string(device) +
                ": expected 0 (ATOMO_CPU) or 1 (ATOMO_CUDA)");
  }
  return static_cast<Device>(device);
}

Key key_of(const atomo_key* key) {
  const atomo_key& k = given(key, "key");
  check_zero("the key", k.reserved[0], k.reserved[1], k.reserved[2]);
  return {k.seed, k.step, k.tensor, k.worker, k.channel};
}

Context context_of(const atomo_context* context) {
  if (context == nullptr) return {};
  check_zero("the context", context->reserved[0]);
  if (context->workspace_bytes > 0) check_given(context->workspace, "workspace");
  Context made;
  made.stream = static_cast<Stream>(context->stream);
  made.workspace = {static_cast<std::byte*>(context->workspace), context->workspace_bytes};
  if (context->threads != nullptr) made.executor = context->threads->executor.get();
  if (context->handles != nullptr) made.handles = context->handles->handles.get();
  static_assert(sizeof(Status) == sizeof *context->status);
  made.status = reinterpret_cast<Status*>(context->status);
  made.step = context->step;
  // The two types have one layout: the reserved numbers stand where the other is padded.
  static_assert(sizeof(atomo_key) == sizeof(Key) &&
                offsetof(atomo_key, channel) == offsetof(Key, channel));
  made.key = reinterpret_cast<const Key*>(context->key);
  made.statuses = reinterpret_cast<Status*>(context->statuses);
  return made;
}

Payload payload_of(void* data, std::size_t capacity, std::uint64_t* bytes) {
  check_given(data, "the buffer for the message");
  check_given(bytes, "bytes, which receives the length,");
  return {static_cast<std::byte*>(data), capacity, bytes};
}

ConstBytes message_of(const void* message, std::size_t bytes) {
  check_given(message, "the message");
  return {static_cast<const std::byte*>(message), bytes};
}

ConstTensorView view_of(const atomo_const_tensor* tensor) {
  return checked_view<ConstTensorView>(given(tensor, "tensor"));
}

TensorView view_of(const atomo_tensor* tensor) {
  return checked_view<TensorView>(given(tensor, "tensor"));
}

Lent<ConstTensorView> views_of(const atomo_const_tensor* tensors, std::size_t count) {
  return listed<ConstTensorView>(tensors, count, "tensors",
                                 checked_view<ConstTensorView, atomo_const_tensor>);
}

Lent<TensorView> views_of(const atomo_tensor* tensors, std::size_t count) {
  return listed<TensorView>(tensors, count, "tensors", checked_view<TensorView, atomo_tensor>);
}

Lent<ConstBytes> messages_of(const atomo_bytes* messages, std::size_t count) {
  return listed<ConstBytes>(messages, count, "messages",
                            [](const atomo_bytes& m) { return message_of(m.data, m.bytes); });
}

Status copied_out(ConstBytes bytes, void* out, std::size_t capacity, std::size_t* needed) {
  if (out == nullptr) check_given(needed, "needed, where there is no buffer either,");
  if (needed != nullptr) *needed = bytes.size();
  if (out == nullptr) return Status::ok;
  if (capacity < bytes.size()) return Status::buffer_too_small;
  std::memcpy(out, bytes.data(), bytes.size());
  return Status::ok;
}

Status copied_out(const std::string& text, char* out, std::size_t capacity, std::size_t* needed) {
  return copied_out(std::as_bytes(std::span(text.c_str(), text.size() + 1)), out, capacity, needed);
}

}  // namespace atomo::c
