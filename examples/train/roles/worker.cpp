// SPDX-License-Identifier: Apache-2.0
#include "roles/worker.hpp"

#include "exchange/weight_stream.hpp"
#include "interrupt.hpp"

namespace train {
namespace {

std::vector<int> server_of_layers(std::span<const Shard> shards, std::size_t layers) {
  std::vector<int> server_of(layers);
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (std::size_t i = shards[s].first; i < shards[s].last; ++i)
      server_of[i] = static_cast<int>(s);
  }
  return server_of;
}

}  // namespace

Worker::Worker(Run& run, Rounds)
    : run_(run),
      transport_(run.transport),
      worker_(static_cast<std::size_t>(transport_.rank() - transport_.servers())),
      learner_(run.options, static_cast<int>(worker_), transport_.workers(),
               [this] { transport_.breathe(); }),
      shards_(cut_into_shards(learner_.replica().layers(), atomo::Policy::parse(run.options.policy),
                              static_cast<std::size_t>(transport_.servers()))),
      sender_(transport_, learner_, server_of_layers(shards_, learner_.replica().layers().size()),
              1) {
  if (const auto checkpoint = run.resume(learner_.replica()))
    learner_.restore(checkpoint->workers[worker_]);
}

bool Worker::receive_weights() {
  for (;;) {
    Order order;
    receive(kOrderTag, writable_bytes_of(order));
    switch (order.what) {
      case What::train:
        step_ = order.step;
        report_ = {};
        report_.received =
            train::receive_weights(transport_, shards_, learner_.replica().weights());
        return true;
      case What::test:
        test(order.step);
        break;
      case What::save:
        send(kStateTag, learner_.state().pack());
        break;
      case What::stop:
        return false;
      case What::accept:
        throw std::logic_error("a worker was told what servers tell each other");
    }
  }
}

void Worker::stream_gradient() {
  begin_message();
  const auto begin = Clock::now();
  report_.loss = learner_.backward(step_, [&](std::size_t layer, std::span<const float> gradient) {
    sender_.push(layer, gradient, timeline_);
  });
  const auto end = Clock::now();
  timeline_.span("forward", "", begin, learner_.replica().backward_began());
  timeline_.span("backward", "", learner_.replica().backward_began(), end);
  report_.compute = milliseconds(end - begin) - sender_.encode_milliseconds();
  end_message();
}

void Worker::begin_message() {
  timeline_ = Timeline(run_.records(step_), transport_.rank(), transport_.name(transport_.rank()));
  if (worker_ == 0 && run_.options.corrupt_payload_at == step_) sender_.corrupt_next();
  sender_.begin(step_);
}

void Worker::end_message() {
  sender_.finish();
  timeline_.instant("all sent", "", Clock::now());
  report_.encode = sender_.encode_milliseconds();
  report_.payload_bytes = report_.sent = sender_.bytes();
  report_.interrupted = interrupted() ? 1 : 0;
  send(kReportTag, bytes_of(report_));
  if (timeline_.on()) {
    const std::string text = timeline_.take().dump();
    send(kTimelineTag, std::as_bytes(std::span(text)));
  }
}

void Worker::test(std::uint32_t done) {
  auto& replica = learner_.replica();
  train::receive_weights(transport_, shards_, replica.weights());
  const auto own = replica.buffers();
  if (!own.empty()) {
    std::vector<float> mean(own.size());
    send(kBuffersTag, std::as_bytes(std::span(own)));
    receive(kMeanBuffersTag, std::as_writable_bytes(std::span(mean)));
    replica.set_buffers(mean);
  }
  const auto score = learner_.evaluate(done);
  replica.set_buffers(own);
  send(kScoreTag, bytes_of(score));
}

void Worker::send(int tag, atomo::ConstBytes bytes) {
  auto transfer = transport_.send(kLead, tag, bytes);
  transport_.wait(transfer);
}

void Worker::receive(int tag, atomo::Bytes bytes) {
  auto transfer = transport_.receive(kLead, tag, bytes);
  transport_.wait(transfer);
}

}  // namespace train
