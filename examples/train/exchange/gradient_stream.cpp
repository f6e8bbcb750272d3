// SPDX-License-Identifier: Apache-2.0
#include "exchange/gradient_stream.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace train {
namespace {

std::size_t largest_workspace(const atomo::Compressor& compressor) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < compressor.layers().size(); ++i)
    bytes = std::max(bytes, compressor.workspace_bytes(i));
  return bytes;
}

/// Builds its message only when there is something to say: it is called for every layer.
void check(atomo::Status status, const char* action, const std::string& layer, std::uint32_t step) {
  if (!atomo::failed(status)) return;
  throw std::runtime_error(std::string("cannot ") + action +
                           (layer.empty() ? "" : " '" + layer + "'") + " at step " +
                           std::to_string(step) + ": " + std::string(atomo::describe(status)));
}

}  // namespace

GradientSender::GradientSender(Transport& transport, Learner& learner, int server)
    : transport_(transport), learner_(learner), server_(server) {
  const auto& compressor = learner.compressor();
  for (std::size_t i = 0; i < compressor.layers().size(); ++i)
    payloads_.emplace_back(compressor.max_encoded_bytes(i));
  workspace_.resize(largest_workspace(compressor));
  transfers_.resize(payloads_.size());
}

void GradientSender::begin(std::uint32_t step) {
  step_ = step;
  encode_milliseconds_ = 0;
  bytes_ = 0;
  check(learner_.compressor().begin_step(learner_.key(step)), "begin encoding", "", step);
}

void GradientSender::push(std::size_t layer, std::span<const float> gradient, Timeline& timeline) {
  const auto& spec = learner_.compressor().layers()[layer];
  auto& payload = payloads_[layer];
  const auto begin = Clock::now();
  timeline.instant("gradient", spec.name, begin);
  std::uint64_t length = 0;
  check(learner_.compressor().encode_layer(layer, {gradient.data(), atomo::DType::f32, spec.shape},
                                           {payload.data(), payload.size(), &length},
                                           {.workspace = workspace_}),
        "encode layer", spec.name, step_);
  if (std::exchange(corrupt_next_, false)) payload[length / 2] ^= std::byte{1};
  const auto end = Clock::now();
  transfers_[layer] = transport_.send(server_, kLayerTag + static_cast<int>(layer),
                                      std::span(payload).first(length));
  timeline.span("encode", spec.name, begin, end);
  timeline.instant("send", spec.name, Clock::now());
  encode_milliseconds_ += milliseconds(end - begin);
  bytes_ += length;
  transport_.breathe();
}

void GradientSender::finish() {
  check(learner_.compressor().end_step(), "end encoding", "", step_);
  transport_.wait(transfers_);
}

GradientReceiver::GradientReceiver(Transport& transport, const atomo::Compressor& compressor,
                                   const atomo::Policy& policy, const Replica& replica)
    : transport_(transport),
      compressor_(compressor),
      replica_(replica),
      workers_(static_cast<std::size_t>(transport.workers())) {
  for (std::size_t i = 0; i < compressor.layers().size(); ++i) {
    for (std::size_t k = 0; k < workers_; ++k)
      payloads_.emplace_back(compressor.max_encoded_bytes(i));
  }
  for (const auto& layer : compressor.layers())
    adds_.push_back(policy.codec_for(layer.name).traits().linear ? 1 : 0);
  transfers_.resize(payloads_.size());
  workspace_.resize(largest_workspace(compressor));
  sum_workspace_.resize(atomo::add_workspace_bytes(workers_));
}

void GradientReceiver::begin() {
  decode_milliseconds_ = 0;
  bytes_ = 0;
  for (std::size_t at = 0; at < payloads_.size(); ++at) {
    const auto layer = static_cast<int>(at / workers_), worker = static_cast<int>(at % workers_);
    transfers_[at] =
        transport_.receive(transport_.rank_of_worker(worker), kLayerTag + layer, payloads_[at]);
  }
}

void GradientReceiver::add_all(std::uint32_t step, std::span<float> gradient, Timeline& timeline) {
  std::fill(gradient.begin(), gradient.end(), 0.0F);
  const std::size_t layers = payloads_.size() / workers_;
  std::vector<std::size_t> next(layers);  // the worker each layer waits for
  std::vector<int> awaited;
  Transport::Patience patience(transport_);
  for (;;) {
    bool moved = false;
    awaited.clear();
    for (std::size_t layer = 0; layer < layers; ++layer) {
      auto& worker = next[layer];
      for (; worker < workers_ && transport_.done(transfers_[layer * workers_ + worker]);
           ++worker) {
        moved = true;
        if (adds_[layer] == 0) {
          add(step, layer, worker, gradient, timeline);
        } else if (worker + 1 == workers_) {
          add_together(step, layer, gradient, timeline);
        }
      }
      if (worker < workers_) awaited.push_back(transport_.rank_of_worker(static_cast<int>(worker)));
    }
    if (awaited.empty()) return;
    if (!moved) patience.idle(awaited);
  }
}

void GradientReceiver::add(std::uint32_t step, std::size_t layer, std::size_t worker,
                           std::span<float> gradient, Timeline& timeline) {
  const auto begin = Clock::now();
  const std::size_t at = layer * workers_ + worker;
  const auto message = std::span(payloads_[at]).first(transfers_[at].received);
  const auto status =
      compressor_.decode_layer_add(message, 1.0F / static_cast<float>(workers_),
                                   view_of(gradient, replica_, layer), {.workspace = workspace_});
  const auto& name = compressor_.layers()[layer].name;
  if (atomo::failed(status)) {
    const int rank = transport_.rank_of_worker(static_cast<int>(worker));
    throw Fault(rank, transport_.name(rank) + " sent a payload that is refused, layer '" + name +
                          "' of step " + std::to_string(step) + ": " +
                          std::string(atomo::describe(status)));
  }
  const auto end = Clock::now();
  decode_milliseconds_ += milliseconds(end - begin);
  bytes_ += message.size();
  if (timeline.on()) {
    timeline.span(("decode worker " + std::to_string(worker + 1)).c_str(), name, begin, end);
  }
}

atomo::ConstBytes GradientReceiver::sum_of(std::size_t layer) {
  std::vector<atomo::ConstBytes> messages;
  for (std::size_t at = layer * workers_; at < (layer + 1) * workers_; ++at)
    messages.push_back(std::span(payloads_[at]).first(transfers_[at].received));
  // A payload may claim any shape; one that is not the layer's is refused when it is decoded.
  const std::uint64_t bound = atomo::added_bytes_bound(messages);
  const std::size_t elements = compressor_.layers()[layer].shape.elements();
  if (bound == 0) adds_[layer] = 0;
  if (bound == 0 || bound > 8 * elements + 4096) return {};
  sum_.resize(std::max<std::size_t>(sum_.size(), bound));
  std::uint64_t bytes = 0;
  const auto status = atomo::add(messages, sum_workspace_, {sum_.data(), sum_.size(), &bytes});
  return atomo::failed(status) ? atomo::ConstBytes() : std::span(sum_).first(bytes);
}

void GradientReceiver::add_together(std::uint32_t step, std::size_t layer,
                                    std::span<float> gradient, Timeline& timeline) {
  const auto begin = Clock::now();
  const auto sum = sum_of(layer);
  const auto& name = compressor_.layers()[layer].name;
  if (sum.empty() || atomo::failed(compressor_.decode_layer_add(
                         sum, 1.0F / static_cast<float>(workers_),
                         view_of(gradient, replica_, layer), {.workspace = workspace_}))) {
    // Another linear codec, other steps, or payloads that are refused: which, each says itself.
    for (std::size_t worker = 0; worker < workers_; ++worker)
      add(step, layer, worker, gradient, timeline);
    return;
  }
  const auto end = Clock::now();
  decode_milliseconds_ += milliseconds(end - begin);
  for (std::size_t at = layer * workers_; at < (layer + 1) * workers_; ++at)
    bytes_ += transfers_[at].received;
  timeline.span("add payloads, decode", name, begin, end);
}

}  // namespace train
