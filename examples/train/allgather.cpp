// SPDX-License-Identifier: Apache-2.0
/// \file
/// All-gather of payloads: no server, every rank holds the same weights and takes the same step.
///
///   every rank, every step
///   ----------------------
///   g_k <- back-propagation over this rank's samples
///   payload <- encode(g_k), the whole model at one price
///   lengths <- all-gather(length of payload)
///   payloads <- all-gather(payload, padded to the longest)
///   g <- sum over ranks, in rank order, of decode(payload) / W
///   w <- optimiser(w, g)

#include <algorithm>
#include <atomo/atomo.hpp>
#include <optional>
#include <stdexcept>

#include "exchange.hpp"
#include "interrupt.hpp"
#include "learner.hpp"
#include "run.hpp"
#include "timeline.hpp"

namespace train {
namespace {

constexpr int kStateTag = 10, kTimelineTag = 11;

class Peer {
 public:
  explicit Peer(Run& run)
      : run_(run),
        transport_(run.transport),
        workers_(static_cast<std::size_t>(transport_.workers())),
        learner_(run.options, transport_.rank(), transport_.workers(),
                 [this] { transport_.breathe(); }),
        optimiser_(make_optimiser(run.options, learner_.replica().weights().size())),
        exchange_(run.options.on_device()
                      ? make_device_exchange(learner_.compressor(),
                                             atomo::Policy::parse(run.options.policy), workers_,
                                             run.options.cuda_aware_mpi)
                      : make_host_exchange(learner_.compressor(), workers_)) {
    const std::uint64_t sent_before = restore();
    if (first())
      log_.emplace(run.options, learner_.task().measure(), transport_.workers(),
                   learner_.compressor().elements(), sent_before);
  }

  [[nodiscard]] std::uint32_t first_step() const noexcept { return first_step_; }

  void compute_gradient(std::uint32_t step) {
    timeline_ = Timeline(run_.records(step), transport_.rank(), transport_.name(transport_.rank()));
    step_began_ = Clock::now();
    auto& replica = learner_.replica();
    report_ = {};
    report_.loss = learner_.backward(step, [&](std::size_t layer, std::span<const float> gradient) {
      timeline_.instant("gradient", replica.layers()[layer].name, Clock::now());
      exchange_->put(layer, gradient);
      transport_.breathe();
    });
    const auto end = Clock::now();
    report_.compute = milliseconds(end - step_began_);
    timeline_.span("forward", "", step_began_, replica.backward_began());
    timeline_.span("backward", "", replica.backward_began(), end);
  }

  void encode(std::uint32_t step) {
    const auto begin = Clock::now();
    const auto [status, bytes] = exchange_->encode(learner_.key(step));
    if (atomo::failed(status)) {
      throw std::runtime_error("cannot encode the gradient of step " + std::to_string(step) + ": " +
                               std::string(atomo::describe(status)));
    }
    report_.payload_bytes = bytes;
    if (transport_.rank() == 0 && run_.options.corrupt_payload_at == step) exchange_->corrupt();
    const auto end = Clock::now();
    report_.encode = milliseconds(end - begin);
    report_.interrupted = interrupted() ? 1 : 0;
    timeline_.span("encode", "", begin, end);
  }

  /// Lengths first, with the rest of the report; then payloads, padded to the longest.
  void gather_payloads() {
    const auto begin = Clock::now();
    reports_ = gather(report_);
    std::size_t longest = 0;
    for (const auto& report : reports_)
      longest = std::max<std::size_t>(longest, report.payload_bytes);
    if (longest > learner_.compressor().max_encoded_bytes())
      throw std::runtime_error("a payload is longer than this model's can be");
    auto transfer =
        transport_.all_gather(exchange_->outgoing(longest), exchange_->incoming(longest));
    transport_.wait(transfer);
    const auto end = Clock::now();
    wire_ = milliseconds(end - begin);
    timeline_.span("all-gather", "", begin, end);
  }

  void decode_add_all(std::uint32_t step) {
    const auto begin = Clock::now();
    std::vector<std::uint64_t> bytes;
    for (const auto& report : reports_) bytes.push_back(report.payload_bytes);
    const auto statuses = exchange_->add_all(bytes);
    const auto refused = std::find_if(statuses.begin(), statuses.end(), atomo::failed);
    if (refused != statuses.end()) {
      const auto rank = static_cast<int>(refused - statuses.begin());
      throw Fault(rank, transport_.name(rank) + " sent a payload that is refused, step " +
                            std::to_string(step) + ": " + std::string(atomo::describe(*refused)));
    }
    const auto end = Clock::now();
    decode_ = milliseconds(end - begin);
    timeline_.span("decode", "", begin, end);
  }

  /// Returns whether any process was interrupted.
  bool take_step(std::uint32_t step) {
    optimiser_->step(learner_.replica().weights(), exchange_->sum(),
                     run_.options.learning_rate(step), step);
    learner_.replica().weights_changed();
    auto record = record_of(step, reports_);
    record.times.wire = wire_;
    record.times.decode = decode_;
    if (run_.records(step)) share_events(step);
    if (first()) log_->step(record);
    sent_bytes_ += record.bytes;
    return std::any_of(reports_.begin(), reports_.end(),
                       [](const auto& r) { return r.interrupted != 0; });
  }

  void test(std::uint32_t done) {
    auto& replica = learner_.replica();
    const auto own = replica.buffers();
    if (!own.empty()) {
      std::vector<float> all(own.size() * workers_);
      auto transfer = transport_.all_gather(std::as_bytes(std::span(own)),
                                            std::as_writable_bytes(std::span(all)));
      transport_.wait(transfer);
      replica.set_buffers(mean_over_workers(all, workers_));
    }
    const auto scores = gather(learner_.evaluate(done));
    replica.set_buffers(own);
    if (first()) log_scores(*log_, done, scores);
  }

  void save(std::uint32_t done) {
    const auto own = learner_.state().pack();
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
                          {WorkerState::unpack(own)}};
    for (int k = 1; k < transport_.workers(); ++k) {
      checkpoint.workers.push_back(
          WorkerState::unpack(transport_.receive_any_length(k, kStateTag)));
    }
    write_checkpoint(run_.options.save, checkpoint, learner_.replica().layers());
    log_->checkpoint(done);
  }

  void finish(std::uint32_t done, bool stopped) {
    if (first()) log_->finish(done, stopped);
  }

 private:
  [[nodiscard]] bool first() const noexcept { return transport_.rank() == 0; }

  /// Returns the bytes that were sent before.
  std::uint64_t restore() {
    auto checkpoint = run_.resume(learner_.replica());
    if (!checkpoint) return 0;
    first_step_ = checkpoint->step;
    std::copy(checkpoint->weights.begin(), checkpoint->weights.end(),
              learner_.replica().weights().begin());
    learner_.replica().weights_changed();
    optimiser_->moments() = std::move(checkpoint->moments);
    learner_.restore(checkpoint->workers[static_cast<std::size_t>(transport_.rank())]);
    return sent_bytes_ = checkpoint->sent_bytes;
  }

  template <class T>
  std::vector<T> gather(const T& mine) {
    std::vector<T> all(workers_);
    auto transfer = transport_.all_gather(bytes_of(mine), std::as_writable_bytes(std::span(all)));
    transport_.wait(transfer);
    return all;
  }

  void share_events(std::uint32_t step) {
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

  Run& run_;
  Transport& transport_;
  std::size_t workers_;
  std::uint32_t first_step_ = 0;
  std::uint64_t sent_bytes_ = 0;
  Learner learner_;
  std::unique_ptr<Optimiser> optimiser_;
  std::unique_ptr<Exchange> exchange_;
  StepReport report_;
  std::vector<StepReport> reports_;
  double wire_ = 0, decode_ = 0;
  Timeline timeline_{false, 0, ""};
  Clock::time_point step_began_;
  std::optional<Log> log_;
};

}  // namespace

Outcome all_gather(Run& run) {
  const auto peer = prepare<Peer>(run);
  if (!peer) return Outcome::cannot_start;
  std::uint32_t step = peer->first_step();
  bool stopped = false;
  while (step < run.last_step() && !stopped) {
    peer->compute_gradient(step);
    peer->encode(step);
    peer->gather_payloads();
    peer->decode_add_all(step);
    stopped = peer->take_step(step);
    ++step;
    if (run.tests_after(step) && !stopped) peer->test(step);
    if (run.saves_after(step, stopped)) peer->save(step);
  }
  stopped = stopped && step < run.last_step();
  peer->finish(step, stopped);
  return stopped ? Outcome::interrupted : Outcome::finished;
}

}  // namespace train
