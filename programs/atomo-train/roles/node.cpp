// SPDX-License-Identifier: Apache-2.0
/// \file
/// The phases of a step, the gathering of reports, tests and checkpoints are implemented here for
/// all decentralised algorithms. Reports travel in the background while the nodes go on, and an
/// interruption takes effect when its report has reached every node. Tests measure each node's
/// model and the mean of all models.

#include "roles/node.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "run/interrupt.hpp"

namespace train {
namespace {

constexpr int kStateTag = 10, kTimelineTag = 11;

/// Reports are gathered about four times a second, so that an interruption is soon agreed on, and
/// every other step at most, so that a node may be late for a step without all waiting for it.
constexpr double kMillisecondsAGather = 250;
constexpr std::size_t kLeastStepsAGather = 2, kMostStepsAGather = 16;

constexpr std::size_t kMeanChunk = std::size_t{1} << 18;  ///< elements of a node in memory at once

Graph graph_of(const Run& run) {
  return Graph::make({.text = run.options.graph,
                      .hosts = run.options.hosts,
                      .nodes = run.transport.size(),
                      .period = run.options.period});
}

}  // namespace

void Point::clear() {
  std::fill(weights.begin(), weights.end(), 0.0F);
  std::fill(buffers.begin(), buffers.end(), 0.0F);
}

void Point::add_difference(double factor, const Point& a, const Point& b) {
  const auto f = static_cast<float>(factor);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += f * (a.weights[i] - b.weights[i]);
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i] += f * (a.buffers[i] - b.buffers[i]);
}

Node::Node(Run& run)
    : run_(run),
      transport_(run.transport),
      graph_(graph_of(run)),
      learner_(run.options, transport_.rank(), transport_.size(), [this] { transport_.breathe(); }),
      optimiser_(run.make_optimiser(learner_.replica().layers())),
      gradient_(learner_.replica().weights().size()),
      mail_(transport_, learner_,
            make_coder(run.options, atomo::Policy::parse(run.options.policy), run.threads),
            run.threads, learner_.replica().buffers().size()) {}

void Node::begin() {
  const std::uint64_t sent_before = restore();
  told_from_ = posted_from_ = done_;
  if (first()) {
    log_.emplace(run_.options, learner_.task().measure(), transport_.size(),
                 learner_.compressor().elements(), sent_before);
  }
}

// ---- a step -----------------------------------------------------------------------------------

Point Node::here() {
  const auto own = weights();
  return {{own.begin(), own.end()}, learner_.replica().buffers()};
}

Point Node::zeros() {
  return {std::vector<float>(elements()), std::vector<float>(learner_.replica().buffers().size())};
}

void Node::move_by(const Point& change) {
  auto own = weights();
  for (std::size_t i = 0; i < own.size(); ++i) own[i] += change.weights[i];
  learner_.replica().weights_changed();
  if (change.buffers.empty()) return;
  auto buffers = learner_.replica().buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i] += change.buffers[i];
  learner_.replica().set_buffers(buffers);
}

void Node::begin_step(std::uint32_t step) {
  if (step_ == step) return;
  step_ = step;
  now_ = {};
  mail_.begin_step(step);
  timeline_ = Timeline(run_.records(step), transport_.rank(), transport_.name(transport_.rank()));
}

void Node::back_propagate(std::uint32_t step) {
  begin_step(step);
  auto& replica = learner_.replica();
  const auto begin = Clock::now();
  now_.report.loss =
      learner_.backward(step, [&](std::size_t layer, std::span<const float> gradient) {
        timeline_.instant("gradient", replica.layers()[layer].name, Clock::now());
        learner_.to_host(gradient,
                         std::span(gradient_).subspan(replica.offset(layer), gradient.size()));
        transport_.breathe();
      });
  now_.report.count(learner_.trained());
  const auto end = Clock::now();
  now_.report.compute = milliseconds(end - begin);
  timeline_.span("forward", "", begin, replica.backward_began());
  timeline_.span("backward", "", replica.backward_began(), end);
}

void Node::take_step(std::uint32_t step) {
  optimiser_->take_step(weights(), gradient_, step);
  learner_.replica().weights_changed();
}

void Node::send(std::uint32_t step, const std::vector<Neighbour>& to, const Point& point,
                Point& sent, std::uint16_t channel) {
  sent.weights.resize(point.weights.size());
  sent.buffers = point.buffers;
  post(step, to, point, channel, sent.weights);
}

void Node::send(std::uint32_t step, const std::vector<Neighbour>& to, const Point& point,
                std::uint16_t channel) {
  post(step, to, point, channel, {});
}

void Node::post(std::uint32_t step, const std::vector<Neighbour>& to, const Point& point,
                std::uint16_t channel, std::span<float> decoded) {
  begin_step(step);
  std::vector<int> ranks;
  for (const auto& neighbour : to) {
    mail_.expect(neighbour.node);
    if (!run_.options.asynchronous || !mail_.busy(neighbour.node)) ranks.push_back(neighbour.node);
  }
  if (to.empty()) return;
  if (first() && run_.options.corrupt_payload_at == step) mail_.corrupt_next();
  const auto begin = Clock::now();
  mail_.send(ranks, point.weights, point.buffers, channel, decoded);
  timeline_.span("encode", "", begin, Clock::now());
}

bool Node::receive(const Neighbour& from, Point& theirs) {
  theirs.weights.resize(elements());
  theirs.buffers.resize(learner_.replica().buffers().size());
  if (run_.options.asynchronous)
    return mail_.receive_latest(from.node, theirs.weights, theirs.buffers);
  const auto begin = Clock::now();
  mail_.receive(from.node, theirs.weights, theirs.buffers);
  timeline_.span("receive", graph_.name(from.node), begin, Clock::now());
  return true;
}

// ---- reports ----------------------------------------------------------------------------------

bool Node::end_step(std::uint32_t step) {
  const auto& counts = mail_.counts();
  now_.report.encode = counts.encode;
  now_.report.payload_bytes = counts.bytes;
  now_.report.sent = counts.sent;
  now_.report.received = counts.received;
  now_.report.interrupted = interrupted() ? 1 : 0;
  now_.wait = counts.wait;
  now_.decode = counts.decode;
  told_.push_back(now_);
  done_ = step + 1;
  if (run_.records(step)) share_events(step);
  if (told_.size() >= steps_a_gather_) {
    take_reports();
    post_reports();
  }
  return stopped_;
}

void Node::post_reports() {
  posted_ = std::exchange(told_, {});
  posted_from_ = told_from_;
  told_from_ += static_cast<std::uint32_t>(posted_.size());
  gathered_.resize(posted_.size() * static_cast<std::size_t>(transport_.size()));
  gathering_ = transport_.all_gather(std::as_bytes(std::span(posted_)),
                                     std::as_writable_bytes(std::span(gathered_)));
}

void Node::take_reports() {
  if (posted_.empty()) return;
  transport_.wait(gathering_);
  const std::size_t steps = posted_.size();
  const auto nodes = static_cast<std::size_t>(transport_.size());
  double duration = 0;  // of a step, mean over nodes
  for (std::size_t s = 0; s < steps; ++s) {
    std::vector<StepReport> reports;
    double wait = 0, decode = 0;
    for (std::size_t k = 0; k < nodes; ++k) {
      const auto& told = gathered_[k * steps + s];
      reports.push_back(told.report);
      wait += told.wait / static_cast<double>(nodes);
      decode += told.decode / static_cast<double>(nodes);
      stopped_ = stopped_ || told.report.interrupted != 0;
    }
    auto record = record_of(posted_from_ + static_cast<std::uint32_t>(s), reports);
    record.times.wire = wait;
    record.times.decode = decode;
    const auto& t = record.times;
    duration += (t.compute + t.encode + t.wire + t.decode) / static_cast<double>(steps);
    if (first()) log_->step(record);
  }
  // The same figures everywhere, so the same number.
  steps_a_gather_ = static_cast<std::size_t>(
      std::clamp(kMillisecondsAGather / std::max(duration, 1e-3),
                 static_cast<double>(kLeastStepsAGather), static_cast<double>(kMostStepsAGather)));
  posted_.clear();
}

void Node::flush() {
  take_reports();
  if (told_.empty()) return;
  post_reports();
  take_reports();
}

void Node::share_events(std::uint32_t step) {
  auto events = timeline_.take();
  if (!first()) {
    const std::string text = events.dump();
    auto transfer = transport_.send(0, kTimelineTag, std::as_bytes(std::span(text)));
    return transport_.wait(transfer);
  }
  for (int k = 1; k < transport_.size(); ++k)
    append_events(events, transport_.receive_any_length(k, kTimelineTag));
  write_timeline(run_.options.timeline, events);
  log_->note(draw_timeline(events, step));
}

// ---- tests and checkpoints --------------------------------------------------------------------

template <class T>
std::vector<T> Node::gather(const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(transport_.size()));
  auto transfer = transport_.all_gather(bytes_of(mine), std::as_writable_bytes(std::span(all)));
  transport_.wait(transfer);
  return all;
}

std::vector<float> Node::mean_over_nodes(std::span<const float> own) {
  const auto nodes = static_cast<std::size_t>(transport_.size());
  std::vector<float> mean, all;
  while (!own.empty()) {
    const auto part = own.first(std::min(own.size(), kMeanChunk));
    all.resize(part.size() * nodes);
    auto transfer =
        transport_.all_gather(std::as_bytes(part), std::as_writable_bytes(std::span(all)));
    transport_.wait(transfer);
    const auto of_part = mean_over_workers(all, nodes);
    mean.insert(mean.end(), of_part.begin(), of_part.end());
    own = own.subspan(part.size());
  }
  return mean;
}

void Node::test(std::uint32_t done) {
  flush();
  const auto own = here();
  const auto scores = gather(learner_.evaluate(done, true));
  const auto set = [&](std::span<const float> weights, std::span<const float> buffers) {
    auto& replica = learner_.replica();
    std::copy(weights.begin(), weights.end(), replica.weights().begin());
    replica.weights_changed();
    replica.set_buffers(buffers);
  };
  set(mean_over_nodes(own.weights), mean_over_nodes(own.buffers));
  const auto of_mean = gather(learner_.evaluate(done));
  set(own.weights, own.buffers);
  if (!first()) return;
  const auto each = total_of(scores), mean = total_of(of_mean);
  if (each && mean) log_->evaluation(done, *each, &*mean);
}

WorkerState Node::state() {
  auto state = learner_.state();
  const auto own = weights();
  state.arrays["weights"] = {own.begin(), own.end()};
  const auto& moments = optimiser_->moments();
  for (std::size_t m = 0; m < moments.size(); ++m)
    state.arrays["moment" + std::to_string(m)] = moments[m];
  for (const auto& [name, values] : kept_) state.arrays[name] = *values;
  return state;
}

void Node::save(std::uint32_t done) {
  flush();
  const auto mean = mean_over_nodes(weights());
  const auto own = state().pack();
  if (!first()) {
    auto transfer = transport_.send(0, kStateTag, own);
    return transport_.wait(transfer);
  }
  Checkpoint checkpoint{run_.options.fingerprint(transport_.workers()),
                        done,
                        log_->sent_bytes(),
                        mean,
                        {},
                        {WorkerState::unpack(own)}};
  for (int k = 1; k < transport_.size(); ++k)
    checkpoint.workers.push_back(WorkerState::unpack(transport_.receive_any_length(k, kStateTag)));
  write_checkpoint(run_.options.save, checkpoint, learner_.replica().layers());
  if (run_.options.save_series) keep_in_series(run_.options.save, done);
  log_->checkpoint(done);
}

std::uint64_t Node::restore() {
  const auto checkpoint = run_.resume(learner_.replica());
  if (!checkpoint) return 0;
  const auto& own = checkpoint->workers[static_cast<std::size_t>(transport_.rank())];
  const auto fill = [&](const std::string& name, std::span<float> values) {
    const auto found = own.arrays.find(name);
    if (found == own.arrays.end() || found->second.size() != values.size()) {
      throw std::runtime_error("'" + run_.options.resume + "' has no '" + name + "' of " +
                               std::to_string(values.size()) + " values for node " +
                               std::to_string(transport_.rank() + 1));
    }
    std::copy(found->second.begin(), found->second.end(), values.begin());
  };
  fill("weights", weights());
  learner_.replica().weights_changed();
  auto& moments = optimiser_->moments();
  for (std::size_t m = 0; m < moments.size(); ++m) fill("moment" + std::to_string(m), moments[m]);
  for (const auto& [name, values] : kept_) fill(name, *values);
  learner_.restore(own);
  done_ = checkpoint->step;
  return checkpoint->sent_bytes;
}

void Node::finish(std::uint32_t done, bool stopped) {
  flush();
  if (run_.options.asynchronous) {
    std::vector<int> ranks;
    for (const auto& neighbour : neighbours()) ranks.push_back(neighbour.node);
    mail_.close(ranks);
  }
  if (first()) log_->finish(done, stopped);
}

}  // namespace train
