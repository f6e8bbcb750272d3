// SPDX-License-Identifier: Apache-2.0
/// \file
/// `CudaModel` keeps tensors, messages and scratch memory on a GPU and works on one stream of its
/// own. Copies to and from the host go through 32 MiB of pinned memory, and two CUDA events around
/// a call give its time on the GPU. `require_cuda` tells a missing or old driver and a missing GPU
/// apart.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "atomo/cuda.hpp"
#include "common/workspace.hpp"
#include "device/device.hpp"
#include "terminal/failure.hpp"
#include "terminal/table.hpp"

namespace atomo::cli {
namespace {

constexpr std::size_t kPiece = std::size_t{32} << 20;  ///< bytes of pinned memory
constexpr std::size_t kAlignment = 256;                ///< of every tensor, in bytes

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw InputError(fmt::format("--device cuda: {}: {}", what, cudaGetErrorString(error)));
  }
}

/// Bytes on the device. None are taken for none.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    if (bytes > 0 && cudaMalloc(&memory, bytes) != cudaSuccess) {
      throw InputError(
          fmt::format("--device cuda: the GPU has no memory for {} more bytes; take --device cpu",
                      grouped(bytes)));
    }
    data_ = static_cast<std::byte*>(memory);
  }
  ~DeviceMemory() { static_cast<void>(cudaFree(data_)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] Bytes bytes() const noexcept { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

/// A stream of its own, two events around what is timed, and the pinned memory that copies between
/// host and device go through.
class Queue {
 public:
  Queue() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    check(cudaEventCreate(&begin_), "an event");
    check(cudaEventCreate(&end_), "an event");
    check(cudaMallocHost(&pinned_, kPiece), "pinned memory");
  }
  ~Queue() {
    static_cast<void>(cudaFreeHost(pinned_));
    static_cast<void>(cudaEventDestroy(end_));
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }

  /// Seconds on the device of what `work` queues.
  template <typename Work>
  double seconds_of(Work&& work) {
    check(cudaEventRecord(begin_, stream_), "an event");
    work();
    check(cudaEventRecord(end_, stream_), "an event");
    check(cudaEventSynchronize(end_), "waiting for the GPU");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "the time on the GPU");
    return static_cast<double>(milliseconds) * 1e-3;
  }
  void upload(std::byte* to, ConstBytes from) {
    for (std::size_t at = 0; at < from.size(); at += kPiece) {
      const std::size_t n = std::min(kPiece, from.size() - at);
      std::memcpy(pinned_, from.data() + at, n);
      copy(to + at, pinned_, n, cudaMemcpyHostToDevice);
    }
  }
  void download(Bytes to, const std::byte* from) {
    for (std::size_t at = 0; at < to.size(); at += kPiece) {
      const std::size_t n = std::min(kPiece, to.size() - at);
      copy(pinned_, from + at, n, cudaMemcpyDeviceToHost);
      std::memcpy(to.data() + at, pinned_, n);
    }
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "a copy");
    check(cudaStreamSynchronize(stream_), "waiting for the GPU");
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void* pinned_ = nullptr;
};

/// What the device tells of a call.
struct Told {
  std::uint64_t bytes = 0;
  Status status = Status::ok;
};

class CudaModel final : public DeviceModel {
 public:
  CudaModel(std::vector<LayerSpec> layers, Policy policy, bool names_on_wire)
      : model_(std::move(layers), std::move(policy),
               {.names_on_wire = names_on_wire, .device = Device::cuda}),
        tensor_bytes_(place()),
        tensors_(tensor_bytes_),
        workspace_(atomo::programs::workspace_bytes(model_)),
        told_(sizeof(Told)) {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const LayerSpec& layer = model_.layers()[i];
      std::byte* const at = tensors_.data() + places_[i];
      inputs_.push_back({at, layer.dtype, layer.shape, Device::cuda});
      outputs_.push_back({at, layer.dtype, layer.shape, Device::cuda});
    }
  }

  void upload(const std::vector<Tensor>& tensors) override {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      queue_.upload(tensors_.data() + places_[i], {tensors[i].data.get(), tensors[i].bytes()});
    }
  }
  void download(std::vector<Tensor>& tensors) override {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      queue_.download({tensors[i].data.get(), tensors[i].bytes()}, tensors_.data() + places_[i]);
    }
  }

  DeviceRun encode(const Key& key) override {
    if (!message_) {
      message_.emplace(model_.max_encoded_bytes());
      if (needs_handles()) {
        handles_ = make_handles();
      }
    }
    auto* const bytes = reinterpret_cast<std::uint64_t*>(told_.data() + offsetof(Told, bytes));
    return run([&] {
      return model_.encode(inputs_, key, {message_->data(), message_->bytes().size(), bytes},
                           context());
    });
  }
  Buffer download_message(std::uint64_t bytes) override {
    Buffer buffer(static_cast<std::size_t>(bytes));
    queue_.download(buffer.span(), message_->data());
    return buffer;
  }
  ConstBytes message(std::uint64_t bytes) const override {
    return {message_->data(), static_cast<std::size_t>(bytes)};
  }

  DeviceRun decode_from_host(ConstBytes message) override {
    const DeviceMemory copy(message.size());
    queue_.upload(copy.data(), message);
    return decode(copy.bytes());
  }
  DeviceRun decode(ConstBytes message) override {
    return run([&] { return model_.decode(message, outputs_, context()); });
  }

  double copy() override {
    if (!copies_) {
      copies_.emplace(tensor_bytes_);
    }
    return queue_.seconds_of([&] {
      for (const ConstTensorView& x : inputs_) {
        const std::byte* const from = static_cast<const std::byte*>(x.data);
        check(cudaMemcpyAsync(copies_->data() + (from - tensors_.data()), from,
                              x.shape.elements() * size_of(x.dtype), cudaMemcpyDeviceToDevice,
                              queue_.stream()),
              "a copy on the GPU");
      }
    });
  }

 private:
  /// Finds the tensors' places and returns the bytes of all.
  std::size_t place() {
    std::size_t end = 0;
    for (const LayerSpec& layer : model_.layers()) {
      places_.push_back(end);
      end += layer.shape.elements() * size_of(layer.dtype);
      end += (kAlignment - end % kAlignment) % kAlignment;
    }
    return std::max(end, kAlignment);  // tensors without elements have an address too
  }

  /// Codecs that wait go through other libraries.
  [[nodiscard]] bool needs_handles() const {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (model_.codec(i).traits().synchronises) {
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] Context context() const {
    return {.stream = queue_.stream(),
            .workspace = workspace_.bytes(),
            .handles = handles_.get(),
            .status = reinterpret_cast<Status*>(told_.data() + offsetof(Told, status))};
  }

  /// `call` returns what the host can see of a call; the rest is told by the device.
  template <typename Call>
  DeviceRun run(Call&& call) {
    Told told;
    queue_.upload(told_.data(), {reinterpret_cast<const std::byte*>(&told), sizeof told});
    DeviceRun result;
    result.seconds = queue_.seconds_of([&] { result.status = call(); });
    check(cudaGetLastError(), "a kernel");
    if (failed(result.status)) {
      return result;
    }
    queue_.download({reinterpret_cast<std::byte*>(&told), sizeof told}, told_.data());
    result.status = std::max(result.status, told.status);
    result.bytes = told.bytes;
    return result;
  }

  Compressor model_;
  std::vector<std::size_t> places_;  ///< of each tensor, in bytes
  std::size_t tensor_bytes_;
  Queue queue_;
  DeviceMemory tensors_, workspace_, told_;
  std::optional<DeviceMemory> message_, copies_;
  HandlesPtr handles_;  ///< of the encoder, where it needs any
  std::vector<ConstTensorView> inputs_;
  std::vector<TensorView> outputs_;
};

}  // namespace

void require_cuda() {
  int runtime = 0, devices = 0;
  check(cudaRuntimeGetVersion(&runtime), "the CUDA runtime");
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaErrorInsufficientDriver) {
    throw InputError(fmt::format(
        "--device cuda: there is no NVIDIA driver, or one too old for CUDA {}.{} (nvidia-smi shows "
        "it); install one or take --device cpu",
        runtime / 1000, runtime % 1000 / 10));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && devices == 0)) {
    throw InputError(
        "--device cuda: no GPU is visible (nvidia-smi and CUDA_VISIBLE_DEVICES tell why); take "
        "--device cpu");
  }
  check(error, "the GPUs of this machine");
}

std::unique_ptr<DeviceModel> make_device_model(std::vector<LayerSpec> layers, Policy policy,
                                               bool names_on_wire) {
  return std::make_unique<CudaModel>(std::move(layers), std::move(policy), names_on_wire);
}

}  // namespace atomo::cli
