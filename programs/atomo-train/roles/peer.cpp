// SPDX-License-Identifier: Apache-2.0
/// \file
/// Back-propagation, reports, the optimiser's step, tests and checkpoints are implemented here for
/// all algorithms without a server. A test is divided among the ranks. In a checkpoint the weights
/// and the optimiser's moments come from rank 0, since all ranks have the same, and the other ranks
/// send only what is theirs alone.

#include "roles/peer.hpp"

#include <algorithm>
#include <atomo/own_codec.hpp>
#include <stdexcept>

#include "run/interrupt.hpp"

namespace train {
namespace {

constexpr int kStateTag = 10, kTimelineTag = 11;

}  // namespace

template <class T>
std::vector<T> Peer::gather(const T& mine) {
  std::vector<T> all(workers_);
  auto transfer = transport_.all_gather(bytes_of(mine), std::as_writable_bytes(std::span(all)));
  transport_.wait(transfer);
  return all;
}

Peer::Peer(Run& run, MakeOptimiser make)
    : run_(run),
      transport_(run.transport),
      workers_(static_cast<std::size_t>(transport_.workers())),
      learner_(run.options, transport_.rank(), transport_.workers(),
               [this] { transport_.breathe(); }),
      optimiser_((run.*make)(learner_.replica().layers())) {}

void Peer::begin() {
  const std::uint64_t sent_before = restore();
  if (first()) {
    log_.emplace(run_.options, learner_.task().measure(), transport_.workers(),
                 learner_.compressor().elements(), sent_before);
  }
}

void Peer::back_propagate(std::uint32_t step, const Replica::OnGradient& on_gradient) {
  if (run_.records(step))
    timeline_ = Timeline(true, transport_.rank(), transport_.name(transport_.rank()));
  wire_ = decode_ = 0;
  report_ = {};
  auto& replica = learner_.replica();
  const auto begin = Clock::now();
  report_.loss = learner_.backward(step, [&](std::size_t layer, std::span<const float> gradient) {
    timeline_.instant("gradient", replica.layers()[layer].name, Clock::now());
    on_gradient(layer, gradient);
    transport_.breathe();
  });
  report_.count(learner_.trained());
  const auto end = Clock::now();
  report_.compute = milliseconds(end - begin) - report_.encode;
  timeline_.span("forward", "", begin, replica.backward_began());
  timeline_.span("backward", "", replica.backward_began(), end);
}

void Peer::exchange_reports() {
  report_.interrupted = interrupted() ? 1 : 0;
  reports_ = gather(report_);
}

bool Peer::step_along(std::span<float> gradient, std::uint32_t step) {
  if (first()) dump_gradient(run_.options, learner_.replica(), step, "mean", gradient);
  take_step(gradient, step);
  return tell(step);
}

void Peer::take_step(std::span<float> gradient, std::uint32_t step) {
  optimiser_->take_step(learner_.replica().weights(), gradient, step);
  learner_.replica().weights_changed();
}

bool Peer::tell(std::uint32_t step) {
  auto record = record_of(step, reports_);
  record.times.wire = wire_;
  record.times.decode = decode_;
  if (timeline_.on()) share_events(step);
  timeline_ = Timeline(false, 0, "");
  if (first()) log_->step(record);
  sent_bytes_ += record.bytes;
  done_ = step + 1;
  return std::any_of(reports_.begin(), reports_.end(),
                     [](const auto& r) { return r.interrupted != 0; });
}

void Peer::check_payload(atomo::Status status, int rank, std::uint32_t step) const {
  if (!atomo::failed(status)) return;
  throw Fault(rank, transport_.name(rank) + " sent a payload that is refused, step " +
                        std::to_string(step) + ": " + atomo::explain(status));
}

void Peer::check_encoded(atomo::Status status, std::uint32_t step) {
  if (!atomo::failed(status)) return;
  throw std::runtime_error("cannot encode what is to be sent at step " + std::to_string(step) +
                           ": " + atomo::explain(status));
}

bool Peer::test(std::uint32_t done) {
  auto& replica = learner_.replica();
  const auto own = replica.buffers();
  if (!own.empty()) {
    std::vector<float> all(own.size() * workers_);
    auto transfer = transport_.all_gather(std::as_bytes(std::span(own)),
                                          std::as_writable_bytes(std::span(all)));
    transport_.wait(transfer);
    replica.set_buffers(mean_over_workers(all, workers_));
  }
  const auto score = total_of(gather(learner_.evaluate(done)));
  replica.set_buffers(own);
  if (first() && score) log_->evaluation(done, *score);
  return score.has_value();
}

void Peer::save(std::uint32_t done, bool owes_test) {
  const auto own = own_state().pack();
  if (!first()) {
    auto transfer = transport_.send(0, kStateTag, own);
    return transport_.wait(transfer);
  }
  const auto weights = learner_.replica().weights();
  Checkpoint checkpoint{run_.options.fingerprint(transport_.workers()),
                        done,
                        sent_bytes_,
                        {weights.begin(), weights.end()},
                        optimiser_->moments(),
                        {WorkerState::unpack(own)},
                        {},
                        owes_test};
  for (int k = 1; k < transport_.workers(); ++k) {
    checkpoint.workers.push_back(WorkerState::unpack(transport_.receive_any_length(k, kStateTag)));
  }
  run_.save(checkpoint, learner_.replica().layers());
  log_->checkpoint(done);
}

void Peer::finish(std::uint32_t done, bool stopped) {
  if (first()) log_->finish(done, stopped);
}

std::uint64_t Peer::restore() {
  auto checkpoint = run_.resume(learner_.replica());
  if (!checkpoint) return 0;
  done_ = checkpoint->step;
  owes_test_ = checkpoint->owes_test;
  std::copy(checkpoint->weights.begin(), checkpoint->weights.end(),
            learner_.replica().weights().begin());
  learner_.replica().weights_changed();
  optimiser_->moments() = std::move(checkpoint->moments);
  restore_own(checkpoint->workers[static_cast<std::size_t>(transport_.rank())]);
  return sent_bytes_ = checkpoint->sent_bytes;
}

void Peer::share_events(std::uint32_t step) {
  auto events = timeline_.take();
  if (!first()) {
    const std::string text = events.dump();
    auto transfer = transport_.send(0, kTimelineTag, std::as_bytes(std::span(text)));
    return transport_.wait(transfer);
  }
  for (int k = 1; k < transport_.workers(); ++k)
    append_events(events, transport_.receive_any_length(k, kTimelineTag));
  write_timeline(run_.options.timeline, events);
  log_->note(draw_timeline(events, step));
}

}  // namespace train
