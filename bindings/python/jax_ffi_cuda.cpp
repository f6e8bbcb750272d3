// SPDX-License-Identifier: Apache-2.0
/// \file
/// XLA's custom calls on a CUDA device. Each waits for its stream: a key lies in device memory, and
/// only the host can turn a status into an error of XLA.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <optional>

#include "jax_call.hpp"

namespace atomo_jax {
namespace {

/// Where a call leaves what the host reads when the stream is done.
struct Outcome {
  std::uint64_t bytes = 0;
  atomo::Status status = atomo::Status::ok;
};

/// \throws atomo::Error with the runtime's message.
void check(cudaError_t result) {
  if (result != cudaSuccess) throw atomo::Error(cudaGetErrorString(result));
}

/// Device memory until the call is over. \throws atomo::Error when there is none left.
std::byte* allocate(ffi::ScratchAllocator& scratch, std::size_t bytes) {
  const std::optional<void*> memory = scratch.Allocate(std::max<std::size_t>(bytes, 1), 256);
  if (!memory)
    throw atomo::Error("no device memory for a workspace of " + std::to_string(bytes) + " bytes");
  return static_cast<std::byte*>(*memory);
}

/// A call's place on the device: its stream, a workspace, and words for its outcome.
class Call {
 public:
  Call(cudaStream_t stream, ffi::ScratchAllocator& scratch, const Coder& coder)
      : stream_(stream), outcome_(reinterpret_cast<Outcome*>(allocate(scratch, sizeof(Outcome)))) {
    check(cudaMemsetAsync(outcome_, 0, sizeof(Outcome), stream));
    context.stream = stream != nullptr ? stream : atomo::legacy_stream();
    context.workspace = {allocate(scratch, coder.workspace_bytes), coder.workspace_bytes};
    context.handles = coder.handles.get();
    context.status = &outcome_->status;
  }
  /// A device word.
  std::uint64_t* bytes() const { return &outcome_->bytes; }
  /// Waits for the stream. `queued` is what the host saw.
  Outcome wait(atomo::Status queued) const {
    Outcome outcome;
    check(cudaMemcpyAsync(&outcome, outcome_, sizeof(Outcome), cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    if (failed(queued)) outcome.status = queued;
    return outcome;
  }

  atomo::Context context;

 private:
  cudaStream_t stream_;
  Outcome* outcome_;
};

ffi::Error encode(cudaStream_t stream, std::int32_t ordinal, ffi::ScratchAllocator scratch,
                  std::string_view spec, bool model, std::string_view names, KeyWords key_words,
                  ffi::RemainingArgs layers, ffi::Result<ffi::BufferR1<ffi::U8>> payload,
                  ffi::Result<ffi::BufferR0<ffi::U32>> length) {
  constexpr std::string_view kWhat = "atomo.jax.encode";
  return guarded(kWhat, [&] {
    check(cudaSetDevice(ordinal));
    if (key_words.element_count() != kKeyWords) return error_of(kWhat, "a key has 6 words");
    std::array<std::uint32_t, kKeyWords> words{};
    check(cudaMemcpyAsync(words.data(), key_words.typed_data(), sizeof(words),
                          cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    const auto buffers = buffers_of(layers);
    const Request request = request_of(spec, model, names, buffers, atomo::Device::cuda, ordinal);
    const CoderLease coder = take_coder(request);
    const Call call(stream, scratch, *coder);
    auto* const out = reinterpret_cast<std::byte*>(payload->typed_data());
    const std::size_t capacity = payload->element_count();
    const bool direct = capacity >= coder->max_encoded_bytes;
    std::byte* const message = direct ? out : allocate(scratch, coder->max_encoded_bytes);
    check(cudaMemsetAsync(out, 0, capacity, stream));
    const Outcome outcome = call.wait(coder->encode(
        views_of<atomo::ConstTensorView>(buffers, request), key_of(words),
        {message, direct ? capacity : coder->max_encoded_bytes, call.bytes()}, call.context));
    if (failed(outcome.status)) return error_of(kWhat, outcome.status);
    if (outcome.bytes > capacity) return capacity_error(kWhat, outcome.bytes, capacity);
    if (!direct)
      check(cudaMemcpyAsync(out, message, outcome.bytes, cudaMemcpyDeviceToDevice, stream));
    // The low half of the device's word, on a machine that stores it first.
    check(cudaMemcpyAsync(length->typed_data(), call.bytes(), sizeof(std::uint32_t),
                          cudaMemcpyDeviceToDevice, stream));
    return ffi::Error::Success();
  });
}

ffi::Error decode(cudaStream_t stream, std::int32_t ordinal, ffi::ScratchAllocator scratch,
                  std::string_view spec, bool model, std::string_view names,
                  ffi::Buffer<ffi::U8> payload, ffi::RemainingRets layers) {
  constexpr std::string_view kWhat = "atomo.jax.decode";
  return guarded(kWhat, [&] {
    check(cudaSetDevice(ordinal));
    const auto buffers = buffers_of(layers);
    const Request request = request_of(spec, model, names, buffers, atomo::Device::cuda, ordinal);
    const CoderLease coder = take_coder(request);
    const Call call(stream, scratch, *coder);
    const atomo::Status queued = coder->decode(
        messages_of(payload).at(0), views_of<atomo::TensorView>(buffers, request), call.context);
    return error_of(kWhat, call.wait(queued).status);
  });
}

ffi::Error decode_add(cudaStream_t stream, std::int32_t ordinal, ffi::ScratchAllocator scratch,
                      std::string_view spec, bool model, std::string_view names,
                      ffi::Buffer<ffi::U8> payload, ffi::BufferR0<ffi::F32> alpha,
                      ffi::RemainingArgs from, ffi::RemainingRets layers) {
  constexpr std::string_view kWhat = "atomo.jax.decode_add";
  return guarded(kWhat, [&] {
    check(cudaSetDevice(ordinal));
    float factor = 0;
    check(cudaMemcpyAsync(&factor, alpha.typed_data(), sizeof(factor), cudaMemcpyDeviceToHost,
                          stream));
    check(cudaStreamSynchronize(stream));
    const auto sources = buffers_of(from);
    const auto buffers = buffers_of(layers);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      void* const out = buffers[i].untyped_data();
      const void* const in = sources.at(i).untyped_data();
      if (in != out)
        check(cudaMemcpyAsync(out, in, buffers[i].size_bytes(), cudaMemcpyDeviceToDevice, stream));
    }
    const Request request = request_of(spec, model, names, buffers, atomo::Device::cuda, ordinal);
    const CoderLease coder = take_coder(request);
    const auto views = views_of<atomo::TensorView>(buffers, request);
    // A call a message: a status word holds the last call's status alone.
    for (const atomo::ConstBytes message : messages_of(payload)) {
      const Call call(stream, scratch, *coder);
      const atomo::Status queued =
          coder->decode_add_all({&message, 1}, factor, views, call.context);
      const atomo::Status status = call.wait(queued).status;
      if (failed(status)) return error_of(kWhat, status);
    }
    return ffi::Error::Success();
  });
}

/// What XLA gives a handler on a device.
auto on_device() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Ctx<ffi::ScratchAllocator>();
}
XLA_FFI_DEFINE_HANDLER(kEncode, encode, bind_encode(on_device()));
XLA_FFI_DEFINE_HANDLER(kDecode, decode, bind_decode(on_device()));
XLA_FFI_DEFINE_HANDLER(kDecodeAdd, decode_add, bind_decode_add(on_device()));

}  // namespace

std::array<XLA_FFI_Handler*, 3> cuda_handlers() { return {kEncode, kDecode, kDecodeAdd}; }

}  // namespace atomo_jax
