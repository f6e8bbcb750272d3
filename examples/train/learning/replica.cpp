// SPDX-License-Identifier: Apache-2.0
#include "learning/replica.hpp"

#include <exception>

#include "learning/models.hpp"

namespace train {

struct Replica::Impl {
  std::shared_ptr<Network> network;
  std::vector<torch::Tensor> parameters, buffers;
  std::vector<atomo::LayerSpec> layers;
  std::vector<std::size_t> offsets;
  torch::Device device = torch::kCPU;
  torch::Tensor weights;  ///< one flat tensor in host memory
  torch::Tensor used;     ///< the same where the network computes; the parameters are views of it
  std::chrono::steady_clock::time_point backward_began;
  const OnGradient* on_gradient = nullptr;
  std::exception_ptr failure;  ///< of a callback, carried past torch

  void hook(std::size_t layer, const torch::Tensor& gradient) {
    if (on_gradient == nullptr || failure) return;
    const auto dense = gradient.contiguous();
    try {
      (*on_gradient)(layer, {dense.data_ptr<float>(), static_cast<std::size_t>(dense.numel())});
    } catch (...) {
      failure = std::current_exception();
    }
  }
};

Replica::Replica(const std::string& model, const InputShape& input, std::uint64_t seed,
                 std::optional<int> gpu)
    : impl_(std::make_unique<Impl>()) {
  at::set_num_threads(1);
  torch::manual_seed(seed);
  at::globalContext().setDeterministicAlgorithms(true, false);
  impl_->network = make_network(model, input);
  if (gpu) impl_->device = torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(*gpu));

  std::int64_t total = 0;
  for (const auto& parameter : impl_->network->parameters()) total += parameter.numel();
  impl_->weights = torch::empty({total});
  std::int64_t at = 0;
  for (const auto& parameter : impl_->network->parameters()) {
    impl_->weights.narrow(0, at, parameter.numel()).copy_(parameter.detach().flatten());
    at += parameter.numel();
  }
  impl_->network->to(impl_->device);
  impl_->used = impl_->weights.to(impl_->device);
  at = 0;
  for (auto& item : impl_->network->named_parameters()) {
    auto& parameter = item.value();
    parameter.set_data(impl_->used.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    impl_->layers.push_back(
        {item.key(), atomo::Shape(std::span(parameter.sizes().data(), parameter.sizes().size()))});
    impl_->offsets.push_back(static_cast<std::size_t>(at));
    impl_->parameters.push_back(parameter);
    at += parameter.numel();
    const std::size_t layer = impl_->layers.size() - 1;
    parameter.register_hook(
        [impl = impl_.get(), layer](const torch::Tensor& g) { impl->hook(layer, g); });
  }
  for (const auto& buffer : impl_->network->buffers()) {
    if (buffer.is_floating_point()) impl_->buffers.push_back(buffer);
  }
}

Replica::~Replica() = default;

const std::vector<atomo::LayerSpec>& Replica::layers() const noexcept { return impl_->layers; }
std::size_t Replica::offset(std::size_t layer) const noexcept { return impl_->offsets[layer]; }

std::span<float> Replica::weights() noexcept {
  return {impl_->weights.data_ptr<float>(), static_cast<std::size_t>(impl_->weights.numel())};
}

void Replica::weights_changed() {
  if (!impl_->used.is_alias_of(impl_->weights)) impl_->used.copy_(impl_->weights);
}

std::vector<float> Replica::buffers() const {
  std::vector<float> values;
  for (const auto& on_device : impl_->buffers) {
    const auto buffer = on_device.cpu();
    const float* data = buffer.data_ptr<float>();
    values.insert(values.end(), data, data + buffer.numel());
  }
  return values;
}

void Replica::set_buffers(std::span<const float> values) {
  for (auto& buffer : impl_->buffers) {
    const auto n = static_cast<std::size_t>(buffer.numel());
    buffer.copy_(torch::from_blob(const_cast<float*>(values.data()), buffer.sizes()));
    values = values.subspan(n);
  }
}

double Replica::backward(const Batch& batch, double scale, const OnGradient& on_gradient) {
  impl_->network->train();
  for (auto& parameter : impl_->parameters) parameter.mutable_grad() = torch::Tensor();
  const auto loss = impl_->network->loss(batch, impl_->device);
  impl_->on_gradient = &on_gradient;
  impl_->backward_began = std::chrono::steady_clock::now();
  (scale == 1 ? loss : loss * scale).backward();
  impl_->on_gradient = nullptr;
  if (impl_->failure) std::rethrow_exception(std::exchange(impl_->failure, nullptr));
  return loss.item<double>();
}

std::chrono::steady_clock::time_point Replica::backward_began() const noexcept {
  return impl_->backward_began;
}

Score Replica::evaluate(const Batch& batch) {
  const torch::NoGradGuard no_gradients;
  impl_->network->eval();
  return impl_->network->score(batch, impl_->device);
}

std::string torch_cuda_objection() {
  if (torch::cuda::is_available()) return "";
  return "--device cuda: this libtorch has no CUDA, or sees no GPU; build with a libtorch that has "
         "(-DCMAKE_PREFIX_PATH), or take --device cpu";
}

}  // namespace train
