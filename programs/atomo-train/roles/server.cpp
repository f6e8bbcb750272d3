// SPDX-License-Identifier: Apache-2.0
/// \file
/// The rounds of a server are implemented here: weights go out to the workers that wait for them,
/// gradients come in, and the optimiser takes a step. The lead begins each round, logs it and tells
/// the other servers what it has decided. The choice among messages that arrive is made in
/// server_arrivals.cpp; tests and checkpoints are in server_keeping.cpp.

#include "roles/server.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "learning/first_weights.hpp"
#include "learning/own_model.hpp"
#include "run/interrupt.hpp"

namespace train {
namespace {

atomo::Policy policy_of(const Run& run) { return atomo::Policy::parse(run.options.policy); }

std::unique_ptr<Coder> coder_of(const Run& run, const atomo::Policy& policy) {
  return make_coder(run.options, policy, run.threads);
}

/// Refuses what does not go together before anything is built on it.
const Plan& checked(const Plan& plan, const Run& run) {
  check_server_options(run.options, run.transport.workers());
  return plan;
}

WeightSender::Views views_of(const Plan& plan, const Options& options) {
  if (!down_policy(plan, options).empty()) return WeightSender::Views::encoded;
  return plan.remembers ? WeightSender::Views::remembered : WeightSender::Views::none;
}

std::span<const atomo::LayerSpec> layers_of(const Replica& replica, const Shard& shard) {
  return std::span(replica.layers()).subspan(shard.first, shard.last - shard.first);
}

}  // namespace

Server::Server(Run& run, const Plan& plan)
    : run_(run),
      transport_(run.transport),
      plan_(checked(plan, run)),
      task_(make_task(run.options)),
      replica_(make_first_replica(run.options, task_->input())),
      compressor_(replica_->layers(), policy_of_compressors(run.options, policy_of(run)),
                  {.device = run.options.encodes_on()}),
      shards_(cut_into_shards(
          replica_->layers(), policy_of_compressors(run.options, shard_policy(plan, run.options)),
          static_cast<std::size_t>(transport_.servers()), run.options.encodes_on())),
      shard_(shards_[static_cast<std::size_t>(transport_.rank())]),
      receiver_(transport_, compressor_, coder_of(run, policy_of(run)), *replica_, shard_.first,
                shard_.last, run.options.double_buffer ? 2 : 1, run.options.lazy > 0),
      sender_(transport_, shard_, coder_of(run, shard_policy(plan, run.options)), run.threads,
              views_of(plan, run.options), weights()),
      optimiser_(plan.rounds == Rounds::of_local_steps
                     ? run.make_outer_optimiser(layers_of(*replica_, shard_))
                     : run.make_optimiser(layers_of(*replica_, shard_))),
      gradient_(replica_->weights().size()),
      seats_(static_cast<std::size_t>(transport_.workers())),
      everybody_(seats_.size()) {
  std::iota(everybody_.begin(), everybody_.end(), std::size_t{0});
  restore();
  if (leads()) {
    log_.emplace(run.options, task_->measure(), transport_.workers(), compressor_.elements(),
                 sent_before_);
  }
}

bool Server::begin_round() {
  checkpoint_.reset();
  return leads() ? lead() : follow();
}

bool Server::lead() {
  if (in_round_)
    end_round();
  else if (owes_test_)
    make_up_test();
  if (!last_round_ && (stopped_ || step_ >= run_.last_step())) {
    dismiss();
    return false;
  }
  if (arrivals_ == 0) {
    const std::uint32_t steps = steps_of_round(plan_, run_.options, step_);
    step_began_ = Clock::now();
    timeline_ = Timeline(run_.records(step_, steps), kLead, "server");
  }
  order_servers({.what = What::train, .step = step_, .last = last_round_ ? 1U : 0U});
  return in_round_ = true;
}

bool Server::follow() {
  for (;;) {
    const Order order = receive_order();
    switch (order.what) {
      case What::train:
        step_ = order.step;
        last_round_ = order.last != 0;
        return in_round_ = true;
      case What::test: {
        const std::size_t worker = order.worker;
        sender_.send_plain(std::span(&worker, 1), weights());
        break;
      }
      case What::save:
        check_weights(weights(), order.step);
        (void)collect_state();
        break;
      case What::stop:
        if (order.missing != 0) transport_.await_end();
        return false;
      case What::accept:
      case What::drop:
        throw std::logic_error("a server was told of a message between two rounds");
    }
  }
}

void Server::end_round() {
  in_round_ = false;
  if (plan_.rounds == Rounds::of_an_arrival && ++arrivals_ < workers()) return;
  arrivals_ = 0;
  const std::uint32_t taken = steps_of_round(plan_, run_.options, step_);
  log_step(taken);
  const auto asks_to_stop = [](const StepReport& report) { return report.interrupted != 0; };
  stopped_ = last_round_ || std::any_of(reports_.begin(), reports_.end(), asks_to_stop);
  reports_.clear();
  dropped_.clear();
  step_ += taken;
  // Where a worker is a step ahead no checkpoint has these weights: the test is done now or never.
  const bool left_out = stopped_ && step_ < run_.last_step() && !ahead();
  owes_test_ = run_.tests_after(step_, taken) && (left_out || !test());
  stopped_ = stopped_ || owes_test_ || interrupted();
  // A worker that is a step ahead has to come back before its state can be kept.
  last_round_ = stopped_ && ahead();
  if (!last_round_ && run_.saves_after(step_, stopped_, taken)) save();
}

void Server::make_up_test() {
  owes_test_ = !test();
  stopped_ = owes_test_;
  if (stopped_ && run_.saves_after(step_, true, 0)) save();
}

void Server::log_step(std::uint32_t taken) {
  auto record = record_of(step_ + taken - 1, reports_);
  record.steps = taken;
  for (const auto& report : dropped_) {
    record.bytes += report.payload_bytes;
    record.sent += report.sent;
    record.received += report.received;
  }
  record.times.decode = receiver_.take_decode_milliseconds();
  const double rest =
      milliseconds(Clock::now() - step_began_) - record.times.compute - record.times.encode;
  record.times.wire = std::max(0.0, rest - record.times.decode);
  if (!events_.empty()) {
    auto events = std::exchange(events_, nlohmann::json::array());
    for (auto& event : timeline_.take()) events.push_back(std::move(event));
    write_timeline(run_.options.timeline, events);
    log_->note(draw_timeline(events, run_.options.at));
  }
  log_->step(record);
}

void Server::send_weights() {
  const std::size_t wanted = run_.options.double_buffer && in_round_ ? 2 : 1;
  for (;;) {
    std::vector<std::size_t> waiting;
    for (const std::size_t k : everybody_) {
      if (receiver_.outstanding(k) < wanted) waiting.push_back(k);
    }
    if (waiting.empty()) return;
    const auto ahead = static_cast<std::uint32_t>(receiver_.outstanding(waiting.front()));
    const std::uint32_t step = step_ + ahead;
    if (ahead != 0 && (last_round_ || step >= run_.last_step() || run_.saves_after(step, false))) {
      held_.assign(weights().begin(), weights().end());
      return;
    }
    give(waiting, step, held_.empty() ? std::span<const float>(weights()) : held_);
    held_.clear();
  }
}

void Server::give(std::span<const std::size_t> workers, std::uint32_t step,
                  std::span<const float> weights) {
  for (const std::size_t k : workers) {
    auto& seat = seats_[k];
    auto& errand = seat.errands[seat.given++ % seat.errands.size()];
    errand.step = plan_.rounds == Rounds::of_an_arrival ? seat.next_step++ : step;
    receiver_.expect(k, errand.step);
    if (leads()) {
      errand.transfer =
          transport_.receive(rank_of(k), kReportTag, writable_bytes_of(errand.report));
      order(rank_of(k), {.what = What::train, .step = errand.step});
    }
    if (plan_.rounds == Rounds::of_an_arrival)
      sender_.send(std::span(&k, 1), weights, {.seed = run_.options.seed, .step = errand.step});
  }
  if (plan_.rounds != Rounds::of_an_arrival)
    sender_.send(workers, weights, {.seed = run_.options.seed, .step = step});
}

std::span<float> Server::receive_mean() {
  if (!spares()) return take(everybody_);
  const std::size_t count = run_.options.aggregate;
  return take(leads() ? choose(count) : follow_choice(count));
}

std::span<float> Server::receive_any() {
  if (leads()) {
    source_ = first_to_arrive();
    order_servers({.what = What::accept, .worker = static_cast<std::uint32_t>(source_)});
  } else {
    source_ = receive_order().worker;
  }
  const std::uint32_t step = seats_[source_].oldest().step;
  const auto gradient = take(std::span(&source_, 1));
  // The optimiser takes out the loss scale of the server's step.
  const double theirs = run_.options.gradient_scale(step);
  if (theirs != gradient_scale()) {
    for (float& g : gradient) g *= static_cast<float>(gradient_scale() / theirs);
  }
  return gradient;
}

std::span<float> Server::receive_from(std::size_t worker) {
  source_ = worker;
  return take(std::span(&worker, 1));
}

std::span<float> Server::take(std::span<const std::size_t> workers) {
  receiver_.take_mean(workers, gradient_, timeline_);
  for (const std::size_t k : workers) take_report(k, reports_);
  return mine(std::span<float>(gradient_));
}

void Server::take_report(std::size_t worker, std::vector<StepReport>& reports) {
  auto& seat = seats_[worker];
  auto& errand = seat.oldest();
  ++seat.taken;
  if (!leads()) return;
  transport_.wait(errand.transfer);
  reports.push_back(errand.report);
  if (run_.records(errand.step, steps_of_round(plan_, run_.options, errand.step)))
    append_events(events_, transport_.receive_any_length(rank_of(worker), kTimelineTag));
}

void Server::take_step(std::span<float> gradient) {
  const std::uint32_t steps = steps_of_round(plan_, run_.options, step_);
  if (const auto dumped = run_.options.dumped(step_, steps)) {
    const auto model = whole(gradient);
    if (leads()) dump_gradient(run_.options, *replica_, *dumped, "mean", model);
  }
  const bool outer = plan_.rounds == Rounds::of_local_steps;
  const auto begin = Clock::now();
  optimiser_->take_step(weights(), gradient, outer ? step_ / run_.options.local_steps : step_);
  timeline_.span("optimiser", "", begin, Clock::now());
  const std::uint32_t done = step_ + steps;
  if (run_.tests_after(done, steps) || done >= run_.last_step()) check_weights(weights(), done);
}

std::vector<float> Server::of_elements(std::span<const float> of_layers) const {
  std::vector<float> factors;
  for (std::size_t i = shard_.first; i < shard_.last; ++i)
    factors.insert(factors.end(), replica_->layers()[i].shape.elements(), of_layers[i]);
  return factors;
}

}  // namespace train
