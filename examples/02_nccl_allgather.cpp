// SPDX-License-Identifier: Apache-2.0
/// All-gather of compressed gradients over NCCL, a thread a GPU: every GPU ends with the same mean.
///
///   encode             on the GPU: payload, its length and its status stay there
///   ncclAllGather      of the lengths; the host reads them, the one time that it waits in a step
///   ncclAllGather      of the payloads, each padded to the longest
///   decode_add         of all payloads in rank order, so that every GPU has the same bits
///
/// A codec of fixed size (qsgd, sign, topk, ...) needs no lengths: a step of it never waits for the
/// GPU and can be captured into a CUDA graph.
///
///   example_nccl_allgather [codec]

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomo/atomo.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

const std::vector<atomo::LayerSpec> kLayers{{"fc.weight", {512, 2048}}, {"fc.bias", {2048}}};
constexpr std::uint32_t kSteps = 3;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void check(ncclResult_t result) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "NCCL: %s\n", ncclGetErrorString(result));
  std::exit(1);
}
void check(atomo::Status status) {
  if (!atomo::failed(status)) return;
  std::fprintf(stderr, "atomo: %s\n", std::string(atomo::describe(status)).c_str());
  std::exit(1);
}

template <class T>
struct Free {
  void operator()(T* memory) const { static_cast<void>(cudaFree(memory)); }
};
template <class T>
using DeviceArray = std::unique_ptr<T[], Free<T>>;

/// `count` values on the current GPU, all zero.
template <class T>
DeviceArray<T> device_array(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)));
  check(cudaMemset(memory, 0, count * sizeof(T)));
  check(cudaDeviceSynchronize());  // the streams below do not wait for the default one
  return DeviceArray<T>(static_cast<T*>(memory));
}

float gradient_entry(int rank, std::uint32_t step, std::size_t i) {
  return std::sin(0.1F * static_cast<float>(i % 9973) + static_cast<float>(step)) *
         static_cast<float>(rank + 1);
}

/// What one GPU does. Returns its mean after the last step.
std::vector<float> train(const atomo::Codec& codec, int rank, int ranks, ncclComm_t comm) {
  check(cudaSetDevice(rank));
  atomo::Compressor model(kLayers, atomo::Policy(codec), {.device = atomo::Device::cuda});
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t elements = model.elements(), capacity = model.max_encoded_bytes();
  const auto gradient = device_array<float>(elements), mean = device_array<float>(elements);
  const std::size_t workspace_bytes =
      std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes());
  const auto workspace = device_array<std::byte>(workspace_bytes);
  const auto payload = device_array<std::byte>(capacity);
  const auto length = device_array<std::uint64_t>(1), lengths = device_array<std::uint64_t>(count);
  const auto statuses = device_array<atomo::Status>(2);
  DeviceArray<std::byte> payloads;
  std::size_t room = 0;  // bytes of `payloads`
  std::vector<atomo::ConstTensorView> inputs;
  std::vector<atomo::TensorView> outputs;
  for (std::size_t at = 0; const auto& layer : kLayers) {
    inputs.push_back({gradient.get() + at, atomo::DType::f32, layer.shape, atomo::Device::cuda});
    outputs.push_back({mean.get() + at, atomo::DType::f32, layer.shape, atomo::Device::cuda});
    at += layer.shape.elements();
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  atomo::Context context{.stream = stream, .workspace = {workspace.get(), workspace_bytes}};
  std::vector<float> host(elements);
  std::vector<std::uint64_t> sent(count);

  for (std::uint32_t step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < elements; ++i) host[i] = gradient_entry(rank, step, i);
    check(cudaMemcpyAsync(gradient.get(), host.data(), elements * sizeof(float),
                          cudaMemcpyHostToDevice, stream));

    context.status = statuses.get();
    check(model.encode(inputs,
                       {.seed = 1, .step = step, .worker = static_cast<std::uint16_t>(rank)},
                       {payload.get(), capacity, length.get()}, context));

    // The longest payload: known, or to be asked for.
    std::size_t longest = capacity;
    if (!codec.traits().fixed_size) {
      check(ncclAllGather(length.get(), lengths.get(), 1, ncclUint64, comm, stream));
      check(cudaMemcpyAsync(sent.data(), lengths.get(), count * sizeof(std::uint64_t),
                            cudaMemcpyDeviceToHost, stream));
      check(cudaStreamSynchronize(stream));
      longest = static_cast<std::size_t>(*std::max_element(sent.begin(), sent.end()));
    }
    if (room < longest * count) {
      room = longest * count;
      payloads = device_array<std::byte>(room);
    }
    // What lies behind a shorter payload is sent along and not looked at.
    check(ncclAllGather(payload.get(), payloads.get(), longest, ncclUint8, comm, stream));

    std::vector<atomo::ConstBytes> messages;
    for (std::size_t k = 0; k < count; ++k)
      messages.emplace_back(payloads.get() + k * longest, longest);
    check(cudaMemsetAsync(mean.get(), 0, elements * sizeof(float), stream));
    context.status = statuses.get() + 1;
    check(model.decode_add_all(messages, 1.0F / static_cast<float>(ranks), outputs, context));
    // The optimiser's kernels would follow here, on the same stream.
  }

  atomo::Status told[2];
  check(cudaMemcpyAsync(told, statuses.get(), sizeof told, cudaMemcpyDeviceToHost, stream));
  check(cudaMemcpyAsync(host.data(), mean.get(), elements * sizeof(float), cudaMemcpyDeviceToHost,
                        stream));
  check(cudaStreamSynchronize(stream));
  for (const atomo::Status status : told) check(status);
  check(cudaStreamDestroy(stream));
  return host;
}

}  // namespace

int main(int argc, char** argv) try {
  const auto codec = atomo::Codec::parse(argc > 1 ? argv[1] : "atomo:bits=0.5");
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(gpus));
  check(ncclCommInitAll(comms.data(), gpus, nullptr));
  std::vector<std::vector<float>> means(comms.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t k = 0; k < comms.size(); ++k)
      threads.emplace_back(
          [&, k] { means[k] = train(codec, static_cast<int>(k), gpus, comms[k]); });
  }
  for (const ncclComm_t comm : comms) check(ncclCommDestroy(comm));
  for (const auto& mean : means) {
    if (mean != means[0]) {
      std::fprintf(stderr, "the GPUs' means differ\n");
      return 1;
    }
  }
  std::printf("%d GPUs, %s: the same mean on all of them\n", gpus, codec.to_string().c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
