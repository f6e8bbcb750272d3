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
#include <atomo/own_codec.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace train {
namespace {

/// Builds its message only when there is something to say: it is called for every layer.
void check(atomo::Status status, const char* action, const std::string& layer, std::uint32_t step) {
  if (!atomo::failed(status)) return;
  throw std::runtime_error(std::string("cannot ") + action +
                           (layer.empty() ? "" : " '" + layer + "'") + " at step " +
                           std::to_string(step) + ": " + atomo::explain(status));
}

}  // namespace

GradientSender::GradientSender(Transport& transport, Learner& learner, std::unique_ptr<Coder> coder,
                               Threads& threads, std::vector<int> server_of, std::size_t depth)
    : transport_(transport),
      learner_(learner),
      threads_(threads),
      server_of_(std::move(server_of)),
      messages_(depth),
      coder_(std::move(coder)),
      background_(threads.count() > 1) {
  const auto& compressor = learner.compressor();
  for (auto& message : messages_) {
    for (std::size_t i = 0; i < compressor.layers().size(); ++i)
      message.payloads.emplace_back(compressor.max_encoded_bytes(i));
    message.lengths.resize(message.payloads.size());
    message.transfers.resize(message.payloads.size());
  }
  coder_->prepare(compressor, Coder::Messages::layers);
  if (background_.has_thread()) copies_ = coder_->make_array(compressor.elements());
}

void GradientSender::begin(std::uint32_t step, bool computing) {
  step_ = step;
  computing_ = computing;
  bytes_ = 0;
  background_.begin();
  current_ = (current_ + 1) % messages_.size();
  transport_.wait(messages_[current_].transfers);
  learner_.take_share(step);
  check(learner_.compressor().begin_step(learner_.key(step)), "begin encoding", "", step);
}

void GradientSender::push(std::size_t layer, std::span<const float> gradient, Timeline& timeline) {
  timeline.instant("gradient", learner_.compressor().layers()[layer].name, Clock::now());
  const bool corrupt = std::exchange(corrupt_next_, false);
  not_sent_.push_back(layer);
  if (computing_ && background_.has_thread()) {
    const auto copy = copies_.subspan(learner_.replica().offset(layer), gradient.size());
    coder_->put(gradient, copy);
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
  check(coder_->encode_layer(learner_.compressor(), layer, gradient,
                             {payload.data(), payload.size(), &length}, executor),
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
    if (holds_) continue;
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
  learner_.take_share(step_ + 1);
  check(coder_->end_step(learner_.compressor()), "end encoding", "", step_);
  if (messages_.size() == 1) transport_.wait(messages_[current_].transfers);
}

void GradientSender::let_go(bool changed) {
  holds_ = false;
  auto& message = messages_[current_];
  for (std::size_t i = message.payloads.size(); i-- > 0;) {
    const auto payload = changed ? std::span<const std::byte>(message.payloads[i])
                                       .first(static_cast<std::size_t>(message.lengths[i]))
                                 : std::span(&kUnchanged, 1);
    message.transfers[i] = transport_.send(server_of_[i], kLayerTag + static_cast<int>(i), payload);
    bytes_ += payload.size();
  }
  transport_.wait(message.transfers);
}

void GradientSender::add_sent(std::span<const float> scales, std::span<float> model) {
  const auto& message = messages_[current_];
  for (std::size_t i = 0; i < message.payloads.size(); ++i) {
    check(coder_->decode_layer_add(learner_.compressor(), i,
                                   std::span(message.payloads[i]).first(message.lengths[i]),
                                   scales[i], layer_of(model, learner_.replica(), i)),
          "decode its own layer", learner_.compressor().layers()[i].name, step_);
  }
}

GradientReceiver::GradientReceiver(Transport& transport, const atomo::Compressor& compressor,
                                   std::unique_ptr<Coder> coder, const Replica& replica,
                                   std::size_t first, std::size_t last, std::size_t depth,
                                   bool unchanged)
    : transport_(transport),
      compressor_(compressor),
      coder_(std::move(coder)),
      replica_(replica),
      first_(first),
      last_(last),
      unchanged_(unchanged),
      queues_(static_cast<std::size_t>(transport.workers())),
      statuses_(queues_.size() * (last - first)) {
  for (auto& queue : queues_) {
    queue.messages.resize(depth);
    for (auto& message : queue.messages) {
      for (std::size_t i = first; i < last; ++i)
        message.payloads.emplace_back(compressor.max_encoded_bytes(i));
      message.transfers.resize(message.payloads.size());
    }
  }
  for (std::size_t i = 0; i < compressor.layers().size(); ++i)
    adds_.push_back(compressor.codec(i).traits().linear ? 1 : 0);
  coder_->prepare(compressor, Coder::Messages::layers);
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
  std::size_t elements = 0;
  for (std::size_t layer = first_; layer < last_; ++layer)
    elements += replica_.layers()[layer].shape.elements();
  const auto part =
      first_ == last_ ? std::span<float>() : gradient.subspan(replica_.offset(first_), elements);
  if (sum_.empty()) sum_ = coder_->stand_in(part);
  coder_->clear(sum_);
  for (;;) {
    bool moved = false;
    awaited.clear();
    for (std::size_t layer = first_; layer < last_; ++layer) {
      auto& at = next[layer - first_];
      for (; at < workers.size() && transport_.done(oldest(workers[at]).transfers[layer - first_]);
           ++at) {
        moved = true;
        if (adds_[layer] == 0) {
          add(workers[at], layer, share, timeline);
        } else if (at + 1 == workers.size()) {
          add_together(workers, layer, timeline);
        }
      }
      if (at < workers.size())
        awaited.push_back(transport_.rank_of_worker(static_cast<int>(workers[at])));
    }
    if (awaited.empty()) break;
    if (!moved) patience.idle(awaited);
  }
  const auto begin = Clock::now();
  coder_->fetch(sum_, part);
  for (std::size_t layer = first_; layer < last_; ++layer)
    for (const std::size_t worker : workers) check_payload(worker, layer);
  decode_milliseconds_ += milliseconds(Clock::now() - begin);
  for (const std::size_t worker : workers) drop(worker);
}

std::span<float> GradientReceiver::sum_of(std::size_t layer) const {
  return sum_.subspan(replica_.offset(layer) - replica_.offset(first_),
                      replica_.layers()[layer].shape.elements());
}

atomo::Status& GradientReceiver::status_of(std::size_t worker, std::size_t layer) {
  return statuses_[worker * (last_ - first_) + layer - first_];
}

void GradientReceiver::check_payload(std::size_t worker, std::size_t layer) {
  const auto status = status_of(worker, layer);
  if (!atomo::failed(status)) return;
  const int rank = transport_.rank_of_worker(static_cast<int>(worker));
  throw Fault(rank, transport_.name(rank) + " sent a payload that is refused, layer '" +
                        compressor_.layers()[layer].name + "' of step " +
                        std::to_string(step(worker)) + ": " + atomo::explain(status));
}

void GradientReceiver::add(std::size_t worker, std::size_t layer, float share, Timeline& timeline) {
  const auto payload = payload_of(worker, layer);
  if (unchanged_ && payload.size() == 1 && payload[0] == kUnchanged) {
    status_of(worker, layer) = atomo::Status::ok;
    return;
  }
  const auto begin = Clock::now();
  coder_->add_layer_later(compressor_, layer, payload, share, sum_of(layer),
                          status_of(worker, layer));
  check_payload(worker, layer);
  const auto& name = compressor_.layers()[layer].name;
  const auto end = Clock::now();
  decode_milliseconds_ += milliseconds(end - begin);
  if (timeline.on()) {
    timeline.span(("decode worker " + std::to_string(worker + 1)).c_str(), name, begin, end);
  }
}

atomo::ConstBytes GradientReceiver::payload_of_sum(std::span<const std::size_t> workers,
                                                   std::size_t layer) {
  std::vector<atomo::ConstBytes> messages;
  for (const std::size_t worker : workers) messages.push_back(payload_of(worker, layer));
  // A payload may claim any shape; one that is not the layer's is refused when it is decoded.
  const std::uint64_t bound = atomo::added_bytes_bound(messages);
  const std::size_t elements = compressor_.layers()[layer].shape.elements();
  if (bound == 0) adds_[layer] = 0;
  if (bound == 0 || bound > 8 * elements + 4096) return {};
  payload_sum_.resize(std::max<std::size_t>(payload_sum_.size(), bound));
  std::uint64_t bytes = 0;
  const auto status =
      atomo::add(messages, sum_workspace_, {payload_sum_.data(), payload_sum_.size(), &bytes});
  return atomo::failed(status) ? atomo::ConstBytes() : std::span(payload_sum_).first(bytes);
}

void GradientReceiver::add_together(std::span<const std::size_t> workers, std::size_t layer,
                                    Timeline& timeline) {
  const auto begin = Clock::now();
  const float share = 1.0F / static_cast<float>(workers.size());
  const auto sum = payload_of_sum(workers, layer);
  const auto& name = compressor_.layers()[layer].name;
  if (sum.empty() ||
      atomo::failed(coder_->decode_layer_add(compressor_, layer, sum, share, sum_of(layer)))) {
    // Another linear codec, other steps, or payloads that are refused: which, each says itself.
    for (const std::size_t worker : workers) add(worker, layer, share, timeline);
    return;
  }
  for (const std::size_t worker : workers) status_of(worker, layer) = atomo::Status::ok;
  const auto end = Clock::now();
  decode_milliseconds_ += milliseconds(end - begin);
  timeline.span("add payloads, decode", name, begin, end);
}

}  // namespace train
