// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the algorithms share: when to test, save and stop, and the mean state that goes on.

#include <memory>
#include <optional>
#include <string>

#include "command_line/options.hpp"
#include "exchange/threads.hpp"
#include "exchange/transport.hpp"
#include "files/checkpoint.hpp"
#include "learning/optimiser.hpp"
#include "learning/replica.hpp"
#include "run/log.hpp"

namespace train {

struct Run {
  const Options& options;
  Transport& transport;
  Threads& threads;  ///< of this process

  [[nodiscard]] std::uint32_t last_step() const;  ///< exclusive
  /// Whether a run of `done` steps that goes on had come to its end: a test is all that is to do.
  [[nodiscard]] bool was_finished(std::uint32_t done) const;
  /// `done`: steps finished so far, the last `steps` of them since this was asked before.
  [[nodiscard]] bool tests_after(std::uint32_t done, std::uint32_t steps = 1) const;
  /// `stopped`: no further step follows, whatever the options say.
  [[nodiscard]] bool saves_after(std::uint32_t done, bool stopped, std::uint32_t steps = 1) const;
  /// Whether the step to record is among `steps` from `step` on.
  [[nodiscard]] bool records(std::uint32_t step, std::uint32_t steps = 1) const {
    return !options.timeline.empty() && options.at - step < steps;
  }
  /// Writes a checkpoint where --save wants it, and with --keep-checkpoints under its own name, too.
  /// \throws std::runtime_error naming the file that cannot be written.
  void save(const Checkpoint& checkpoint, const std::vector<atomo::LayerSpec>& layers) const;
  /// The checkpoint of --resume, if there is one.
  [[nodiscard]] std::optional<Checkpoint> resume(const Replica& replica) const;
  /// The run's, for weights that are `layers`, one behind the other.
  [[nodiscard]] std::unique_ptr<Optimiser> make_optimiser(
      std::span<const atomo::LayerSpec> layers) const;
  /// Whose gradient is what local steps changed: that of --outer-optimizer, at a constant rate.
  [[nodiscard]] std::unique_ptr<Optimiser> make_outer_optimiser(
      std::span<const atomo::LayerSpec> layers) const;
};

/// What one process tells about its step.
struct StepReport {
  double loss = 0;
  std::uint64_t correct = 0, predictions = 0;  ///< of its forward passes
  double compute = 0, encode = 0;              ///< milliseconds
  double beside = 0;                           ///< milliseconds of encoding that held up nothing
  std::uint64_t payload_bytes = 0;             ///< every message once
  std::uint64_t squares_bytes = 0;             ///< of what is told of squares, once
  std::uint64_t reduced_bytes = 0;             ///< of what all-reduces add up, once
  std::uint64_t sent = 0, received = 0;        ///< bytes to and from others, every copy
  std::uint64_t interrupted = 0;
  std::uint64_t refused = 0, refusal = 0;  ///< 1 + the rank whose payload was refused, and why

  /// Adds what a forward pass predicted.
  void count(const Score& score) {
    correct += score.correct;
    predictions += score.predictions;
  }
};

/// Sums over workers in rank order. `wire` and `decode` are left for the caller.
[[nodiscard]] StepRecord record_of(std::uint32_t step, std::span<const StepReport> reports);
/// result[i] = mean over workers, added in rank order; `all` holds them one behind the other.
[[nodiscard]] std::vector<float> mean_over_workers(std::span<const float> all, std::size_t workers);
/// Scores added in rank order; none when one was broken off.
[[nodiscard]] std::optional<Score> total_of(std::span<const Score> scores);

/// True when no process has an error; rank 0 prints those there are, each once. Every process calls
/// it.
[[nodiscard]] bool all_ready(Transport& transport, const std::string& error);

/// Sets a process's role up; null for all of them when one cannot.
template <class Role, class... Arguments>
[[nodiscard]] std::unique_ptr<Role> prepare(Run& run, Arguments... arguments) {
  std::unique_ptr<Role> role;
  std::string error;
  try {
    role = std::make_unique<Role>(run, arguments...);
  } catch (const std::exception& e) {
    error = e.what();
  }
  if (!all_ready(run.transport, error)) role.reset();
  run.transport.end_set_up();
  return role;
}

/// Does the work of a role. What it throws ends the job here, while the role is there: transfers
/// that are posted write into its memory as long as MPI is called.
template <class Work>
auto or_end_the_job(Transport& transport, const Work& work) {
  try {
    return work();
  } catch (const std::exception&) {
    transport.abort_for_exception();
  }
}

inline constexpr int kInterruptedStatus = 130;  ///< as of a shell whose command got Ctrl-C

enum class Outcome { finished, interrupted, cannot_start };

/// Runs `Role`, one of ranks that are all alike, to the end. It has `bool train(step)`, which takes
/// one or more steps from `step` on, as its `done()` then says, and returns whether a process was
/// interrupted, and `bool test(done)`, which returns whether it was not broken off. A test that was, or
/// that an interrupted run left out, is owed: no step follows, and the run that goes on begins with it. Its
/// `weights()` are looked at before they are tested or kept.
template <class Role>
Outcome run_peer(Run& run) {
  const auto peer = prepare<Role>(run);
  if (!peer) return Outcome::cannot_start;
  return or_end_the_job(run.transport, [&] {
    std::uint32_t done = peer->done();
    bool stopped = false;
    if (run.was_finished(done) || peer->owes_test()) {
      stopped = !peer->test(done);
      if (stopped && run.saves_after(done, true, 0)) peer->save(done, true);
    }
    while (done < run.last_step() && !stopped) {
      const std::uint32_t before = done;
      stopped = peer->train(before);
      done = peer->done();
      const bool at_end = done >= run.last_step();
      const bool tests = run.tests_after(done, done - before);
      if (tests || at_end || run.saves_after(done, stopped, done - before))
        check_weights(peer->weights(), done);
      const bool owes = tests && ((stopped && !at_end) || !peer->test(done));
      stopped = stopped || owes;
      if (run.saves_after(done, stopped, done - before)) peer->save(done, owes);
    }
    stopped = stopped && done < run.last_step();
    peer->finish(done, stopped);
    return stopped ? Outcome::interrupted : Outcome::finished;
  });
}

}  // namespace train
