// SPDX-License-Identifier: Apache-2.0
/// \file
/// A message is encoded once for all its receivers, and its memory is used again when the last
/// transfer of it is done. A receiver either waits for a neighbour's next message or, in
/// asynchronous runs, takes the newest that has arrived and skips the older ones. An empty message
/// says at the end of a run that no more will come.

#include "exchange/mail.hpp"

#include <algorithm>
#include <atomo/own_codec.hpp>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "run/timeline.hpp"

namespace train {
namespace {

constexpr int kMailTag = 30;

}  // namespace

Mail::Mail(Transport& transport, Learner& learner, std::unique_ptr<Coder> coder, Threads& threads,
           std::size_t tail)
    : transport_(transport),
      learner_(learner),
      coder_(std::move(coder)),
      threads_(threads),
      tail_bytes_(tail * sizeof(float)) {
  coder_->prepare(learner.compressor(), Coder::Messages::whole);
}

void Mail::begin_step(std::uint32_t step) {
  step_ = step;
  counts_ = {};
}

void Mail::expect(int rank) {
  auto& incoming = incoming_[rank];
  if (incoming.expected || incoming.closed) return;
  incoming.memory.resize(learner_.compressor().max_encoded_bytes() + tail_bytes_);
  incoming.transfer = transport_.receive(rank, kMailTag, incoming.memory);
  incoming.expected = true;
}

/// One that nobody awaits any more.
Mail::Outgoing& Mail::free_message() {
  for (auto& message : outgoing_) {
    auto& transfers = message->transfers;
    if (std::all_of(transfers.begin(), transfers.end(),
                    [this](auto& entry) { return transport_.done(entry.second); })) {
      transfers.clear();
      return *message;
    }
  }
  outgoing_.push_back(std::make_shared<Outgoing>());
  outgoing_.back()->memory.resize(learner_.compressor().max_encoded_bytes() + tail_bytes_);
  return *outgoing_.back();
}

void Mail::send(std::span<const int> ranks, std::span<const float> model,
                std::span<const float> tail, std::uint16_t channel, std::span<float> decoded) {
  const auto begin = Clock::now();
  auto& message = free_message();
  auto key = learner_.key(step_);
  key.channel = channel;
  std::uint64_t bytes = 0;
  auto status = coder_->encode(learner_.compressor(), model, key,
                               {message.memory.data(), message.memory.size() - tail_bytes_, &bytes},
                               threads_.all());
  if (!atomo::failed(status) && !decoded.empty()) {
    status = coder_->decode(learner_.compressor(), std::span(message.memory).first(bytes), decoded);
  }
  if (atomo::failed(status)) {
    throw std::runtime_error("cannot encode the message of step " + std::to_string(step_) + ": " +
                             atomo::explain(status));
  }
  if (std::exchange(corrupt_next_, false)) message.memory[bytes / 2] ^= std::byte{1};
  if (tail_bytes_ != 0) std::memcpy(message.memory.data() + bytes, tail.data(), tail_bytes_);
  bytes += tail_bytes_;
  counts_.encode += milliseconds(Clock::now() - begin);
  for (const int rank : ranks) {
    message.transfers[rank] =
        transport_.send(rank, kMailTag, std::span(message.memory).first(bytes));
    counts_.sent += bytes;
  }
  counts_.bytes += bytes;
}

bool Mail::busy(int rank) {
  return std::any_of(outgoing_.begin(), outgoing_.end(), [&](auto& message) {
    const auto found = message->transfers.find(rank);
    return found != message->transfers.end() && !transport_.done(found->second);
  });
}

void Mail::receive(int rank, std::span<float> model, std::span<float> tail) {
  expect(rank);
  auto& incoming = incoming_[rank];
  const auto begin = Clock::now();
  transport_.wait(incoming.transfer);
  counts_.wait += milliseconds(Clock::now() - begin);
  incoming.expected = false;
  counts_.received += incoming.transfer.received;
  decode(rank, std::span(incoming.memory).first(incoming.transfer.received), model, tail);
}

bool Mail::receive_latest(int rank, std::span<float> model, std::span<float> tail) {
  auto& incoming = incoming_[rank];
  bool any = false;
  for (expect(rank); incoming.expected && transport_.done(incoming.transfer); expect(rank)) {
    incoming.expected = false;
    const std::size_t bytes = incoming.transfer.received;
    incoming.closed = bytes == 0;
    if (incoming.closed) break;
    any = true;
    counts_.received += bytes;
    latest_.assign(incoming.memory.begin(),
                   incoming.memory.begin() + static_cast<std::ptrdiff_t>(bytes));
  }
  if (any) decode(rank, latest_, model, tail);
  return any;
}

void Mail::decode(int rank, atomo::ConstBytes message, std::span<float> model,
                  std::span<float> tail) {
  const auto begin = Clock::now();
  const auto refuse = [&](const std::string& why) {
    throw Fault(rank, transport_.name(rank) + " sent a payload that is refused, step " +
                          std::to_string(step_) + ": " + why);
  };
  if (message.size() < tail_bytes_) refuse("it is shorter than the statistics behind it");
  const auto payload = message.first(message.size() - tail_bytes_);
  const auto status = coder_->decode(learner_.compressor(), payload, model);
  if (atomo::failed(status)) refuse(atomo::explain(status));
  if (tail_bytes_ != 0) std::memcpy(tail.data(), message.last(tail_bytes_).data(), tail_bytes_);
  counts_.decode += milliseconds(Clock::now() - begin);
}

void Mail::close(std::span<const int> ranks) {
  const auto unless_lost = [this](int rank, const auto& work) {
    try {
      work();
    } catch (const Lost&) {
      forget(rank);
    }
  };
  for (const int rank : ranks) unless_lost(rank, [&] { transport_.deliver(rank, kMailTag, {}); });
  for (const int rank : ranks) {
    auto& incoming = incoming_[rank];
    unless_lost(rank, [&] {
      for (expect(rank); incoming.expected; expect(rank)) {
        transport_.wait(incoming.transfer);
        incoming.expected = false;
        incoming.closed = incoming.transfer.received == 0;
      }
    });
  }
  for (const int rank : ranks) {
    unless_lost(rank, [&] {
      for (auto& message : outgoing_) {
        if (const auto sent = message->transfers.find(rank); sent != message->transfers.end())
          transport_.wait(sent->second);
      }
    });
  }
}

/// What MPI may still read or write stays.
void Mail::forget(int rank) {
  auto& incoming = incoming_[rank];
  incoming.closed = true;
  if (incoming.expected)
    transport_.keep(std::make_shared<std::vector<std::byte>>(std::move(incoming.memory)));
  incoming.expected = false;
  incoming.memory.clear();
  std::vector<std::shared_ptr<Outgoing>> left;
  for (auto& message : outgoing_) {
    const auto sent = message->transfers.find(rank);
    if (sent == message->transfers.end() || transport_.done(sent->second)) {
      left.push_back(message);
    } else {
      transport_.keep(message);
    }
  }
  outgoing_ = std::move(left);
}

}  // namespace train
