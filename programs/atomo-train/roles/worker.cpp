// SPDX-License-Identifier: Apache-2.0
/// \file
/// A worker follows the orders of the lead: it trains for a round, tests a part of the samples, or
/// sends its state for a checkpoint. In a round it receives the weights of all servers, computes a
/// gradient or takes several steps of its own, sends the result layer by layer and then reports
/// what it did.

#include "roles/worker.hpp"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "run/interrupt.hpp"

namespace train {
namespace {

const Plan& checked(const Plan& plan, const Run& run) {
  check_server_options(run.options, run.transport.workers());
  return plan;
}

std::vector<int> server_of_layers(std::span<const Shard> shards, std::size_t layers) {
  std::vector<int> server_of(layers);
  for (std::size_t s = 0; s < shards.size(); ++s) {
    for (std::size_t i = shards[s].first; i < shards[s].last; ++i)
      server_of[i] = static_cast<int>(s);
  }
  return server_of;
}

}  // namespace

Worker::Worker(Run& run, const Plan& plan)
    : run_(run),
      transport_(run.transport),
      plan_(checked(plan, run)),
      worker_(static_cast<std::size_t>(transport_.rank() - transport_.servers())),
      learner_(run.options, static_cast<int>(worker_), transport_.workers(),
               [this] { transport_.breathe(); }),
      shards_(cut_into_shards(learner_.replica().layers(),
                              policy_of_compressors(run.options, shard_policy(plan, run.options)),
                              static_cast<std::size_t>(transport_.servers()),
                              run.options.encodes_on())),
      receiver_(transport_, shards_,
                make_coder(run.options, shard_policy(plan, run.options), run.threads),
                !down_policy(plan, run.options).empty(), weights()),
      sender_(transport_, learner_,
              make_coder(run.options, atomo::Policy::parse(run.options.policy), run.threads),
              run.threads, server_of_layers(shards_, learner_.replica().layers().size()),
              run.options.double_buffer ? 2 : 1) {
  if (const auto checkpoint = run.resume(learner_.replica())) {
    restored_ = checkpoint->workers[worker_];
    if (restored_.compressor.empty())
      learner_.replica().set_buffers(restored_.buffers);  // the mean of those that were there
    else
      learner_.restore(restored_);
  }
  if (!down_policy(plan, run.options).empty()) keep("view", receiver_.weights());
  if (plan.rounds != Rounds::of_local_steps) return;
  optimiser_ = run.make_optimiser(learner_.replica().layers());
  auto& moments = optimiser_->moments();
  for (std::size_t m = 0; m < moments.size(); ++m) keep("moment" + std::to_string(m), moments[m]);
}

void Worker::keep(const std::string& name, std::vector<float>& values) {
  kept_[name] = &values;
  if (const auto found = restored_.arrays.find(name); found != restored_.arrays.end())
    values = found->second;
}

bool Worker::receive_weights() {
  for (;;) {
    Order order;
    receive(kOrderTag, writable_bytes_of(order));
    switch (order.what) {
      case What::train:
        begin_round(order.step);
        return true;
      case What::test:
        test(order);
        break;
      case What::save:
        send_state();
        break;
      case What::stop:
        if (order.missing != 0) transport_.await_end();
        return false;
      case What::accept:
      case What::drop:
        throw std::logic_error("a worker was told what servers tell each other");
    }
  }
}

void Worker::begin_round(std::uint32_t step) {
  step_ = step;
  steps_ = steps_of_round(plan_, run_.options, step);
  report_ = {};
  report_.received = receiver_.receive(step);
  std::copy(receiver_.weights().begin(), receiver_.weights().end(), weights().begin());
  timeline_ =
      Timeline(run_.records(step, steps_), transport_.rank(), transport_.name(transport_.rank()));
}

void Worker::stream_gradient(std::span<const float> memory) {
  begin_message(true);
  push_gradient(memory, {});
  end_message();
}

bool Worker::stream_gradient_if(std::span<const float> memory,
                                const std::function<bool(double change, double error)>& worth) {
  differences_.resize(weights().size());
  decoded_.assign(differences_.size(), 0.0F);
  begin_message(true);
  sender_.hold_back();
  push_gradient(memory, differences_);
  sender_.finish(timeline_);
  const auto begin = Clock::now();
  sender_.add_sent(std::vector<float>(learner_.replica().layers().size(), 1.0F), decoded_);
  double change = 0, error = 0;
  for (std::size_t i = 0; i < decoded_.size(); ++i) {
    const double sent = decoded_[i], left = static_cast<double>(differences_[i]) - sent;
    change += sent * sent;
    error += left * left;
  }
  const bool changed = worth(change, error);
  report_.compute += milliseconds(Clock::now() - begin);
  sender_.let_go(changed);
  report_message();
  return changed;
}

void Worker::push_gradient(std::span<const float> memory, std::span<float> differences) {
  const auto begin = Clock::now();
  report_.loss = learner_.backward(step_, [&](std::size_t layer, std::span<const float> gradient) {
    if (memory.empty()) return sender_.push(layer, gradient, timeline_);
    gradient_.resize(gradient.size());
    learner_.to_host(gradient, gradient_);
    const auto known = memory.subspan(learner_.replica().offset(layer), gradient.size());
    std::ranges::transform(gradient_, known, gradient_.begin(), std::minus());
    if (!differences.empty()) {
      std::ranges::copy(gradient_, differences.subspan(learner_.replica().offset(layer)).begin());
    }
    sender_.push(layer, gradient_, timeline_);
  });
  report_.count(learner_.trained());
  const auto end = Clock::now();
  timeline_.span("forward", "", begin, learner_.replica().backward_began());
  timeline_.span("backward", "", learner_.replica().backward_began(), end);
  report_.compute = milliseconds(end - begin) - sender_.encode_milliseconds();
}

std::span<float> Worker::gradient() {
  auto& replica = learner_.replica();
  gradient_.resize(weights().size());
  const auto begin = Clock::now();
  report_.loss = learner_.backward(step_, [&](std::size_t layer, std::span<const float> gradient) {
    learner_.to_host(gradient,
                     std::span(gradient_).subspan(replica.offset(layer), gradient.size()));
    transport_.breathe();
  });
  report_.count(learner_.trained());
  const auto end = Clock::now();
  timeline_.span("forward", "", begin, replica.backward_began());
  timeline_.span("backward", "", replica.backward_began(), end);
  report_.compute += milliseconds(end - begin);
  return gradient_;
}

void Worker::take_local_steps() {
  const std::uint32_t first = step_;
  double loss = 0;
  for (; step_ < first + steps_; ++step_) {
    const auto change = gradient();
    loss += report_.loss / steps_;
    const auto begin = Clock::now();
    optimiser_->take_step(weights(), change, step_);
    report_.compute += milliseconds(Clock::now() - begin);
  }
  report_.loss = loss;
  step_ = first;
}

void Worker::send(std::span<const float> model) {
  const auto& layers = learner_.replica().layers();
  begin_message(false);
  for (std::size_t layer = layers.size(); layer-- > 0;) {
    sender_.push(layer,
                 model.subspan(learner_.replica().offset(layer), layers[layer].shape.elements()),
                 timeline_);
  }
  end_message();
}

void Worker::begin_message(bool computing) {
  if (worker_ == 0 && run_.options.corrupt_payload_at &&
      *run_.options.corrupt_payload_at - step_ < steps_)
    sender_.corrupt_next();
  sender_.begin(step_, computing);
}

void Worker::end_message() {
  sender_.finish(timeline_);
  report_message();
}

void Worker::report_message() {
  timeline_.instant("all sent", "", Clock::now());
  report_.encode = sender_.encode_milliseconds();
  report_.beside = sender_.beside_milliseconds();
  report_.payload_bytes = report_.sent = sender_.bytes();
  report_.interrupted = interrupted() ? 1 : 0;
  send(kReportTag, bytes_of(report_));
  if (timeline_.on()) {
    const std::string text = timeline_.take().dump();
    send(kTimelineTag, std::as_bytes(std::span(text)));
  }
}

void Worker::test(const Order& order) {
  auto& replica = learner_.replica();
  receiver_.receive_plain(weights());
  const auto own = replica.buffers();
  if (!own.empty()) {
    std::vector<float> mean(own.size());
    send(kBuffersTag, std::as_bytes(std::span(own)));
    receive(kMeanBuffersTag, std::as_writable_bytes(std::span(mean)));
    replica.set_buffers(mean);
  }
  const auto score = learner_.evaluate_part(order.step, order.part, order.parts, order.whole != 0);
  replica.set_buffers(own);
  send(kScoreTag, bytes_of(score));
}

void Worker::send_state() {
  auto state = learner_.state();
  for (const auto& [name, values] : kept_) state.arrays[name] = *values;
  send(kStateTag, state.pack());
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
