// SPDX-License-Identifier: Apache-2.0
/// \file
/// Parameter server (ATOMO, arXiv 1806.04090).
///
///   server, every step                          worker, every step
///   ------------------                          ------------------
///   send weights w                         -->  receive w
///   for every layer, as payloads come           back-propagate; for every layer, last one first:
///     g += decode(payload) / W, by rank    <--    send encode(gradient) without waiting
///       or, of coordinates at one step,
///     g = decode(sum of payloads) / W
///   w <- optimiser(w, g)
///
/// The server owns weights and optimiser. Workers own the codec's state and the running statistics
/// of batch normalisation, which are averaged over workers for testing and never travel otherwise.

#include <algorithm>
#include <atomo/atomo.hpp>

#include "algorithms/algorithms.hpp"
#include "exchange/gradient_stream.hpp"
#include "interrupt.hpp"
#include "learning/learner.hpp"
#include "run.hpp"

namespace train {
namespace {

constexpr int kServer = 0;

enum Tag : int {
  kOrderTag = 10,
  kWeightsTag,
  kReportTag,
  kBuffersTag,
  kMeanBuffersTag,
  kScoreTag,
  kStateTag,
  kTimelineTag
};

enum class What : std::uint32_t { train, test, save, stop };

struct Order {
  What what = What::stop;
  std::uint32_t step = 0;
};

class Server {
 public:
  explicit Server(Run& run)
      : run_(run),
        transport_(run.transport),
        workers_(static_cast<std::size_t>(transport_.workers())),
        task_(make_task(run.options.model, run.options.data)),
        replica_(run.options.model, task_->input(), run.options.seed),
        compressor_(replica_.layers(), atomo::Policy::parse(run.options.policy)),
        receiver_(transport_, compressor_, atomo::Policy::parse(run.options.policy), replica_),
        optimiser_(make_optimiser(run.options, replica_.weights().size())),
        gradient_(replica_.weights().size()),
        log_(run.options, task_->measure(), transport_.workers(), compressor_.elements(),
             restore()) {}

  [[nodiscard]] std::uint32_t first_step() const noexcept { return first_step_; }

  void send_weights(What what, std::uint32_t step) {
    step_began_ = Clock::now();
    if (what == What::train) receiver_.begin();
    const Order order{what, step};
    std::vector<Transfer> transfers;
    for (int k = 0; k < transport_.workers(); ++k) {
      const int rank = transport_.rank_of_worker(k);
      transfers.push_back(transport_.send(rank, kOrderTag, bytes_of(order)));
      transfers.push_back(transport_.send(rank, kWeightsTag, std::as_bytes(replica_.weights())));
    }
    transport_.wait(transfers);
  }

  void add_gradients(std::uint32_t step) {
    timeline_ = Timeline(run_.records(step), kServer, "server");
    receiver_.add_all(step, gradient_, timeline_);
  }

  void take_step(std::uint32_t step) {
    dump_gradient(run_.options, replica_, step, "mean", gradient_);
    const auto begin = Clock::now();
    optimiser_->take_step(replica_.weights(), gradient_, step);
    timeline_.span("optimiser", "", begin, Clock::now());
  }

  /// Returns whether a worker was interrupted.
  bool take_reports(std::uint32_t step) {
    const auto reports = receive_from_all<StepReport>(kReportTag);
    auto record = record_of(step, reports);
    record.bytes = receiver_.bytes();
    record.times.decode = receiver_.decode_milliseconds();
    const double rest =
        milliseconds(Clock::now() - step_began_) - record.times.compute - record.times.encode;
    record.times.wire = std::max(0.0, rest - record.times.decode);
    if (run_.records(step)) write_events(step);
    log_.step(record);
    return std::any_of(reports.begin(), reports.end(),
                       [](const auto& r) { return r.interrupted != 0; });
  }

  void test(std::uint32_t done) {
    send_weights(What::test, done);
    const std::size_t length = replica_.buffers().size();
    if (length != 0) {
      std::vector<float> all;
      for (std::size_t k = 0; k < workers_; ++k) {
        const auto bytes = transport_.receive_any_length(
            transport_.rank_of_worker(static_cast<int>(k)), kBuffersTag);
        const auto* values = reinterpret_cast<const float*>(bytes.data());
        all.insert(all.end(), values, values + bytes.size() / sizeof(float));
      }
      const auto mean = mean_over_workers(all, workers_);
      send_to_all(kMeanBuffersTag, std::as_bytes(std::span(mean)));
    }
    log_scores(log_, done, receive_from_all<Score>(kScoreTag));
  }

  void save(std::uint32_t done) {
    send_order(What::save, done);
    const auto weights = replica_.weights();
    Checkpoint checkpoint{run_.options.fingerprint(transport_.workers()),
                          done,
                          log_.sent_bytes(),
                          {weights.begin(), weights.end()},
                          optimiser_->moments(),
                          {}};
    for (int k = 0; k < transport_.workers(); ++k) {
      checkpoint.workers.push_back(WorkerState::unpack(
          transport_.receive_any_length(transport_.rank_of_worker(k), kStateTag)));
    }
    write_checkpoint(run_.options.save, checkpoint, replica_.layers());
    log_.checkpoint(done);
  }

  void dismiss(std::uint32_t done, bool stopped) {
    send_order(What::stop, done);
    log_.finish(done, stopped);
  }

 private:
  /// Returns the bytes that were sent before.
  std::uint64_t restore() {
    auto checkpoint = run_.resume(replica_);
    if (!checkpoint) return 0;
    first_step_ = checkpoint->step;
    std::copy(checkpoint->weights.begin(), checkpoint->weights.end(), replica_.weights().begin());
    optimiser_->moments() = std::move(checkpoint->moments);
    return checkpoint->sent_bytes;
  }

  void send_to_all(int tag, atomo::ConstBytes bytes) {
    std::vector<Transfer> transfers;
    for (int k = 0; k < transport_.workers(); ++k) {
      transfers.push_back(transport_.send(transport_.rank_of_worker(k), tag, bytes));
    }
    transport_.wait(transfers);
  }

  void send_order(What what, std::uint32_t step) {
    const Order order{what, step};
    send_to_all(kOrderTag, bytes_of(order));
  }

  template <class T>
  std::vector<T> receive_from_all(int tag) {
    std::vector<T> values(workers_);
    std::vector<Transfer> transfers;
    for (std::size_t k = 0; k < workers_; ++k) {
      transfers.push_back(transport_.receive(transport_.rank_of_worker(static_cast<int>(k)), tag,
                                             writable_bytes_of(values[k])));
    }
    transport_.wait(transfers);
    return values;
  }

  void write_events(std::uint32_t step) {
    auto events = timeline_.take();
    for (int k = 0; k < transport_.workers(); ++k) {
      append_events(events,
                    transport_.receive_any_length(transport_.rank_of_worker(k), kTimelineTag));
    }
    write_timeline(run_.options.timeline, events);
    log_.note(draw_timeline(events, step));
  }

  Run& run_;
  Transport& transport_;
  std::size_t workers_;
  std::uint32_t first_step_ = 0;
  std::unique_ptr<Task> task_;
  Replica replica_;
  atomo::Compressor compressor_;
  GradientReceiver receiver_;
  std::unique_ptr<Optimiser> optimiser_;
  std::vector<float> gradient_;
  Log log_;
  Timeline timeline_{false, kServer, ""};
  Clock::time_point step_began_;
};

class Worker {
 public:
  explicit Worker(Run& run)
      : run_(run),
        transport_(run.transport),
        learner_(run.options, transport_.rank() - 1, transport_.workers(),
                 [this] { transport_.breathe(); }),
        sender_(transport_, learner_, kServer) {
    if (const auto checkpoint = run.resume(learner_.replica())) {
      learner_.restore(checkpoint->workers[static_cast<std::size_t>(transport_.rank() - 1)]);
    }
  }

  [[nodiscard]] Order receive_order() {
    Order order;
    receive(kOrderTag, writable_bytes_of(order));
    return order;
  }

  void train(std::uint32_t step) {
    receive(kWeightsTag, std::as_writable_bytes(learner_.replica().weights()));
    Timeline timeline(run_.records(step), transport_.rank(), transport_.name(transport_.rank()));
    if (transport_.rank() == 1 && run_.options.corrupt_payload_at == step) sender_.corrupt_next();
    const auto begin = Clock::now();
    sender_.begin(step);
    StepReport report;
    report.loss = learner_.backward(step, [&](std::size_t layer, std::span<const float> gradient) {
      sender_.push(layer, gradient, timeline);
    });
    const auto end = Clock::now();
    timeline.span("forward", "", begin, learner_.replica().backward_began());
    timeline.span("backward", "", learner_.replica().backward_began(), end);
    sender_.finish();
    timeline.instant("all sent", "", Clock::now());
    report.encode = sender_.encode_milliseconds();
    report.compute = milliseconds(end - begin) - report.encode;
    report.payload_bytes = report.sent = sender_.bytes();
    report.received = std::as_bytes(learner_.replica().weights()).size();
    report.interrupted = interrupted() ? 1 : 0;
    send(kReportTag, bytes_of(report));
    if (timeline.on()) {
      const std::string text = timeline.take().dump();
      send(kTimelineTag, std::as_bytes(std::span(text)));
    }
  }

  void test(std::uint32_t done) {
    receive(kWeightsTag, std::as_writable_bytes(learner_.replica().weights()));
    const auto own = learner_.replica().buffers();
    if (!own.empty()) {
      std::vector<float> mean(own.size());
      send(kBuffersTag, std::as_bytes(std::span(own)));
      receive(kMeanBuffersTag, std::as_writable_bytes(std::span(mean)));
      learner_.replica().set_buffers(mean);
    }
    const auto score = learner_.evaluate(done);
    learner_.replica().set_buffers(own);
    send(kScoreTag, bytes_of(score));
  }

  void send_state() { send(kStateTag, learner_.state().pack()); }

 private:
  void send(int tag, atomo::ConstBytes bytes) {
    auto transfer = transport_.send(kServer, tag, bytes);
    transport_.wait(transfer);
  }
  void receive(int tag, atomo::Bytes bytes) {
    auto transfer = transport_.receive(kServer, tag, bytes);
    transport_.wait(transfer);
  }

  Run& run_;
  Transport& transport_;
  Learner learner_;
  GradientSender sender_;
};

Outcome serve(Run& run) {
  const auto server = prepare<Server>(run);
  if (!server) return Outcome::cannot_start;
  std::uint32_t step = server->first_step();
  bool stopped = false;
  while (step < run.last_step() && !stopped) {
    server->send_weights(What::train, step);
    server->add_gradients(step);
    server->take_step(step);
    stopped = server->take_reports(step);
    ++step;
    if (run.tests_after(step) && !stopped) server->test(step);
    stopped = stopped || interrupted();
    if (run.saves_after(step, stopped)) server->save(step);
  }
  stopped = stopped && step < run.last_step();
  server->dismiss(step, stopped);
  return stopped ? Outcome::interrupted : Outcome::finished;
}

Outcome work(Run& run) {
  const auto worker = prepare<Worker>(run);
  if (!worker) return Outcome::cannot_start;
  for (;;) {
    const Order order = worker->receive_order();
    switch (order.what) {
      case What::train:
        worker->train(order.step);
        break;
      case What::test:
        worker->test(order.step);
        break;
      case What::save:
        worker->send_state();
        break;
      case What::stop:
        return Outcome::finished;
    }
  }
}

}  // namespace

Outcome parameter_server(Run& run) {
  return run.transport.rank() == kServer ? serve(run) : work(run);
}

}  // namespace train
