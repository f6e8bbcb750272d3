// SPDX-License-Identifier: Apache-2.0
// A gradient there and back: one tensor through a codec, then many draws of it, whose mean comes
// back to the gradient, then a whole model at one budget.
//
//   build/release/examples/example_roundtrip
#include <atomo/atomo.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

/// A stand-in for a gradient: noise in rows of very different scales, as layers have them.
std::vector<float> make_gradient(const atomo::Shape& shape) {
  std::vector<float> gradient(shape.elements());
  const std::size_t width = gradient.size() / static_cast<std::size_t>(shape[0]);
  std::mt19937 generator(1);
  std::normal_distribution<float> noise;
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = std::exp(-0.1f * static_cast<float>(i / width)) * noise(generator);
  return gradient;
}

/// ||a - b||^2 / ||b||^2.
double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - double{b[i]};
    error += difference * difference;
    norm += double{b[i]} * double{b[i]};
  }
  return error / norm;
}

void check(atomo::Status status) {
  if (!atomo::failed(status)) return;
  std::printf("failed: %s\n", atomo::describe(status).data());
  std::exit(1);
}

/// Sends one tensor `draws` times, each with a step of its own, and averages what arrives.
void one_tensor() {
  const atomo::Shape shape{64, 1024};
  const auto gradient = make_gradient(shape);
  const auto codec = atomo::Codec::parse("atomo:bits=0.5");
  std::vector<std::byte> message(codec.max_encoded_bytes(shape));
  std::vector<std::byte> workspace(
      std::max(codec.encode_workspace_bytes(shape), codec.decode_workspace_bytes(shape)));
  const atomo::Context context{.workspace = workspace};

  constexpr std::uint32_t kDraws = 64;
  std::vector<float> mean(gradient.size());
  double error_of_one = 0;
  for (std::uint32_t step = 0; step < kDraws; ++step) {
    std::uint64_t bytes = 0;
    check(codec.encode({gradient.data(), atomo::DType::f32, shape}, {.seed = 1, .step = step},
                       {message.data(), message.size(), &bytes}, context));
    check(codec.decode_add({message.data(), static_cast<std::size_t>(bytes)}, 1.0f / kDraws,
                           {mean.data(), atomo::DType::f32, shape}, context));
    if (step > 0) continue;
    std::vector<float> decoded(gradient.size());
    check(codec.decode({message.data(), static_cast<std::size_t>(bytes)},
                       {decoded.data(), atomo::DType::f32, shape}, context));
    error_of_one = relative_error(decoded, gradient);
    std::printf("%s: %zu bytes became %llu\n", codec.to_string().c_str(),
                gradient.size() * sizeof(float), static_cast<unsigned long long>(bytes));
  }
  const double error_of_mean = relative_error(mean, gradient);
  std::printf("relative error of one message %.4f, of the mean of %u messages %.4f\n", error_of_one,
              kDraws, error_of_mean);
  // Unbiased: the error falls with the number of messages. A biased codec's would stay.
  if (!(error_of_mean < 4 * error_of_one / kDraws)) std::exit(1);
}

/// Sends a small model as one message. Bits go to the layers where they save most.
void one_model() {
  const std::vector<atomo::LayerSpec> layers = {{"conv.weight", {32, 25}},
                                                {"conv.bias", {32}},
                                                {"fc.weight", {128, 800}},
                                                {"fc.bias", {128}}};
  atomo::Compressor model(layers, atomo::Policy::parse("*=atomo:bits=0.5"));

  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<float>> decoded;
  std::vector<atomo::ConstTensorView> from;
  std::vector<atomo::TensorView> to;
  for (const auto& layer : layers) {
    gradients.push_back(make_gradient(layer.shape));
    decoded.emplace_back(gradients.back().size());
    from.push_back({gradients.back().data(), layer.dtype, layer.shape});
    to.push_back({decoded.back().data(), layer.dtype, layer.shape});
  }
  std::vector<std::byte> message(model.max_encoded_bytes());
  std::vector<std::byte> workspace(
      std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes()));
  const atomo::Context context{.workspace = workspace};
  std::uint64_t bytes = 0;
  check(model.encode(from, {.seed = 1}, {message.data(), message.size(), &bytes}, context));
  check(model.decode({message.data(), static_cast<std::size_t>(bytes)}, to, context));
  std::printf("a model of %llu parameters: %llu bytes, %.3f bits a parameter\n",
              static_cast<unsigned long long>(model.elements()),
              static_cast<unsigned long long>(bytes),
              8.0 * static_cast<double>(bytes) / static_cast<double>(model.elements()));
}

}  // namespace

int main() {
  one_tensor();
  one_model();
}
