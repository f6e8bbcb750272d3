// SPDX-License-Identifier: Apache-2.0
#include "roles/server.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "interrupt.hpp"

namespace train {
namespace {

atomo::Policy policy_of(const Run& run) { return atomo::Policy::parse(run.options.policy); }

}  // namespace

Server::Server(Run& run, Rounds rounds)
    : run_(run),
      transport_(run.transport),
      rounds_(rounds),
      task_(make_task(run.options.model, run.options.data)),
      replica_(run.options.model, task_->input(), run.options.seed),
      compressor_(replica_.layers(), policy_of(run)),
      shards_(cut_into_shards(replica_.layers(), policy_of(run),
                              static_cast<std::size_t>(transport_.servers()))),
      shard_(shards_[static_cast<std::size_t>(transport_.rank())]),
      receiver_(transport_, compressor_, policy_of(run), replica_, shard_.first, shard_.last, 1),
      sender_(transport_, shard_),
      optimiser_(run.make_optimiser(
          std::span(replica_.layers()).subspan(shard_.first, shard_.last - shard_.first))),
      gradient_(replica_.weights().size()),
      everybody_(static_cast<std::size_t>(transport_.workers())),
      seats_(everybody_.size()) {
  std::iota(everybody_.begin(), everybody_.end(), std::size_t{0});
  restore();
  if (leads()) {
    log_.emplace(run.options, task_->measure(), transport_.workers(), compressor_.elements(),
                 sent_before_);
  }
}

bool Server::begin_round() { return leads() ? lead() : follow(); }

bool Server::lead() {
  if (in_round_) end_round();
  if (stopped_ || step_ >= run_.last_step()) {
    dismiss();
    return false;
  }
  if (arrivals_ == 0) {
    step_began_ = Clock::now();
    timeline_ = Timeline(run_.records(step_), kLead, "server");
  }
  order_servers({What::train, step_});
  return in_round_ = true;
}

bool Server::follow() {
  for (;;) {
    const Order order = receive_order();
    switch (order.what) {
      case What::train:
        step_ = order.step;
        return true;
      case What::test:
        sender_.send(everybody_, replica_.weights());
        break;
      case What::save:
        (void)collect_state();
        break;
      case What::stop:
        return false;
      case What::accept:
        throw std::logic_error("a server was told of a message between two rounds");
    }
  }
}

void Server::send_weights() {
  std::vector<std::size_t> waiting;
  for (const std::size_t k : everybody_) {
    if (receiver_.outstanding(k) == 0) waiting.push_back(k);
  }
  for (const std::size_t k : waiting) {
    auto& seat = seats_[k];
    seat.step = rounds_ == Rounds::of_an_arrival ? seat.next_step++ : step_;
    receiver_.expect(k, seat.step);
    if (!leads()) continue;
    const int rank = transport_.rank_of_worker(static_cast<int>(k));
    seat.report_transfer = transport_.receive(rank, kReportTag, writable_bytes_of(seat.report));
    order(rank, {What::train, seat.step});
  }
  if (!waiting.empty()) sender_.send(waiting, replica_.weights());
}

std::span<float> Server::receive_mean() {
  receiver_.take_mean(everybody_, gradient_, timeline_);
  for (const std::size_t k : everybody_) take_report(k);
  return gradient_;
}

std::span<float> Server::receive_any() {
  if (leads()) {
    source_ = first_to_arrive();
    order_servers({What::accept, step_, static_cast<std::uint32_t>(source_)});
  } else {
    source_ = receive_order().worker;
  }
  receiver_.take_mean(std::span(&source_, 1), gradient_, timeline_);
  take_report(source_);
  // The optimiser takes out the loss scale of its own step.
  const double scale = run_.options.gradient_scale(step_),
               theirs = run_.options.gradient_scale(seats_[source_].step);
  if (scale != theirs) {
    for (float& g : mine(gradient_)) g *= static_cast<float>(scale / theirs);
  }
  return gradient_;
}

void Server::take_step(std::span<float> gradient) {
  if (run_.options.dumps(step_)) {
    collect(gradient);
    if (leads()) dump_gradient(run_.options, replica_, step_, "mean", gradient);
  }
  const auto begin = Clock::now();
  optimiser_->take_step(mine(replica_.weights()), mine(gradient), step_);
  timeline_.span("optimiser", "", begin, Clock::now());
}

std::uint32_t Server::steps_of_round() const {
  const std::uint32_t wanted =
      rounds_ == Rounds::of_local_steps ? run_.options.local_steps : std::uint32_t{1};
  return std::min(wanted, run_.options.steps - step_);
}

bool Server::here(std::size_t worker) {
  return receiver_.arrived(worker) && (!leads() || transport_.done(seats_[worker].report_transfer));
}

std::size_t Server::first_to_arrive() {
  Transport::Patience patience(transport_);
  std::vector<int> awaited;
  for (;;) {
    awaited.clear();
    for (std::size_t i = 1; i <= everybody_.size(); ++i) {
      const std::size_t k = (source_ + i) % everybody_.size();  // nobody's turn comes twice at once
      if (receiver_.outstanding(k) == 0) continue;
      if (here(k)) return k;
      awaited.push_back(transport_.rank_of_worker(static_cast<int>(k)));
    }
    patience.idle(awaited);
  }
}

void Server::wait_for_arrivals() {
  Transport::Patience patience(transport_);
  std::vector<int> awaited;
  for (;;) {
    awaited.clear();
    for (const std::size_t k : everybody_) {
      if (receiver_.outstanding(k) != 0 && !here(k))
        awaited.push_back(transport_.rank_of_worker(static_cast<int>(k)));
    }
    if (awaited.empty()) return;
    patience.idle(awaited);
  }
}

void Server::take_report(std::size_t worker) {
  if (!leads()) return;
  auto& seat = seats_[worker];
  transport_.wait(seat.report_transfer);
  reports_.push_back(seat.report);
  if (run_.records(seat.step)) {
    append_events(events_, transport_.receive_any_length(
                               transport_.rank_of_worker(static_cast<int>(worker)), kTimelineTag));
  }
}

void Server::end_round() {
  in_round_ = false;
  const std::uint32_t taken = steps_of_round();
  if (rounds_ == Rounds::of_an_arrival && ++arrivals_ < everybody_.size()) return;
  arrivals_ = 0;
  log_step(step_ + taken - 1);
  stopped_ = std::any_of(reports_.begin(), reports_.end(),
                         [](const auto& report) { return report.interrupted != 0; });
  reports_.clear();
  step_ += taken;
  if (run_.tests_after(step_, taken) && !stopped_) test();
  stopped_ = stopped_ || interrupted();
  if (run_.saves_after(step_, stopped_, taken)) save();
}

void Server::log_step(std::uint32_t step) {
  auto record = record_of(step, reports_);
  record.times.decode = receiver_.take_decode_milliseconds();
  const double rest =
      milliseconds(Clock::now() - step_began_) - record.times.compute - record.times.encode;
  record.times.wire = std::max(0.0, rest - record.times.decode);
  if (!events_.empty()) {
    auto events = std::exchange(events_, nlohmann::json::array());
    for (auto& event : timeline_.take()) events.push_back(std::move(event));
    write_timeline(run_.options.timeline, events);
    log_->note(draw_timeline(events, step));
  }
  log_->step(record);
}

}  // namespace train
