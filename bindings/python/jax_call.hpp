// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the handlers for the CPU and for CUDA share: XLA's buffers as views of atomo, keys, and
/// statuses as XLA's errors.

#include <array>
#include <atomo/atomo.hpp>
#include <cstddef>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_coder.hpp"
#include "xla/ffi/api/ffi.h"

namespace atomo_jax {

namespace ffi = xla::ffi;
/// Seed (low, high), step, tensor, worker, channel; and the same numbers as an `atomo::Key` has them
/// in memory, for calls on a device.
using KeyWords = ffi::BufferR1<ffi::U32>;
constexpr std::size_t kKeyWords = 6;  ///< of 32 bits, each of the two
static_assert(sizeof(atomo::Key) == kKeyWords * sizeof(std::uint32_t) &&
              offsetof(atomo::Key, step) == 8 && offsetof(atomo::Key, tensor) == 12 &&
              offsetof(atomo::Key, worker) == 14 && offsetof(atomo::Key, channel) == 16);

/// Of handlers' calls, `what` being their name in Python.
inline ffi::Error error_of(std::string_view what, std::string_view message) {
  return ffi::Error::InvalidArgument(std::string(what).append(": ").append(message));
}
/// Success for a status that is none.
inline ffi::Error error_of(std::string_view what, atomo::Status status) {
  if (!failed(status)) return ffi::Error::Success();
  return error_of(what, atomo::explain(status));
}
/// A message is longer than the payload that the caller asked for.
inline ffi::Error capacity_error(std::string_view what, std::uint64_t bytes, std::size_t capacity) {
  return error_of(what, "the message takes " + std::to_string(bytes) +
                            " bytes, the payload holds " + std::to_string(capacity) +
                            ": raise capacity=, or bound the message with the codec's cap=");
}

/// Runs a handler's body; nothing may be thrown through XLA.
template <class Body>
ffi::Error guarded(std::string_view what, const Body& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    return error_of(what, error.what());
  }
}

/// Shape and dtype of a buffer. \throws atomo::Error for a dtype that no codec takes.
inline atomo::LayerSpec layer_of(const ffi::AnyBuffer& buffer) {
  const ffi::AnyBuffer::Dimensions dims = buffer.dimensions();
  atomo::LayerSpec layer;
  layer.shape = atomo::Shape(std::span(dims.begin(), dims.size()));
  switch (buffer.element_type()) {
    case ffi::F32:
      layer.dtype = atomo::DType::f32;
      break;
    case ffi::F16:
      layer.dtype = atomo::DType::f16;
      break;
    case ffi::BF16:
      layer.dtype = atomo::DType::bf16;
      break;
    default:
      throw atomo::Error("a tensor is neither float32 nor float16 nor bfloat16");
  }
  return layer;
}

/// The buffers of a call. \throws atomo::Error when XLA refuses one.
inline std::vector<ffi::AnyBuffer> buffers_of(const ffi::RemainingArgs& args) {
  std::vector<ffi::AnyBuffer> buffers;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer) throw atomo::Error(buffer.error().message());
    buffers.push_back(*buffer);
  }
  return buffers;
}
/// The same for results.
inline std::vector<ffi::AnyBuffer> buffers_of(const ffi::RemainingRets& results) {
  std::vector<ffi::AnyBuffer> buffers;
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (!buffer) throw atomo::Error(buffer.error().message());
    buffers.push_back(**buffer);
  }
  return buffers;
}

/// Views of the buffers, `View` being atomo::ConstTensorView or atomo::TensorView.
template <class View>
std::vector<View> views_of(std::span<const ffi::AnyBuffer> buffers, const Request& request) {
  std::vector<View> views;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    views.push_back({.data = buffers[i].untyped_data(),
                     .dtype = request.layers[i].dtype,
                     .shape = request.layers[i].shape,
                     .device = request.device});
  }
  return views;
}

/// What the buffers ask a coder for. \throws atomo::Error as layer_of, or without buffers.
inline Request request_of(std::string_view spec, bool model, std::string_view names,
                          std::span<const ffi::AnyBuffer> buffers,
                          atomo::Device device = atomo::Device::cpu, int ordinal = 0) {
  Request request{
      .spec = spec, .model = model, .names = names, .device = device, .ordinal = ordinal};
  for (const ffi::AnyBuffer& buffer : buffers) request.layers.push_back(layer_of(buffer));
  if (request.layers.empty()) throw atomo::Error("a call without tensors");
  return request;
}

/// The key of a message, from words in host memory. \throws atomo::Error naming a number that does
/// not fit.
inline atomo::Key key_of(std::span<const std::uint32_t, kKeyWords> words) {
  const auto narrow = [](const char* name, std::uint32_t value) {
    if (value > std::numeric_limits<std::uint16_t>::max())
      throw atomo::Error(std::string(name) + " is " + std::to_string(value) +
                         "; 0 to 65535 are accepted");
    return static_cast<std::uint16_t>(value);
  };
  return {.seed = (std::uint64_t{words[1]} << 32) | words[0],
          .step = words[2],
          .tensor = narrow("tensor", words[3]),
          .worker = narrow("worker", words[4]),
          .channel = narrow("channel", words[5])};
}

/// The messages in a payload of shape [bytes] or [messages, bytes], in order.
inline std::vector<atomo::ConstBytes> messages_of(const ffi::Buffer<ffi::U8>& payload) {
  const auto dims = payload.dimensions();
  if (dims.size() != 1 && dims.size() != 2)
    throw atomo::Error("a payload has the shape [bytes] or [messages, bytes]");
  const std::size_t count = dims.size() == 2 ? static_cast<std::size_t>(dims.front()) : 1;
  const std::size_t bytes = static_cast<std::size_t>(dims.back());
  const auto* data = static_cast<const std::byte*>(payload.untyped_data());
  std::vector<atomo::ConstBytes> messages;
  for (std::size_t i = 0; i < count; ++i) messages.emplace_back(data + i * bytes, bytes);
  return messages;
}

/// What all calls begin with.
template <class Binding>
auto bind_spec(Binding&& platform) {
  return std::move(platform)
      .template Attr<std::string_view>("spec")
      .template Attr<bool>("model")
      .template Attr<std::string_view>("names");
}
/// A binding of what the platform gives, with the rest of what the calls take: spec, whether it is
/// a model's, names of its layers, then key, layers, payload and length.
template <class Binding>
auto bind_encode(Binding&& platform) {
  return bind_spec(std::move(platform))
      .template Arg<KeyWords>()
      .RemainingArgs()
      .template Ret<ffi::BufferR1<ffi::U8>>()
      .template Ret<ffi::BufferR0<ffi::U32>>();
}
/// The same: payload, layers.
template <class Binding>
auto bind_decode(Binding&& platform) {
  return bind_spec(std::move(platform)).template Arg<ffi::Buffer<ffi::U8>>().RemainingRets();
}
/// The same: whether alpha is known when the program is compiled, and then what it is; payload,
/// alpha, what is added to, sums.
template <class Binding>
auto bind_decode_add(Binding&& platform) {
  return bind_spec(std::move(platform))
      .template Attr<bool>("known")
      .template Attr<float>("factor")
      .template Arg<ffi::Buffer<ffi::U8>>()
      .template Arg<ffi::BufferR0<ffi::F32>>()
      .RemainingArgs()
      .RemainingRets();
}

/// The handlers for CUDA devices, in a build that has them: encode, decode, decode_add.
std::array<XLA_FFI_Handler*, 3> cuda_handlers();

}  // namespace atomo_jax
