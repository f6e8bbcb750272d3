// SPDX-License-Identifier: Apache-2.0
/// \file
/// The sender has each layer's gradient encoded, beside back-propagation where the process has a
/// thread to spare, and posts it to the layer's server. MPI is called by one thread alone, so a
/// layer that is encoded leaves when the next one comes, or at the end. The receiver polls
/// for payloads and decodes each when its turn in the order of ranks has come, or adds all of a
/// layer undecoded where the codec allows it. Both measure the time that the codec takes. A payload
/// that cannot be decoded ends the run with a `Fault` that names its sender, layer and step.

#include "exchange/gradient_stream.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace train {
namespace {

std::size_t largest_workspace(const atomo::Compressor& compressor) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < compressor.layers().size(); ++i) {
    bytes = std::max(
        {bytes, compressor.encode_workspace_bytes(i), compressor.decode_workspace_bytes(i)});
  }
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

GradientSender::GradientSender(Transport& transport, Learner& learner, Threads& threads,
                               std::vector<int> server_of, std::size_t depth)
    : transport_(transport),
      learner_(learner),
      threads_(threads),
      server_of_(std::move(server_of)),
      messages_(depth),
      copies_(threads.count() > 1 ? learner.compressor().elements() : 0),
      background_(threads.count() > 1) {
  const auto& compressor = learner.compressor();
  for (auto& message : messages_) {
    for (std::size_t i = 0; i < compressor.layers().size(); ++i)
      message.payloads.emplace_back(compressor.max_encoded_bytes(i));
    message.lengths.resize(message.payloads.size());
    message.transfers.resize(message.payloads.size());
  }
  workspace_.resize(largest_workspace(compressor));
}

void GradientSender::begin(std::uint32_t step, bool computing) {
  step_ = step;
  computing_ = computing;
  bytes_ = 0;
  background_.begin();
  current_ = (current_ + 1) % messages_.size();
  transport_.wait(messages_[current_].transfers);
  check(learner_.compressor().begin_step(learner_.key(step)), "begin encoding", "", step);
}

void GradientSender::push(std::size_t layer, std::span<const float> gradient, Timeline& timeline) {
  timeline.instant("gradient", learner_.compressor().layers()[layer].name, Clock::now());
  const bool corrupt = std::exchange(corrupt_next_, false);
  not_sent_.push_back(layer);
  if (computing_ && background_.has_thread()) {
    const auto copy = std::span(copies_).subspan(learner_.replica().offset(layer), gradient.size());
    std::ranges::copy(gradient, copy.begin());
    background_.post([this, layer, copy, corrupt] { encode(layer, copy, corrupt); });
  } else {
    background_.perform([&] { encode(layer, gradient, corrupt); });
  }
  send_encoded(timeline);
  transport_.breathe();
}

/// On any thread: touches nothing but what is this layer's.
void GradientSender::encode(std::size_t layer, std::span<const float> gradient, bool corrupt) {
  const auto& spec = learner_.compressor().layers()[layer];
  auto& payload = messages_[current_].payloads[layer];
  auto& length = messages_[current_].lengths[layer];
  atomo::Executor* const executor = computing_ ? threads_.beside() : threads_.all();
  check(learner_.compressor().encode_layer(layer, {gradient.data(), atomo::DType::f32, spec.shape},
                                           {payload.data(), payload.size(), &length},
                                           {.workspace = workspace_, .executor = executor}),
        "encode layer", spec.name, step_);
  if (corrupt) payload[length / 2] ^= std::byte{1};
}

void GradientSender::send_encoded(Timeline& timeline) {
  auto& message = messages_[current_];
  while (const auto times = background_.take()) {
    const std::size_t layer = not_sent_.front();
    not_sent_.pop_front();
    const auto& name = learner_.compressor().layers()[layer].name;
    timeline.span("encode", name, times->begin, times->end, computing_ && background_.has_thread());
    message.transfers[layer] =
        transport_.send(server_of_[layer], kLayerTag + static_cast<int>(layer),
                        std::span(message.payloads[layer]).first(message.lengths[layer]));
    timeline.instant("send", name, Clock::now());
    bytes_ += message.lengths[layer];
  }
}

void GradientSender::finish(Timeline& timeline) {
  while (!background_.idle()) {
    background_.wait_a_moment();
    send_encoded(timeline);
    transport_.breathe();
  }
  check(learner_.compressor().end_step(), "end encoding", "", step_);
  if (messages_.size() == 1) transport_.wait(messages_[current_].transfers);
}

void GradientSender::add_sent(std::span<const float> scales, std::span<float> model) {
  const auto& message = messages_[current_];
  for (std::size_t i = 0; i < message.payloads.size(); ++i) {
    check(learner_.compressor().decode_layer_add(
              i, std::span(message.payloads[i]).first(message.lengths[i]), scales[i],
              view_of(model, learner_.replica(), i),
              {.workspace = workspace_, .executor = threads_.all()}),
          "decode its own layer", learner_.compressor().layers()[i].name, step_);
  }
}

GradientReceiver::GradientReceiver(Transport& transport, const atomo::Compressor& compressor,
                                   const atomo::Policy& policy, const Replica& replica,
                                   Threads& threads, std::size_t first, std::size_t last,
                                   std::size_t depth)
    : transport_(transport),
      compressor_(compressor),
      replica_(replica),
      threads_(threads),
      first_(first),
      last_(last),
      queues_(static_cast<std::size_t>(transport.workers())) {
  for (auto& queue : queues_) {
    queue.messages.resize(depth);
    for (auto& message : queue.messages) {
      for (std::size_t i = first; i < last; ++i)
        message.payloads.emplace_back(compressor.max_encoded_bytes(i));
      message.transfers.resize(message.payloads.size());
    }
  }
  for (const auto& layer : compressor.layers())
    adds_.push_back(policy.codec_for(layer.name).traits().linear ? 1 : 0);
  workspace_.resize(largest_workspace(compressor));
  sum_workspace_.resize(atomo::add_workspace_bytes(queues_.size()));
}

void GradientReceiver::expect(std::size_t worker, std::uint32_t step) {
  auto& queue = queues_[worker];
  auto& message = queue.messages[queue.expected++ % queue.messages.size()];
  message.step = step;
  const int rank = transport_.rank_of_worker(static_cast<int>(worker));
  for (std::size_t i = first_; i < last_; ++i) {
    message.transfers[i - first_] =
        transport_.receive(rank, kLayerTag + static_cast<int>(i), message.payloads[i - first_]);
  }
}

std::size_t GradientReceiver::outstanding(std::size_t worker) const noexcept {
  return queues_[worker].expected - queues_[worker].taken;
}

bool GradientReceiver::arrived(std::size_t worker) {
  auto& transfers = oldest(worker).transfers;
  return std::all_of(transfers.begin(), transfers.end(),
                     [this](auto& transfer) { return transport_.done(transfer); });
}

std::uint32_t GradientReceiver::step(std::size_t worker) const noexcept {
  const auto& queue = queues_[worker];
  return queue.messages[queue.taken % queue.messages.size()].step;
}

void GradientReceiver::drop(std::size_t worker) { ++queues_[worker].taken; }

double GradientReceiver::take_decode_milliseconds() noexcept {
  return std::exchange(decode_milliseconds_, 0);
}

GradientReceiver::Message& GradientReceiver::oldest(std::size_t worker) {
  auto& queue = queues_[worker];
  return queue.messages[queue.taken % queue.messages.size()];
}

atomo::ConstBytes GradientReceiver::payload_of(std::size_t worker, std::size_t layer) {
  const auto& message = oldest(worker);
  return std::span(message.payloads[layer - first_])
      .first(message.transfers[layer - first_].received);
}

void GradientReceiver::take_mean(std::span<const std::size_t> workers, std::span<float> gradient,
                                 Timeline& timeline) {
  const float share = 1.0F / static_cast<float>(workers.size());
  std::vector<std::size_t> next(last_ - first_);  // place of the worker each layer waits for
  std::vector<int> awaited;
  Transport::Patience patience(transport_);
  for (std::size_t layer = first_; layer < last_; ++layer) {
    const auto view = view_of(gradient, replica_, layer);
    std::fill_n(static_cast<float*>(view.data), view.shape.elements(), 0.0F);
  }
  for (;;) {
    bool moved = false;
    awaited.clear();
    for (std::size_t layer = first_; layer < last_; ++layer) {
      auto& at = next[layer - first_];
      for (; at < workers.size() && transport_.done(oldest(workers[at]).transfers[layer - first_]);
           ++at) {
        moved = true;
        if (adds_[layer] == 0) {
          add(workers[at], layer, share, gradient, timeline);
        } else if (at + 1 == workers.size()) {
          add_together(workers, layer, gradient, timeline);
        }
      }
      if (at < workers.size())
        awaited.push_back(transport_.rank_of_worker(static_cast<int>(workers[at])));
    }
    if (awaited.empty()) break;
    if (!moved) patience.idle(awaited);
  }
  for (const std::size_t worker : workers) drop(worker);
}

void GradientReceiver::add(std::size_t worker, std::size_t layer, float share,
                           std::span<float> gradient, Timeline& timeline) {
  const auto begin = Clock::now();
  const auto status = compressor_.decode_layer_add(layer, payload_of(worker, layer), share,
                                                   view_of(gradient, replica_, layer), context());
  const auto& name = compressor_.layers()[layer].name;
  if (atomo::failed(status)) {
    const int rank = transport_.rank_of_worker(static_cast<int>(worker));
    throw Fault(rank, transport_.name(rank) + " sent a payload that is refused, layer '" + name +
                          "' of step " + std::to_string(step(worker)) + ": " +
                          std::string(atomo::describe(status)));
  }
  const auto end = Clock::now();
  decode_milliseconds_ += milliseconds(end - begin);
  if (timeline.on()) {
    timeline.span(("decode worker " + std::to_string(worker + 1)).c_str(), name, begin, end);
  }
}

atomo::ConstBytes GradientReceiver::sum_of(std::span<const std::size_t> workers,
                                           std::size_t layer) {
  std::vector<atomo::ConstBytes> messages;
  for (const std::size_t worker : workers) messages.push_back(payload_of(worker, layer));
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

void GradientReceiver::add_together(std::span<const std::size_t> workers, std::size_t layer,
                                    std::span<float> gradient, Timeline& timeline) {
  const auto begin = Clock::now();
  const float share = 1.0F / static_cast<float>(workers.size());
  const auto sum = sum_of(workers, layer);
  const auto& name = compressor_.layers()[layer].name;
  if (sum.empty() || atomo::failed(compressor_.decode_layer_add(
                         layer, sum, share, view_of(gradient, replica_, layer), context()))) {
    // Another linear codec, other steps, or payloads that are refused: which, each says itself.
    for (const std::size_t worker : workers) add(worker, layer, share, gradient, timeline);
    return;
  }
  const auto end = Clock::now();
  decode_milliseconds_ += milliseconds(end - begin);
  timeline.span("add payloads, decode", name, begin, end);
}

}  // namespace train
