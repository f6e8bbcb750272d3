// SPDX-License-Identifier: Apache-2.0
/// \file
/// The messages of a sharded algorithm are encoded, sent, received and added here, and the time of
/// each part is recorded. A shard of the own gradient is encoded when its last layer comes out of
/// back-propagation, on a thread beside it where the process has one to spare. A refused payload has been seen by one rank alone, so the refusal travels
/// with the reports of the step, and then every rank ends the run for the same reason.

#include "roles/sharded_peer.hpp"

#include <algorithm>
#include <atomo/atomo.hpp>
#include <string>
#include <utility>

namespace train {

ShardedPeer::ShardedPeer(Run& run)
    : Peer(run),
      rank_(static_cast<std::size_t>(transport_.rank())),
      shards_(cut_into_shards(
          learner_.replica().layers(),
          policy_of_compressors(run.options, atomo::Policy::parse(run.options.policy)), workers_,
          run.options.encodes_on())),
      coder_(make_coder(run.options, atomo::Policy::parse(run.options.policy), run.threads)),
      own_(coder_->make_array(learner_.replica().weights().size())),
      sent_(workers_),
      means_(workers_),
      gradient_(own_.size()),
      sum_(coder_->stand_in(gradient_)),
      shard_of_(learner_.replica().layers().size()),
      missing_(workers_),
      background_(run.threads.count() > 1) {
  for (std::size_t s = 0; s < workers_; ++s) {
    if (shards_[s].empty()) continue;
    for (std::size_t i = shards_[s].first; i < shards_[s].last; ++i) shard_of_[i] = s;
    const auto& compressor = *shards_[s].compressor;
    sent_[s].memory.resize(compressor.max_encoded_bytes());
    means_[s].memory.resize(compressor.max_encoded_bytes());
    coder_->prepare(compressor, Coder::Messages::whole);
  }
}

void ShardedPeer::compute_gradient(std::uint32_t step) {
  outgoing_.clear();
  corrupt_next_ = corrupts(step);
  background_.begin();
  for (std::size_t s = 0; s < workers_; ++s) missing_[s] = shards_[s].last - shards_[s].first;
  back_propagate(step, [this, step](std::size_t layer, std::span<const float> gradient) {
    coder_->put(gradient, own_.subspan(learner_.replica().offset(layer), gradient.size()));
    const std::size_t s = shard_of_[layer];
    if (--missing_[s] == 0 && own_message(s).message != nullptr) encode_own(s, step);
    take_own();
    report_.encode = background_.held();
  });
  while (!background_.idle()) {
    background_.wait_a_moment();
    take_own();
    transport_.breathe();
  }
  report_.encode = background_.held();
  report_.beside = background_.beside();
}

void ShardedPeer::encode_own(std::size_t s, std::uint32_t step) {
  encoding_.push_back(s);
  background_.post([this, s, step] {
    const auto [channel, message] = own_message(s);
    encode(s, own_, step, channel, *message, run_.threads.beside());
  });
}

void ShardedPeer::take_own() {
  while (const auto times = background_.take()) {
    const std::size_t s = encoding_.front();
    encoding_.pop_front();
    timeline_.span("encode", "shard " + std::to_string(s + 1), times->begin, times->end,
                   background_.has_thread());
    own_encoded(s);
  }
}

void ShardedPeer::encode(std::size_t s, std::span<const float> model, std::uint32_t step,
                         std::size_t channel, Message& message) {
  const auto begin = Clock::now();
  encode(s, model, step, channel, message, run_.threads.all());
  const auto end = Clock::now();
  report_.encode += milliseconds(end - begin);
  timeline_.span("encode", "shard " + std::to_string(s + 1), begin, end);
}

/// On any thread: touches nothing but what is this shard's, and the workspace.
void ShardedPeer::encode(std::size_t s, std::span<const float> model, std::uint32_t step,
                         std::size_t channel, Message& message, atomo::Executor* executor) {
  auto key = learner_.key(step);
  key.channel = static_cast<std::uint16_t>(channel);
  check_encoded(
      coder_->encode(*shards_[s].compressor, shards_[s].part_of(model), key,
                     {message.memory.data(), message.memory.size(), &message.bytes}, executor),
      step);
}

void ShardedPeer::decode_add(std::size_t s, const Message& message, std::size_t from, float alpha,
                             std::span<float> model) {
  const auto begin = Clock::now();
  const auto status = coder_->decode_add(*shards_[s].compressor, message.payload(), alpha,
                                         shards_[s].part_of(model));
  if (atomo::failed(status)) {
    coder_->clear(shards_[s].part_of(model));
    if (report_.refused == 0) {
      report_.refused = from + 1;
      report_.refusal = static_cast<std::uint64_t>(status);
    }
  }
  decoded(begin);
}

Transfer ShardedPeer::receive(std::size_t from, int tag, Message& message) {
  return transport_.receive(static_cast<int>(from), tag, message.memory);
}

void ShardedPeer::send(std::size_t to, int tag, Message& message) {
  if (std::exchange(corrupt_next_, false)) message.memory[message.bytes / 2] ^= std::byte{1};
  report_.sent += message.bytes;
  outgoing_.push_back(transport_.send(static_cast<int>(to), tag, message.payload()));
}

void ShardedPeer::take(Transfer& transfer, Message& message, const char* what) {
  const auto begin = Clock::now();
  transport_.wait(transfer);
  message.bytes = transfer.received;
  report_.received += message.bytes;
  const auto end = Clock::now();
  wire_ += milliseconds(end - begin);
  timeline_.span(what, "", begin, end);
}

void ShardedPeer::agree(std::uint32_t step) {
  const auto begin = Clock::now();
  transport_.wait(outgoing_);
  exchange_reports();
  wire_ += milliseconds(Clock::now() - begin);
  for (const auto& report : reports_) {
    if (report.refused == 0) continue;
    check_payload(static_cast<atomo::Status>(report.refusal), static_cast<int>(report.refused) - 1,
                  step);
  }
}

bool ShardedPeer::step_along_means(float alpha, std::uint32_t step) {
  const auto begin = Clock::now();
  coder_->clear(sum_);
  std::vector<atomo::Status> statuses(workers_);
  for (std::size_t s = 0; s < workers_; ++s) {
    if (shards_[s].empty()) continue;
    coder_->add_later(*shards_[s].compressor, means_[s].payload(), alpha, shards_[s].part_of(sum_),
                      statuses[s]);
  }
  coder_->fetch(sum_, gradient_);
  for (std::size_t s = 0; s < workers_; ++s) check_payload(statuses[s], static_cast<int>(s), step);
  decoded(begin);
  return step_along(gradient_, step);
}

void ShardedPeer::decoded(Clock::time_point begin) {
  const auto end = Clock::now();
  decode_ += milliseconds(end - begin);
  timeline_.span("decode", "", begin, end);
}

}  // namespace train
