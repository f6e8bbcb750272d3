// SPDX-License-Identifier: Apache-2.0
/// Data-parallel training over NCCL, a thread a GPU, whose host never waits: every GPU ends with the
/// same mean of the gradients.
///
/// Gradients are two buckets. As back-propagation finishes one, a second stream takes it:
///
///   event            of the bucket's last gradient; the second stream waits for it, not the host
///   encode           on the GPU: payload, its length and its status stay there
///   ncclAllGather    of `wire_bytes()` bytes of each payload, a size that every rank knows
///   decode_add_all   of all payloads in rank order, so that every GPU has the same bits
///
/// `cap=` or a codec of fixed size bounds every message, so nothing of a step depends on what the
/// host would have to read: the second step is captured into a CUDA graph, and the others replay it.
/// What the kernels said of the data is copied to the host and looked at one step later. A codec
/// whose messages have no bound goes by their true lengths, which the host reads: one wait a bucket.
///
///   example_nccl_allgather [codec]     default: atomo:bits=0.5,cap=0.55

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <atomo/atomo.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

/// In the order in which back-propagation reaches them.
const std::vector<std::vector<atomo::LayerSpec>> kBuckets{
    {{"fc2.weight", {256, 512}}, {"fc2.bias", {256}}},
    {{"fc1.weight", {512, 784}}, {"fc1.bias", {512}}}};
constexpr std::uint32_t kSteps = 5;

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
struct FreeHost {
  void operator()(T* memory) const { static_cast<void>(cudaFreeHost(memory)); }
};
template <class T>
using DeviceArray = std::unique_ptr<T[], Free<T>>;
template <class T>
using PinnedArray = std::unique_ptr<T[], FreeHost<T>>;

/// `count` values on the current GPU, all zero.
template <class T>
DeviceArray<T> device_array(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)));
  check(cudaMemset(memory, 0, count * sizeof(T)));
  check(cudaDeviceSynchronize());  // the streams below do not wait for the default one
  return DeviceArray<T>(static_cast<T*>(memory));
}
/// `count` values of the host's that a stream may copy from and to, all zero.
template <class T>
PinnedArray<T> pinned_array(std::size_t count) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, count * sizeof(T)));
  std::fill_n(static_cast<std::byte*>(memory), count * sizeof(T), std::byte{0});
  return PinnedArray<T>(static_cast<T*>(memory));
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

float gradient_entry(int rank, std::uint32_t step, std::size_t i) {
  return std::sin(0.1F * static_cast<float>(i % 9973) + static_cast<float>(step)) *
         static_cast<float>(rank + 1);
}

/// Which GPU this is, of how many, and how they talk.
struct Group {
  int rank, ranks;
  ncclComm_t comm;
};

/// Gradients that travel together: a model of their own, and the memory of its calls.
class Bucket {
 public:
  /// \throws atomo::Error for a codec that cannot encode these layers.
  Bucket(const std::vector<atomo::LayerSpec>& layers, const atomo::Codec& codec,
         std::uint16_t number, const Group& group)
      : group_(group),
        number_(number),
        ranks_(static_cast<std::size_t>(group.ranks)),
        model_(layers, atomo::Policy(codec), {.device = atomo::Device::cuda}) {
    room_ = model_.wire_bytes().value_or(0) * ranks_;
    if (room_ > 0) payloads_ = device_array<std::byte>(room_);
    for (std::size_t at = 0; const auto& layer : layers) {
      inputs_.push_back({gradient.get() + at, atomo::DType::f32, layer.shape, atomo::Device::cuda});
      outputs_.push_back({mean.get() + at, atomo::DType::f32, layer.shape, atomo::Device::cuda});
      at += layer.shape.elements();
    }
  }
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;
  ~Bucket() { static_cast<void>(cudaEventDestroy(ready)); }

  /// Whether a step of it waits for nothing, and can be captured.
  [[nodiscard]] bool bounded() const { return model_.wire_bytes().has_value(); }

  /// Queues everything from the gradient to the mean. `step` is a word of the GPU's.
  void reduce(const std::uint32_t* step, cudaStream_t stream) {
    atomo::Context context{.stream = stream,
                           .workspace = {workspace_.get(), workspace_bytes_},
                           .status = statuses.get(),
                           .step = step};
    // Layers are numbered from 0 in each model: the channel keeps the buckets' draws apart.
    check(model_.encode(
        inputs_, {.seed = 1, .worker = static_cast<std::uint16_t>(group_.rank), .channel = number_},
        {payload_.get(), model_.max_encoded_bytes(), length_.get()}, context));
    const std::vector<atomo::ConstBytes> messages = bounded() ? gather(stream) : broadcast(stream);
    check(cudaMemsetAsync(mean.get(), 0, elements * sizeof(float), stream));
    context.status = statuses.get() + 1;
    check(model_.decode_add_all(messages, 1.0F / static_cast<float>(ranks_), outputs_, context));
  }

 private:
  /// What lies behind a shorter payload is sent along and not looked at.
  std::vector<atomo::ConstBytes> gather(cudaStream_t stream) {
    const std::size_t bytes = *model_.wire_bytes();
    check(ncclAllGather(payload_.get(), payloads_.get(), bytes, ncclUint8, group_.comm, stream));
    std::vector<atomo::ConstBytes> messages;
    for (std::size_t k = 0; k < ranks_; ++k)
      messages.emplace_back(payloads_.get() + k * bytes, bytes);
    return messages;
  }
  /// The host asks for the lengths; a broadcast a rank, in one group.
  std::vector<atomo::ConstBytes> broadcast(cudaStream_t stream) {
    check(ncclAllGather(length_.get(), lengths_.get(), 1, ncclUint64, group_.comm, stream));
    check(cudaMemcpyAsync(sent_.get(), lengths_.get(), ranks_ * sizeof(std::uint64_t),
                          cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    std::size_t end = 0;
    for (std::size_t k = 0; k < ranks_; ++k) end += sent_[k];
    if (room_ < end) payloads_ = device_array<std::byte>(room_ = end + end / 4);
    std::vector<atomo::ConstBytes> messages;
    check(ncclGroupStart());
    for (std::size_t k = 0, at = 0; k < ranks_; at += sent_[k++]) {
      check(ncclBroadcast(payload_.get(), payloads_.get() + at, sent_[k], ncclUint8,
                          static_cast<int>(k), group_.comm, stream));
      messages.emplace_back(payloads_.get() + at, sent_[k]);
    }
    check(ncclGroupEnd());
    return messages;
  }

  Group group_;
  std::uint16_t number_;
  std::size_t ranks_;
  atomo::Compressor model_;
  std::size_t workspace_bytes_ =
      std::max(model_.encode_workspace_bytes(), model_.decode_workspace_bytes());
  DeviceArray<std::byte> workspace_ = device_array<std::byte>(workspace_bytes_),
                         payload_ = device_array<std::byte>(model_.max_encoded_bytes()), payloads_;
  std::size_t room_ = 0;  // bytes of `payloads_`
  DeviceArray<std::uint64_t> length_ = device_array<std::uint64_t>(1),
                             lengths_ = device_array<std::uint64_t>(ranks_);
  PinnedArray<std::uint64_t> sent_ = pinned_array<std::uint64_t>(ranks_);
  std::vector<atomo::ConstTensorView> inputs_;
  std::vector<atomo::TensorView> outputs_;

 public:
  const std::size_t elements = model_.elements();
  const DeviceArray<float> gradient = device_array<float>(elements),
                           mean = device_array<float>(elements);
  const cudaEvent_t ready = make_event();
  const DeviceArray<atomo::Status> statuses = device_array<atomo::Status>(2);
};

/// What one GPU does.
class Trainer {
 public:
  Trainer(const atomo::Codec& codec, const Group& group) : rank_(group.rank) {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    check(cudaStreamCreateWithPriority(&compute_, cudaStreamNonBlocking, least));
    check(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, greatest));
    for (std::uint16_t b = 0; b < kBuckets.size(); ++b)
      buckets_.push_back(std::make_unique<Bucket>(kBuckets[b], codec, b, group));
    told_ = pinned_array<atomo::Status>(2 * buckets_.size());
    make_batches();
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer() {
    if (graph_ != nullptr) static_cast<void>(cudaGraphExecDestroy(graph_));
    static_cast<void>(cudaEventDestroy(done_));
    static_cast<void>(cudaStreamDestroy(side_));
    static_cast<void>(cudaStreamDestroy(compute_));
  }

  void step(std::uint32_t number) {
    load_batch(number);
    // The first step also loads the kernels, which a capture must not.
    if (number == 0 || !buckets_[0]->bounded()) {
      queue_step();
    } else {
      if (graph_ == nullptr) capture_step();
      check(cudaGraphLaunch(graph_, compute_));
    }
    look_at_statuses();
  }

  /// Waits. The means of all buckets.
  std::vector<float> finish() {
    check(cudaStreamSynchronize(compute_));
    look_at_statuses();
    std::vector<float> all;
    for (const auto& bucket : buckets_) {
      std::vector<float> mean(bucket->elements);
      check(cudaMemcpy(mean.data(), bucket->mean.get(), mean.size() * sizeof(float),
                       cudaMemcpyDeviceToHost));
      all.insert(all.end(), mean.begin(), mean.end());
    }
    return all;
  }

 private:
  /// Of all steps, on the GPU before the first.
  void make_batches() {
    std::vector<std::uint32_t> numbers(kSteps);
    for (std::uint32_t step = 0; step < kSteps; ++step) numbers[step] = step;
    check(cudaMemcpy(steps_.get(), numbers.data(), kSteps * sizeof(std::uint32_t),
                     cudaMemcpyHostToDevice));
    for (const auto& bucket : buckets_) {
      std::vector<float> all(kSteps * bucket->elements);
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i] = gradient_entry(rank_, static_cast<std::uint32_t>(i / bucket->elements),
                                i % bucket->elements);
      }
      found_.push_back(device_array<float>(bucket->elements));
      batches_.push_back(device_array<float>(all.size()));
      check(cudaMemcpy(batches_.back().get(), all.data(), all.size() * sizeof(float),
                       cudaMemcpyHostToDevice));
    }
    check(cudaDeviceSynchronize());
  }
  /// Stands for the forward pass: what back-propagation will find, and the step's number.
  void load_batch(std::uint32_t number) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const std::size_t elements = buckets_[b]->elements;
      check(cudaMemcpyAsync(found_[b].get(), batches_[b].get() + number * elements,
                            elements * sizeof(float), cudaMemcpyDeviceToDevice, compute_));
    }
    check(cudaMemcpyAsync(step_.get(), steps_.get() + number, sizeof(std::uint32_t),
                          cudaMemcpyDeviceToDevice, compute_));
  }
  /// Stands for the kernels that compute a bucket's gradients.
  void back_propagate(std::size_t b) {
    check(cudaMemcpyAsync(buckets_[b]->gradient.get(), found_[b].get(),
                          buckets_[b]->elements * sizeof(float), cudaMemcpyDeviceToDevice,
                          compute_));
  }
  void queue_step() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      back_propagate(b);
      check(cudaEventRecord(buckets_[b]->ready, compute_));
    }
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      check(cudaStreamWaitEvent(side_, buckets_[b]->ready, 0));
      buckets_[b]->reduce(step_.get(), side_);
      check(cudaMemcpyAsync(told_.get() + 2 * b, buckets_[b]->statuses.get(),
                            2 * sizeof(atomo::Status), cudaMemcpyDeviceToHost, side_));
    }
    check(cudaEventRecord(done_, side_));
    check(cudaStreamWaitEvent(compute_, done_, 0));
    // The optimiser's kernels would follow here, on `compute_`.
  }
  void capture_step() {
    cudaGraph_t graph = nullptr;
    // Other threads set up their GPUs meanwhile.
    check(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal));
    queue_step();
    check(cudaStreamEndCapture(compute_, &graph));
    check(cudaGraphInstantiate(&graph_, graph, 0));
    check(cudaGraphDestroy(graph));
  }
  /// Those of the last step that the GPU has finished, without waiting for the one under way.
  void look_at_statuses() {
    for (std::size_t i = 0; i < 2 * buckets_.size(); ++i)
      check(std::atomic_ref(told_[i]).load(std::memory_order_relaxed));
  }

  int rank_;
  cudaStream_t compute_ = nullptr, side_ = nullptr;
  const cudaEvent_t done_ = make_event();
  cudaGraphExec_t graph_ = nullptr;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<DeviceArray<float>> batches_, found_;
  PinnedArray<atomo::Status> told_;
  DeviceArray<std::uint32_t> steps_ = device_array<std::uint32_t>(kSteps),
                             step_ = device_array<std::uint32_t>(1);
};

std::vector<float> train(const atomo::Codec& codec, const Group& group) try {
  check(cudaSetDevice(group.rank));
  Trainer trainer(codec, group);
  for (std::uint32_t step = 0; step < kSteps; ++step) trainer.step(step);
  return trainer.finish();
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) try {
  const auto codec = atomo::Codec::parse(argc > 1 ? argv[1] : "atomo:bits=0.5,cap=0.55");
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(gpus));
  check(ncclCommInitAll(comms.data(), gpus, nullptr));
  std::vector<std::vector<float>> means(comms.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t k = 0; k < comms.size(); ++k)
      threads.emplace_back([&, k] {
        means[k] = train(codec, {static_cast<int>(k), gpus, comms[k]});
      });
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
