// SPDX-License-Identifier: Apache-2.0
/// \file
/// XLA's custom calls on a CUDA device. They queue their work on XLA's stream and wait for nothing:
/// the kernels read the key where XLA has it, and what they say of the data goes to pinned memory,
/// which a later call of the same coder looks at.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "jax_call.hpp"

namespace atomo_jax {
namespace {

/// What a message's kernels tell.
struct Outcome {
  std::uint64_t bytes = 0;
  atomo::Status status = atomo::Status::ok;
};

/// \throws atomo::Error with the runtime's message.
void check(cudaError_t result) {
  if (result != cudaSuccess) throw atomo::Error(cudaGetErrorString(result));
}

/// Device memory until the call is over, and then until its stream has come so far. \throws
/// atomo::Error when there is none left.
std::byte* allocate(ffi::ScratchAllocator& scratch, std::size_t bytes) {
  constexpr std::size_t kAlignment = 16;  // XLA refuses more; its allocator gives 256
  const std::optional<void*> memory = scratch.Allocate(std::max<std::size_t>(bytes, 1), kAlignment);
  if (!memory)
    throw atomo::Error("no device memory for a workspace of " + std::to_string(bytes) + " bytes");
  return static_cast<std::byte*>(*memory);
}

/// What the calls of one coder leave for its later ones.
class Notes {
 public:
  Notes() = default;
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;
  /// Waits for the last call.
  ~Notes() {
    for (const Note& note : notes_) {
      if (note.done == nullptr) continue;
      static_cast<void>(cudaEventSynchronize(note.done));
      static_cast<void>(cudaEventDestroy(note.done));
    }
    static_cast<void>(cudaFreeHost(memory_));
  }
  /// What earlier calls came to, where the device has come so far; else success. It is waited for where it is
  /// `kBehind` calls behind, so that no outcome goes unseen.
  ffi::Error look(std::string_view what) {
    while (seen_ < told_) {
      const Note& note = notes_[seen_ % kBehind];
      if (cudaEventQuery(note.done) != cudaSuccess) {
        if (told_ - seen_ < kBehind) return ffi::Error::Success();
        check(cudaEventSynchronize(note.done));
      }
      ++seen_;
      for (std::size_t k = 0; k < note.count; ++k) {
        if (failed(note.outcomes[k].status)) return error_of(what, note.outcomes[k].status);
        if (note.outcomes[k].bytes > note.capacity)
          return capacity_error(what, note.outcomes[k].bytes, note.capacity);
      }
    }
    return ffi::Error::Success();
  }
  /// Behind `look`, queues what it will see; messages of more than `capacity` bytes are an error.
  void tell(const Outcome* outcomes, std::size_t count, std::size_t capacity, cudaStream_t stream) {
    Note& note = notes_[told_ % kBehind];
    check(cudaMemcpyAsync(note.outcomes, outcomes, count * sizeof(Outcome), cudaMemcpyDeviceToHost,
                          stream));
    check(cudaEventRecord(note.done, stream));
    note.count = count;
    note.capacity = capacity;
    ++told_;
  }
  /// Before a call on `stream`: a coder's calls follow one another, whatever their streams. Makes
  /// events once, and room for so many outcomes where there is less.
  void begin(std::size_t count, cudaStream_t stream) {
    for (Note& note : notes_) {
      if (note.done == nullptr) check(cudaEventCreateWithFlags(&note.done, cudaEventDisableTiming));
    }
    if (told_ > 0) check(cudaStreamWaitEvent(stream, notes_[(told_ - 1) % kBehind].done, 0));
    if (count <= room_) return;
    if (told_ > 0) check(cudaEventSynchronize(notes_[(told_ - 1) % kBehind].done));
    void* memory = nullptr;
    check(cudaMallocHost(&memory, kBehind * count * sizeof(Outcome)));
    for (std::size_t k = 0; k < kBehind; ++k) {
      Outcome* const outcomes = static_cast<Outcome*>(memory) + k * count;
      std::copy_n(notes_[k].outcomes, notes_[k].count, outcomes);
      notes_[k].outcomes = outcomes;
    }
    check(cudaFreeHost(memory_));
    memory_ = memory;
    room_ = count;
  }

 private:
  static constexpr std::size_t kBehind = 4;
  struct Note {
    Outcome* outcomes = nullptr;  // pinned, in `memory_`
    cudaEvent_t done = nullptr;
    std::size_t count = 0, capacity = 0;
  };
  std::array<Note, kBehind> notes_;
  void* memory_ = nullptr;
  std::size_t room_ = 0, told_ = 0, seen_ = 0;  // calls that told, and those of them that were seen
};

/// Those of a coder, which is leased to one call at a time and has none from another.
Notes& notes_of(Coder& coder) {
  if (!coder.notes) coder.notes = std::make_shared<Notes>();
  return *static_cast<Notes*>(coder.notes.get());
}

/// A call's place on the device: its stream, a workspace, and words for the outcome of each message.
class Call {
 public:
  Call(cudaStream_t stream, ffi::ScratchAllocator& scratch, Coder& coder, std::size_t messages)
      : notes(notes_of(coder)), stream_(stream), messages_(messages) {
    notes.begin(messages, stream);
    outcomes_ = reinterpret_cast<Outcome*>(allocate(scratch, messages * sizeof(Outcome)));
    check(cudaMemsetAsync(outcomes_, 0, messages * sizeof(Outcome), stream));
    context_.stream = stream != nullptr ? stream : atomo::legacy_stream();
    context_.workspace = {allocate(scratch, coder.workspace_bytes), coder.workspace_bytes};
    context_.handles = coder.handles.get();
  }
  /// Of the call on message k.
  [[nodiscard]] atomo::Context context(std::size_t k = 0) const {
    atomo::Context context = context_;
    context.status = &outcomes_[k].status;
    return context;
  }
  /// A device word.
  [[nodiscard]] std::uint64_t* bytes() const { return &outcomes_[0].bytes; }
  void tell(std::size_t capacity) { notes.tell(outcomes_, messages_, capacity, stream_); }

  Notes& notes;

 private:
  cudaStream_t stream_;
  std::size_t messages_;
  Outcome* outcomes_ = nullptr;
  atomo::Context context_;
};

constexpr std::size_t kAnyLength = std::numeric_limits<std::size_t>::max();

ffi::Error encode(cudaStream_t stream, std::int32_t ordinal, ffi::ScratchAllocator scratch,
                  std::string_view spec, bool model, std::string_view names, KeyWords key_words,
                  ffi::RemainingArgs layers, ffi::Result<ffi::BufferR1<ffi::U8>> payload,
                  ffi::Result<ffi::BufferR0<ffi::U32>> length) {
  constexpr std::string_view kWhat = "atomo.jax.encode";
  return guarded(kWhat, [&] {
    check(cudaSetDevice(ordinal));
    if (key_words.element_count() != 2 * kKeyWords)
      return error_of(kWhat, "a key has 6 words, twice");
    const auto buffers = buffers_of(layers);
    const Request request = request_of(spec, model, names, buffers, atomo::Device::cuda, ordinal);
    const CoderLease coder = take_coder(request);
    Call call(stream, scratch, *coder, 1);
    if (ffi::Error earlier = call.notes.look(kWhat); earlier.failure()) return earlier;
    auto* const out = reinterpret_cast<std::byte*>(payload->typed_data());
    const std::size_t capacity = payload->element_count();
    const bool direct = capacity >= coder->max_encoded_bytes;
    const std::size_t room = direct ? capacity : coder->max_encoded_bytes;
    std::byte* const message = direct ? out : allocate(scratch, room);
    check(cudaMemsetAsync(message, 0, room, stream));
    atomo::Context context = call.context();
    context.key = reinterpret_cast<const atomo::Key*>(key_words.typed_data() + kKeyWords);
    const atomo::Status queued = coder->encode(views_of<atomo::ConstTensorView>(buffers, request),
                                               {}, {message, room, call.bytes()}, context);
    if (failed(queued)) return error_of(kWhat, queued);
    if (!direct) check(cudaMemcpyAsync(out, message, capacity, cudaMemcpyDeviceToDevice, stream));
    // The low half of the device's word, on a machine that stores it first.
    check(cudaMemcpyAsync(length->typed_data(), call.bytes(), sizeof(std::uint32_t),
                          cudaMemcpyDeviceToDevice, stream));
    call.tell(capacity);
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
    Call call(stream, scratch, *coder, 1);
    if (ffi::Error earlier = call.notes.look(kWhat); earlier.failure()) return earlier;
    const atomo::Status queued = coder->decode(
        messages_of(payload).at(0), views_of<atomo::TensorView>(buffers, request), call.context());
    call.tell(kAnyLength);
    return error_of(kWhat, queued);
  });
}

/// What messages are multiplied with: known when the program was compiled, or asked of the device,
/// which is waited for.
float factor_of(bool known, float factor, ffi::BufferR0<ffi::F32> alpha, cudaStream_t stream) {
  if (known) return factor;
  check(
      cudaMemcpyAsync(&factor, alpha.typed_data(), sizeof(factor), cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  return factor;
}

ffi::Error decode_add(cudaStream_t stream, std::int32_t ordinal, ffi::ScratchAllocator scratch,
                      std::string_view spec, bool model, std::string_view names, bool known,
                      float factor, ffi::Buffer<ffi::U8> payload, ffi::BufferR0<ffi::F32> alpha,
                      ffi::RemainingArgs from, ffi::RemainingRets layers) {
  constexpr std::string_view kWhat = "atomo.jax.decode_add";
  return guarded(kWhat, [&] {
    check(cudaSetDevice(ordinal));
    factor = factor_of(known, factor, alpha, stream);
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
    const auto messages = messages_of(payload);
    Call call(stream, scratch, *coder, messages.size());
    if (ffi::Error earlier = call.notes.look(kWhat); earlier.failure()) return earlier;
    atomo::Status queued = atomo::Status::ok;
    if (model) {  // in one pass, with one status for all
      queued = coder->decode_add_all(messages, factor, views, call.context());
    } else {
      for (std::size_t k = 0; k < messages.size() && !failed(queued); ++k)
        queued |= coder->decode_add_all({&messages[k], 1}, factor, views, call.context(k));
    }
    call.tell(kAnyLength);
    return error_of(kWhat, queued);
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
