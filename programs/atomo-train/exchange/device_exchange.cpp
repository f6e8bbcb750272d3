// SPDX-License-Identifier: Apache-2.0
/// \file
/// Gradients and payloads on a CUDA device.
///
///   default stream     work stream                          copy stream
///   --------------     -----------                          -----------
///   gradients      ->  encode, length and payload to host
///                                  (MPI)
///                      decode_add payload k             <-  payload k to the device
///                      decode_add payload k + 1         <-  payload k + 1, while k is decoded
///                      sum to host
///
/// Two payloads are on the device at a time. With a CUDA-aware MPI all are, none is copied, and one call
/// adds them; of payloads that vote all are too.
/// Lossless stages are put behind a payload on the host, and undone there.

#include <algorithm>
#include <array>
#include <atomo/container.hpp>
#include <atomo/cuda.hpp>
#include <atomo/own_codec.hpp>
#include <cstdlib>
#include <stdexcept>

#include "common/workspace.hpp"
#include "exchange/device_memory.hpp"
#include "exchange/exchange.hpp"

namespace train {
namespace {

using device::check;
using device::copy;
using device::Event;
using device::Memory;
using device::StreamOwner;

class DeviceExchange final : public Exchange {
 public:
  DeviceExchange(atomo::Compressor& compressor, const atomo::Policy& policy, std::size_t workers,
                 bool cuda_aware_mpi, bool votes)
      : compressor_(compressor),
        codecs_(codecs_of(compressor, policy)),
        lossless_(has_lossless(codecs_)),
        workers_(workers),
        aware_(cuda_aware_mpi && !lossless_),
        votes_(votes),
        sum_bytes_(compressor.elements() * sizeof(float)),
        own_(false, sum_bytes_),
        sum_(false, sum_bytes_),
        sum_on_host_(true, sum_bytes_),
        payload_(false, compressor.max_encoded_bytes()),
        workspace_(false, atomo::programs::workspace_bytes(compressor)),
        told_(false, kWord + workers * sizeof(atomo::Status)),
        told_on_host_(true, told_.bytes().size()),
        received_(!aware_) {
    std::size_t at = 0;
    for (const auto& layer : compressor.layers()) {
      own_views_.push_back(
          {own_.as<float>() + at, atomo::DType::f32, layer.shape, atomo::Device::cuda});
      sum_views_.push_back(
          {sum_.as<float>() + at, atomo::DType::f32, layer.shape, atomo::Device::cuda});
      offsets_.push_back(at);
      at += layer.shape.elements();
    }
    for (std::size_t i = 0; i < offsets_.size() && !handles_; ++i) {
      // Codecs that wait go through other libraries.
      if (compressor.codec(i).traits().synchronises) handles_ = atomo::make_handles();
    }
  }

  void begin(const atomo::Key& key, bool) override { key_ = key; }

  void put(std::size_t layer, std::span<const float> values) override {
    // In torch's own stream: torch may give a gradient's memory to its next kernel.
    copy(own_.as<float>() + offsets_[layer], values.data(), values.size_bytes(), cudaMemcpyDefault,
         cudaStreamLegacy);
  }

  Encoded encode() override {
    gradients_.record(cudaStreamLegacy);
    gradients_.hold(work_.get());
    check(cudaMemsetAsync(told_.data(), 0, told_.bytes().size(), work_.get()), "clearing words");
    const auto status = compressor_.encode(
        own_views_, key_, {payload_.data(), payload_.bytes().size(), told_.as<std::uint64_t>()},
        context(statuses()));
    if (atomo::failed(status)) return {.status = status};
    hear();
    bytes_ = *told_on_host_.as<std::uint64_t>();
    plain_bytes_ = bytes_;
    if (lossless_ && !atomo::failed(heard()[0])) {
      if (const auto s = pack(); atomo::failed(s)) return {.status = s};
    }
    return {.status = heard()[0], .bytes = bytes_};
  }

  void decode_own(std::span<float> out) override {
    check(cudaMemsetAsync(told_.data(), 0, told_.bytes().size(), work_.get()), "clearing words");
    // Where the sum will be: it begins with zeros.
    auto status = compressor_.decode(atomo::ConstBytes(payload_.bytes()).first(plain_bytes_),
                                     sum_views_, context(statuses()));
    copy(sum_on_host_.data(), sum_.data(), sum_bytes_, cudaMemcpyDeviceToHost, work_.get());
    hear();
    status |= heard()[0];
    if (atomo::failed(status))
      throw std::runtime_error("cannot decode what was encoded: " + atomo::explain(status));
    std::ranges::copy(sum(), out.begin());
  }

  void corrupt() override {
    if (lossless_) {
      payload_on_host_.data()[bytes_ / 2] ^= std::byte{1};
      return;
    }
    std::byte* const at = payload_.data() + bytes_ / 2;
    std::byte byte{};
    copy(&byte, at, 1, cudaMemcpyDeviceToHost, work_.get());
    work_.wait();
    byte ^= std::byte{1};
    copy(at, &byte, 1, cudaMemcpyHostToDevice, work_.get());
    work_.wait();
  }

  atomo::ConstBytes outgoing(std::size_t longest) override {
    if (lossless_) {
      std::fill(payload_on_host_.data() + bytes_, payload_on_host_.data() + longest, std::byte{});
      return {payload_on_host_.data(), longest};
    }
    check(cudaMemsetAsync(payload_.data() + bytes_, 0, longest - bytes_, work_.get()),
          "padding the payload");
    if (!aware_) {
      payload_on_host_.reserve(longest);
      copy(payload_on_host_.data(), payload_.data(), longest, cudaMemcpyDeviceToHost, work_.get());
    }
    work_.wait();
    return {(aware_ ? payload_ : payload_on_host_).data(), longest};
  }

  atomo::Bytes incoming(std::size_t longest) override {
    longest_ = longest;
    received_.reserve(longest * workers_);
    return received_.bytes().first(longest * workers_);
  }

  std::vector<atomo::Status> add_all(std::span<const std::uint64_t> bytes) override {
    const auto work = work_.get();
    check(cudaMemsetAsync(sum_.data(), 0, sum_bytes_, work), "clearing the sum");
    check(cudaMemsetAsync(told_.data(), 0, told_.bytes().size(), work), "clearing words");
    std::vector<atomo::Status> seen;  // by the host
    if ((aware_ && !lossless_) || votes_) {
      std::vector<atomo::ConstBytes> messages;
      for (std::size_t k = 0; k < workers_; ++k)
        messages.emplace_back(received_.data() + k * longest_, bytes[k]);
      if (!aware_) messages = all_on_device(messages);
      auto with_statuses = context(nullptr);
      with_statuses.statuses = statuses();
      seen.assign(workers_,
                  votes_ ? compressor_.vote(messages, sum_views_, with_statuses)
                         : compressor_.decode_add_all(messages, 1.0F / static_cast<float>(workers_),
                                                      sum_views_, with_statuses));
    }
    for (std::size_t k = seen.size(); k < workers_; ++k) {
      atomo::ConstBytes message(received_.data() + k * longest_, bytes[k]);
      if (lossless_) {
        if (const auto s = unpack(slots_[k % 2], message); atomo::failed(s)) {
          seen.push_back(s);
          continue;
        }
      }
      if (!aware_) message = on_device(slots_[k % 2], message);
      seen.push_back(compressor_.decode_add(message, 1.0F / static_cast<float>(workers_),
                                            sum_views_, context(statuses() + k)));
      slots_[k % 2].free.record(work);
    }
    copy(sum_on_host_.data(), sum_.data(), sum_bytes_, cudaMemcpyDeviceToHost, work);
    hear();
    for (std::size_t k = 0; k < workers_; ++k) seen[k] |= heard()[k];
    return seen;
  }

  std::span<float> sum() override { return {sum_on_host_.as<float>(), sum_bytes_ / sizeof(float)}; }

 private:
  /// Before the statuses: the payload's length.
  static constexpr std::size_t kWord = sizeof(std::uint64_t);

  /// Where one of two payloads waits for its turn.
  struct Slot {
    Memory memory{false};
    Memory plain{true};  ///< the payload without lossless stages
    Event filled, free;
  };

  static std::vector<atomo::Codec> codecs_of(const atomo::Compressor& compressor,
                                             const atomo::Policy& policy) {
    std::vector<atomo::Codec> codecs;
    for (const auto& layer : compressor.layers()) codecs.push_back(policy.codec_for(layer.name));
    return codecs;
  }
  static bool has_lossless(const std::vector<atomo::Codec>& codecs) {
    return std::any_of(codecs.begin(), codecs.end(),
                       [](const auto& codec) { return codec.without_lossless() != codec; });
  }

  /// The payload behind its lossless stages, on the host.
  atomo::Status pack() {
    plain_.reserve(payload_.bytes().size());
    payload_on_host_.reserve(payload_.bytes().size());
    copy(plain_.data(), payload_.data(), bytes_, cudaMemcpyDeviceToHost, work_.get());
    work_.wait();
    return atomo::pack_lossless(
        {plain_.data(), bytes_}, codecs_,
        {payload_on_host_.data(), payload_on_host_.bytes().size(), &bytes_});
  }

  /// A received payload without its lossless stages, on the host: `message` becomes it.
  atomo::Status unpack(Slot& slot, atomo::ConstBytes& message) const {
    slot.filled.wait();  // what it held may be on its way to the device
    slot.plain.reserve(payload_.bytes().size());
    std::uint64_t bytes = 0;
    const auto status =
        atomo::unpack_lossless(message, {slot.plain.data(), slot.plain.bytes().size(), &bytes});
    message = {slot.plain.data(), bytes};
    return status;
  }

  /// A payload on the device, once the work stream gets to it.
  atomo::ConstBytes on_device(Slot& slot, atomo::ConstBytes message) {
    slot.memory.reserve(std::max(longest_, message.size()));
    slot.free.hold(copies_.get());
    copy(slot.memory.data(), message.data(), message.size(), cudaMemcpyHostToDevice, copies_.get());
    slot.filled.record(copies_.get());
    slot.filled.hold(work_.get());
    return {slot.memory.data(), message.size()};
  }

  /// All of them, in the work stream.
  std::vector<atomo::ConstBytes> all_on_device(std::span<const atomo::ConstBytes> messages) {
    voters_.reserve(longest_ * workers_);
    std::vector<atomo::ConstBytes> there;
    for (const atomo::ConstBytes message : messages) {
      std::byte* const at = voters_.data() + there.size() * longest_;
      copy(at, message.data(), message.size(), cudaMemcpyHostToDevice, work_.get());
      there.emplace_back(at, message.size());
    }
    return there;
  }

  [[nodiscard]] atomo::Status* statuses() const noexcept {
    return reinterpret_cast<atomo::Status*>(told_.data() + kWord);
  }
  [[nodiscard]] const atomo::Status* heard() const noexcept {
    return reinterpret_cast<const atomo::Status*>(told_on_host_.data() + kWord);
  }
  /// What the device has to tell, once it is done.
  void hear() {
    check(cudaGetLastError(), "a kernel");
    copy(told_on_host_.data(), told_.data(), told_.bytes().size(), cudaMemcpyDeviceToHost,
         work_.get());
    work_.wait();
  }
  [[nodiscard]] atomo::Context context(atomo::Status* status) const {
    return {.stream = work_.get(),
            .workspace = workspace_.bytes(),
            .handles = handles_.get(),
            .status = status};
  }

  atomo::Compressor& compressor_;
  atomo::Key key_;
  std::vector<atomo::Codec> codecs_;  ///< of the layers, with their lossless stages
  bool lossless_;                     ///< whether there is one
  std::size_t workers_;
  bool aware_;
  bool votes_;  ///< what is added up is signs, and what counts the sum's
  std::size_t sum_bytes_;
  Memory own_, sum_, sum_on_host_, payload_, workspace_;
  Memory told_, told_on_host_;  ///< the payload's length, a status a worker
  Memory payload_on_host_{true}, plain_{true};
  Memory received_;       ///< where MPI writes
  Memory voters_{false};  ///< all payloads that vote, where MPI cannot write to the device
  StreamOwner work_, copies_;
  Event gradients_;
  std::array<Slot, 2> slots_;
  std::vector<std::size_t> offsets_;  ///< of the layers, in elements
  std::vector<atomo::ConstTensorView> own_views_;
  std::vector<atomo::TensorView> sum_views_;
  atomo::HandlesPtr handles_;      ///< null where no codec needs any
  std::uint64_t bytes_ = 0;        ///< of the payload
  std::uint64_t plain_bytes_ = 0;  ///< of the one on the device, without lossless stages
  std::size_t longest_ = 0;        ///< bytes a worker in `received_`
};

}  // namespace

std::unique_ptr<Exchange> make_device_exchange(atomo::Compressor& compressor,
                                               const atomo::Policy& policy, std::size_t workers,
                                               bool cuda_aware_mpi, bool votes) {
  return std::make_unique<DeviceExchange>(compressor, policy, workers, cuda_aware_mpi, votes);
}

std::string device_objection() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return "";
  return std::string("--device cuda: no GPU can be used (") +
         (error == cudaSuccess ? "there is none" : cudaGetErrorString(error)) +
         "); nvidia-smi tells more, or take --device cpu";
}

int choose_gpu() {
  int devices = 0, local_rank = 0;
  check(cudaGetDeviceCount(&devices), "the GPUs of this machine");
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const char* rank = std::getenv(name)) {
      local_rank = std::atoi(rank);
      break;
    }
  }
  const int gpu = local_rank % devices;
  check(cudaSetDevice(gpu), "choosing a GPU");
  return gpu;
}

}  // namespace train
