// SPDX-License-Identifier: Apache-2.0
/// The module that computes networks with torch; see torch_module.hpp.

#include <exception>

#include "learning/augment.hpp"
#include "learning/models.hpp"
#include "learning/replica.hpp"
#include "learning/torch_module.hpp"

namespace train {
namespace {

class TorchReplica final : public Replica {
 public:
  TorchReplica(const std::string& model, const std::string& norm, const InputShape& input,
               std::uint64_t seed, std::optional<int> gpu)
      : seed_(seed) {
    at::set_num_threads(1);
    torch::manual_seed(seed);
    at::globalContext().setDeterministicAlgorithms(true, false);
    network_ = make_network(model, norm, input);
    if (gpu) device_ = torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(*gpu));
    gather_weights();
    network_->to(device_);
    used_ = weights_.to(device_);
    share_weights();
    for (const auto& buffer : network_->buffers()) {
      if (buffer.is_floating_point()) buffers_.push_back(buffer);
    }
  }

  const std::vector<atomo::LayerSpec>& layers() const noexcept override { return layers_; }
  std::size_t offset(std::size_t layer) const noexcept override { return offsets_[layer]; }
  std::span<float> weights() noexcept override {
    return {weights_.data_ptr<float>(), static_cast<std::size_t>(weights_.numel())};
  }
  void weights_changed() override {
    if (!used_.is_alias_of(weights_)) used_.copy_(weights_);
  }
  std::vector<float> buffers() const override {
    std::vector<float> values;
    for (const auto& on_device : buffers_) {
      const auto buffer = on_device.cpu();
      const float* data = buffer.data_ptr<float>();
      values.insert(values.end(), data, data + buffer.numel());
    }
    return values;
  }
  void set_buffers(std::span<const float> values) override {
    for (auto& buffer : buffers_) {
      const auto n = static_cast<std::size_t>(buffer.numel());
      buffer.copy_(torch::from_blob(const_cast<float*>(values.data()), buffer.sizes()));
      values = values.subspan(n);
    }
  }
  double backward(const Batch& batch, double scale, const OnGradient& on_gradient) override {
    network_->train();
    constexpr std::uint64_t kWorkers = 65536;
    torch::manual_seed(mixed(mixed(seed_) ^ (batch.step * kWorkers + batch.worker)));
    for (auto& parameter : parameters_) parameter.mutable_grad() = torch::Tensor();
    const auto [loss, correct] = network_->loss(batch, device_);
    on_gradient_ = &on_gradient;
    backward_began_ = std::chrono::steady_clock::now();
    (scale == 1 ? loss : loss * scale).backward();
    on_gradient_ = nullptr;
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    trained_ = {.correct = static_cast<std::uint64_t>(correct.item<std::int64_t>()),
                .predictions = batch.targets.size()};
    return loss.item<double>();
  }
  Score trained() const noexcept override { return trained_; }
  std::chrono::steady_clock::time_point backward_began() const noexcept override {
    return backward_began_;
  }
  Score evaluate(const Batch& batch, std::vector<Prediction>* each) override {
    const torch::NoGradGuard no_gradients;
    network_->eval();
    return network_->score(batch, device_, each);
  }

 private:
  /// The network's first weights into one flat tensor.
  void gather_weights() {
    std::int64_t total = 0;
    for (const auto& parameter : network_->parameters()) total += parameter.numel();
    weights_ = torch::empty({total});
    std::int64_t at = 0;
    for (const auto& parameter : network_->parameters()) {
      weights_.narrow(0, at, parameter.numel()).copy_(parameter.detach().flatten());
      at += parameter.numel();
    }
  }
  /// Parameters become views of the flat tensor where the network computes.
  void share_weights() {
    std::int64_t at = 0;
    for (auto& item : network_->named_parameters()) {
      auto& parameter = item.value();
      parameter.set_data(used_.narrow(0, at, parameter.numel()).view(parameter.sizes()));
      layers_.push_back({item.key(), atomo::Shape(std::span(parameter.sizes().data(),
                                                            parameter.sizes().size()))});
      offsets_.push_back(static_cast<std::size_t>(at));
      parameters_.push_back(parameter);
      at += parameter.numel();
      const std::size_t layer = layers_.size() - 1;
      parameter.register_hook([this, layer](const torch::Tensor& g) { hook(layer, g); });
    }
  }
  void hook(std::size_t layer, const torch::Tensor& gradient) {
    if (on_gradient_ == nullptr || failure_) return;
    const auto dense = gradient.contiguous();
    try {
      (*on_gradient_)(layer, {dense.data_ptr<float>(), static_cast<std::size_t>(dense.numel())});
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  std::shared_ptr<Network> network_;
  std::vector<torch::Tensor> parameters_, buffers_;
  std::vector<atomo::LayerSpec> layers_;
  std::vector<std::size_t> offsets_;
  torch::Device device_ = torch::kCPU;
  torch::Tensor weights_;  ///< one flat tensor in host memory
  torch::Tensor used_;     ///< the same where the network computes; the parameters are views of it
  std::chrono::steady_clock::time_point backward_began_;
  std::uint64_t seed_;  ///< of the weights, and of what training draws
  Score trained_;
  const OnGradient* on_gradient_ = nullptr;
  std::exception_ptr failure_;  ///< of a callback, carried past torch
};

std::unique_ptr<Replica> make_torch_replica(const std::string& model, const std::string& norm,
                                            const InputShape& input, std::uint64_t seed,
                                            std::optional<int> gpu) {
  return std::make_unique<TorchReplica>(model, norm, input, seed, gpu);
}

std::string torch_gpu_objection() {
  if (torch::cuda::is_available()) return "";
  return "--device cuda: this libtorch has no CUDA, or sees no GPU; build with a libtorch that has "
         "(-DCMAKE_PREFIX_PATH), or take --device cpu";
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const TorchModule atomo_train_torch;
const TorchModule atomo_train_torch{make_torch_replica, torch_gpu_objection};

}  // namespace train
