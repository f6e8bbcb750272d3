// SPDX-License-Identifier: Apache-2.0
/// \file
/// The phases of a step and the gathering of reports are implemented here for all decentralised
/// algorithms. Reports travel to rank 0 in the background while the nodes go on, and its verdict
/// back: an interruption, or the loss of a node, takes effect behind the same step everywhere.

#include "roles/node.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "run/interrupt.hpp"

namespace train {
namespace {

constexpr int kTimelineTag = 11, kReportTag = 12, kVerdictTag = 13;

/// Reports are gathered about four times a second, so that an interruption is soon agreed on, and
/// every other step at most, so that a node may be late for a step without all waiting for it.
constexpr double kMillisecondsAGather = 250;
constexpr std::size_t kLeastStepsAGather = 2, kMostStepsAGather = 16;

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
            run.threads, learner_.replica().buffers().size()),
      dropped_(static_cast<std::size_t>(transport_.size()), kNever) {}

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
    if (transport_.lost(neighbour.node)) continue;  // what it has sent may still be received
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
  try {
    mail_.receive(from.node, theirs.weights, theirs.buffers);
  } catch (const Lost&) {
    drop(from.node, *step_);
    return false;
  }
  timeline_.span("receive", graph_.name(from.node), begin, Clock::now());
  return true;
}

void Node::drop(int node, std::uint32_t step) {
  dropped_[static_cast<std::size_t>(node)] = step;
  graph_.forget(transport_.rank(), node);
  std::erase_if(kept_, [node](const auto& entry) { return entry.second.of == node; });
  mail_.forget(node);
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
  if (first()) collect_reports();
  return stopped_;
}

void Node::post_reports() {
  posted_ = std::exchange(told_, {});
  posted_from_ = told_from_;
  told_from_ += static_cast<std::uint32_t>(posted_.size());
  gathered_.clear();
  verdict_.reset();
  if (first()) {
    gathered_[0] = posted_;
    return;
  }
  const auto told = std::as_bytes(std::span(posted_)), dropped = std::as_bytes(std::span(dropped_));
  std::vector<std::byte> bytes(told.begin(), told.end());
  bytes.insert(bytes.end(), dropped.begin(), dropped.end());
  // Rank 0 may be waiting for this node's model: the report must not hold it up.
  report_ = std::move(bytes);
  reporting_ = transport_.send(0, kReportTag, report_);
}

void Node::collect_reports() {
  if (posted_.empty() || verdict_) return;
  bool all = true;
  for (const int node : left()) {
    if (gathered_.contains(node)) continue;
    const auto bytes = from_if_there(node, kReportTag);
    if (!bytes) {
      all = all && transport_.lost(node);
      continue;
    }
    auto& told = gathered_[node];
    told.resize(posted_.size());
    std::vector<std::uint32_t> dropped(dropped_.size());
    std::memcpy(told.data(), bytes->data(), told.size() * sizeof(Told));
    std::memcpy(dropped.data(), bytes->data() + told.size() * sizeof(Told),
                dropped.size() * sizeof(std::uint32_t));
    for (auto& lost : unlogged_) {
      const auto step = dropped[static_cast<std::size_t>(lost.node)];
      if (step != kNever) lost.dropped[node] = step;
    }
  }
  if (all) conclude();
}

void Node::conclude() {
  Verdict verdict;
  log_reports(verdict);
  const auto lost = lost_nodes();
  verdict_.emplace(sizeof verdict + lost.size());
  std::memcpy(verdict_->data(), &verdict, sizeof verdict);
  std::memcpy(verdict_->data() + sizeof verdict, lost.data(), lost.size());
  send_to_all(kVerdictTag, *verdict_);
}

void Node::log_reports(Verdict& verdict) {
  const std::size_t steps = posted_.size();
  const auto nodes = static_cast<double>(gathered_.size());
  double duration = 0;  // of a step, mean over nodes
  for (std::size_t s = 0; s < steps; ++s) {
    std::vector<StepReport> reports;
    std::map<int, double> losses;
    double wait = 0, decode = 0;
    for (const auto& [node, of_node] : gathered_) {
      const auto& told = of_node[s];
      reports.push_back(told.report);
      losses[node] = told.report.loss;
      wait += told.wait / nodes;
      decode += told.decode / nodes;
      if (told.report.interrupted != 0) verdict.stops = 1;
    }
    auto record = record_of(posted_from_ + static_cast<std::uint32_t>(s), reports);
    record.workers = static_cast<int>(reports.size());
    record.losses = std::move(losses);
    record.times.wire = wait;
    record.times.decode = decode;
    const auto& t = record.times;
    duration += (t.compute + t.encode + t.wire + t.decode) / static_cast<double>(steps);
    log_->step(record);
  }
  log_lost(false);
  verdict.steps_a_gather = static_cast<std::uint32_t>(
      std::clamp(kMillisecondsAGather / std::max(duration, 1e-3),
                 static_cast<double>(kLeastStepsAGather), static_cast<double>(kMostStepsAGather)));
}

void Node::take_reports() {
  if (posted_.empty()) return;
  if (first()) {
    Transport::Patience patience(transport_);
    std::vector<int> everybody(static_cast<std::size_t>(transport_.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    for (collect_reports(); !verdict_; collect_reports()) patience.idle(everybody);
  } else {
    transport_.wait(reporting_);
    verdict_ = transport_.receive_any_length(0, kVerdictTag);
  }
  Verdict verdict;
  std::memcpy(&verdict, verdict_->data(), sizeof verdict);
  stopped_ = stopped_ || verdict.stops != 0;
  steps_a_gather_ = verdict.steps_a_gather;
  posted_.clear();
  (void)go_on_without(std::span(*verdict_).subspan(sizeof verdict));
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
  for (const int node : left()) {
    if (node == 0) continue;
    if (const auto theirs = from(node, kTimelineTag)) append_events(events, *theirs);
  }
  write_timeline(run_.options.timeline, events);
  log_->note(draw_timeline(events, step));
}

}  // namespace train
