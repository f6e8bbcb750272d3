// SPDX-License-Identifier: Apache-2.0
/// \file
/// XLA's custom calls on the CPU, and the module `_atomo_jax` that hands them to JAX.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "jax_call.hpp"
#include "own_codecs.hpp"

namespace atomo_jax {

namespace {

namespace nb = nanobind;

/// Runs the parts of a call on XLA's own threads. The calling thread works too and takes whatever
/// no other has begun, so a call ends even when every other thread is busy.
class XlaExecutor final : public atomo::Executor {
 public:
  explicit XlaExecutor(ffi::ThreadPool& threads) : threads_(threads) {}
  void run(std::size_t count, void (*task)(void* state, std::size_t i),
           void* state) noexcept override {
    try {
      const auto job = std::make_shared<Job>(count, task, state);
      const auto free_threads =
          static_cast<std::size_t>(std::max<std::int64_t>(threads_.num_threads() - 1, 0));
      for (std::size_t i = 1; i < count && i <= free_threads; ++i)
        threads_.Schedule([job] { job->work(); });
      job->work();
      job->wait();
    } catch (...) {
      // No memory for a job: nothing has begun, so the calling thread does it all.
      for (std::size_t i = 0; i < count; ++i) task(state, i);
    }
  }

  [[nodiscard]] std::size_t threads() const noexcept override {
    return static_cast<std::size_t>(std::max<std::int64_t>(threads_.num_threads(), 1));
  }

 private:
  /// Outlives the call where a thread comes too late to find work.
  class Job {
   public:
    Job(std::size_t count, void (*task)(void* state, std::size_t i), void* state)
        : count_(count), task_(task), state_(state) {}
    void work() {
      for (std::size_t i = next_++; i < count_; i = next_++) {
        task_(state_, i);
        const std::lock_guard lock(mutex_);
        if (++done_ == count_) all_done_.notify_one();
      }
    }
    void wait() {
      std::unique_lock lock(mutex_);
      all_done_.wait(lock, [this] { return done_ == count_; });
    }

   private:
    const std::size_t count_;
    void (*const task_)(void* state, std::size_t i);
    void* const state_;
    std::atomic<std::size_t> next_ = 0;
    std::mutex mutex_;
    std::condition_variable all_done_;
    std::size_t done_ = 0;
  };

  ffi::ThreadPool& threads_;
};

atomo::Context context_of(Coder& coder, atomo::Executor& executor) {
  coder.workspace.resize(std::max(coder.workspace.size(), coder.workspace_bytes));
  return {.workspace = coder.workspace, .executor = &executor};
}

ffi::Error encode(ffi::ThreadPool threads, std::string_view spec, bool model,
                  std::string_view names, KeyWords key_words, ffi::RemainingArgs layers,
                  ffi::Result<ffi::BufferR1<ffi::U8>> payload,
                  ffi::Result<ffi::BufferR0<ffi::U32>> length) {
  constexpr std::string_view kWhat = "atomo.jax.encode";
  return guarded(kWhat, [&] {
    if (key_words.element_count() != 2 * kKeyWords)
      return error_of(kWhat, "a key has 6 words, twice");
    const atomo::Key key =
        key_of(std::span<const std::uint32_t, kKeyWords>(key_words.typed_data(), kKeyWords));
    const auto buffers = buffers_of(layers);
    const Request request = request_of(spec, model, names, buffers);
    const CoderLease coder = take_coder(request);
    XlaExecutor executor(threads);
    auto* out = reinterpret_cast<std::byte*>(payload->typed_data());
    const std::size_t capacity = payload->element_count();
    const bool direct = capacity >= coder->max_encoded_bytes;
    if (!direct) coder->staging.resize(coder->max_encoded_bytes);
    std::byte* const message = direct ? out : coder->staging.data();
    std::uint64_t bytes = 0;
    const atomo::Status status = coder->encode(
        views_of<atomo::ConstTensorView>(buffers, request), key,
        {message, direct ? capacity : coder->staging.size(), &bytes}, context_of(*coder, executor));
    if (failed(status)) return error_of(kWhat, status);
    if (bytes > capacity) return capacity_error(kWhat, bytes, capacity);
    if (!direct) std::memcpy(out, message, bytes);
    std::memset(out + bytes, 0, capacity - bytes);
    *length->typed_data() = static_cast<std::uint32_t>(bytes);
    return ffi::Error::Success();
  });
}

ffi::Error decode(ffi::ThreadPool threads, std::string_view spec, bool model,
                  std::string_view names, ffi::Buffer<ffi::U8> payload, ffi::RemainingRets layers) {
  constexpr std::string_view kWhat = "atomo.jax.decode";
  return guarded(kWhat, [&] {
    const auto buffers = buffers_of(layers);
    const Request request = request_of(spec, model, names, buffers);
    const CoderLease coder = take_coder(request);
    XlaExecutor executor(threads);
    return error_of(kWhat, coder->decode(messages_of(payload).at(0),
                                         views_of<atomo::TensorView>(buffers, request),
                                         context_of(*coder, executor)));
  });
}

ffi::Error decode_add(ffi::ThreadPool threads, std::string_view spec, bool model,
                      std::string_view names, bool, float, ffi::Buffer<ffi::U8> payload,
                      ffi::BufferR0<ffi::F32> alpha, ffi::RemainingArgs from,
                      ffi::RemainingRets layers) {
  constexpr std::string_view kWhat = "atomo.jax.decode_add";
  return guarded(kWhat, [&] {
    const auto sources = buffers_of(from);
    const auto buffers = buffers_of(layers);
    const Request request = request_of(spec, model, names, buffers);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      void* const out = buffers[i].untyped_data();
      const void* const in = sources.at(i).untyped_data();
      if (in != out && buffers[i].size_bytes() > 0) std::memcpy(out, in, buffers[i].size_bytes());
    }
    const CoderLease coder = take_coder(request);
    XlaExecutor executor(threads);
    return error_of(kWhat, coder->decode_add_all(messages_of(payload), *alpha.typed_data(),
                                                 views_of<atomo::TensorView>(buffers, request),
                                                 context_of(*coder, executor)));
  });
}

/// What XLA gives a handler on the CPU.
auto on_cpu() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>(); }
XLA_FFI_DEFINE_HANDLER(kEncode, encode, bind_encode(on_cpu()));
XLA_FFI_DEFINE_HANDLER(kDecode, decode, bind_decode(on_cpu()));
XLA_FFI_DEFINE_HANDLER(kDecodeAdd, decode_add, bind_decode_add(on_cpu()));

atomo::DType dtype_of(std::string_view name) {
  if (name == "float32") return atomo::DType::f32;
  if (name == "float16") return atomo::DType::f16;
  if (name == "bfloat16") return atomo::DType::bf16;
  throw atomo::Error("dtype '" + std::string(name) +
                     "' is not supported: float32, float16 and bfloat16 are");
}

/// Bytes that suffice for every message of these layers (dtype, shape).
std::size_t capacity_of(
    const std::string& spec, bool model, const std::string& names,
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& layers) {
  Request request{.spec = spec, .model = model, .names = names};
  for (const auto& [dtype, dims] : layers)
    request.layers.push_back({{}, atomo::Shape(std::span(dims)), dtype_of(dtype)});
  if (request.layers.empty()) throw atomo::Error("there is no tensor to encode");
  return take_coder(request)->longest_message;
}

nb::dict by_name(const std::array<XLA_FFI_Handler*, 3>& handlers) {
  nb::dict calls;
  calls["atomo_encode"] = nb::capsule(reinterpret_cast<void*>(handlers[0]));
  calls["atomo_decode"] = nb::capsule(reinterpret_cast<void*>(handlers[1]));
  calls["atomo_decode_add"] = nb::capsule(reinterpret_cast<void*>(handlers[2]));
  return calls;
}

nb::dict handlers() {
  nb::dict platforms;
  platforms["cpu"] = by_name({kEncode, kDecode, kDecodeAdd});
#ifdef ATOMO_PYTHON_CUDA
  platforms["CUDA"] = by_name(cuda_handlers());
#endif
  return platforms;
}

}  // namespace
}  // namespace atomo_jax

NB_MODULE(_atomo_jax, m) {
  atomo::python::bind_own_codecs(m, atomo_jax::forget_coders);
  m.doc() = "XLA custom calls of atomo: what atomo.jax registers.";
  m.def("handlers", &atomo_jax::handlers, "Capsules by platform and by name of the custom call.");
  m.def("capacity", &atomo_jax::capacity_of, nanobind::arg("spec"), nanobind::arg("model"),
        nanobind::arg("names"), nanobind::arg("layers"),
        "Bytes that suffice for every message of the layers, a list of (dtype, shape).");
}
