// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What every training process has, whatever the algorithm: data, network, compressor.

#include <atomo/atomo.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "command_line/options.hpp"
#include "files/checkpoint.hpp"
#include "learning/augment.hpp"
#include "learning/data_order.hpp"
#include "learning/replica.hpp"
#include "learning/task.hpp"

namespace train {

class Learner {
 public:
  /// `worker` counts from 0. `breathe` is called now and then in long computations.
  /// \throws std::runtime_error, atomo::Error for missing data or a codec that does not fit.
  Learner(const Options& options, int worker, int workers, std::function<void()> breathe);

  [[nodiscard]] const Task& task() const noexcept { return *task_; }
  [[nodiscard]] Replica& replica() noexcept { return *replica_; }
  [[nodiscard]] atomo::Compressor& compressor() noexcept { return compressor_; }
  /// Of every draw of this worker in a step.
  [[nodiscard]] atomo::Key key(std::uint32_t step) const noexcept;

  /// Gives the compressor a step's share of its budgets, with --share-by-rate.
  void take_share(std::uint32_t step);

  /// Gives the compressor the policy of a step, with --sparsity-warmup; what it has learnt and its memories
  /// go on. Returns whether the policy is another: the compressor is where it was, all else of it is new.
  bool take_policy(std::uint32_t step);

  /// Forward and backward over this worker's samples of a step, under its loss scale, and a pause
  /// where --slow-rank wants one. With --clip-norm the layers' gradients are handed on once all are there, in host
  /// memory. Returns the mean loss.
  double backward(std::uint32_t step, const Replica::OnGradient& on_gradient);
  /// What the forward pass of the last call of `backward` predicted; see Replica::trained.
  [[nodiscard]] Score trained() const noexcept { return replica_->trained(); }
  /// Copies a gradient, where the network computed it, into host memory.
  void to_host(std::span<const float> computed, std::span<float> copy) const;
  /// This worker's share of the samples to test after `done` steps, or all of them. Breaks off when
  /// interrupted.
  [[nodiscard]] Score evaluate(std::uint32_t done, bool all = false);
  /// One of so many parts of them. `whole`: does not break off.
  [[nodiscard]] Score evaluate_part(std::uint32_t done, std::size_t part, std::size_t parts,
                                    bool whole = false);

  [[nodiscard]] WorkerState state() const;
  void restore(const WorkerState& state);

 private:
  /// The batch of a step, as training sees it.
  void gather(std::uint32_t step);
  /// `backward` where the gradient is clipped or dumped.
  double backward_whole(std::uint32_t step, double scale, const Replica::OnGradient& on_gradient);
  [[nodiscard]] atomo::Compressor compressor_of(const std::string& policy) const;
  /// Pauses until `factor` times the time since `began` is over.
  void drag(std::chrono::steady_clock::time_point began, double factor) const;

  const Options& options_;
  int worker_, workers_;
  std::function<void()> breathe_;
  std::unique_ptr<Task> task_;
  DataOrder order_;
  std::unique_ptr<Replica> replica_;
  std::string policy_;  ///< of the compressor
  atomo::Compressor compressor_;
  Augmentation augmentation_;
  std::vector<double> shares_;  ///< of the budget, a step each; empty where all have the whole
  Batch batch_;
  std::vector<float> gradient_;  ///< of a step whose gradient is needed whole
};

/// The steps of a run whose length is --epochs. \throws std::runtime_error for data that cannot be
/// read or do not go with the split and the workers.
[[nodiscard]] std::uint32_t steps_of_epochs(const Options& options, int workers);

/// Tests the network on the samples of the test from `first` on, `batch` at a time. Breaks off when
/// interrupted, unless it is to be `whole`. `after` is called now and then with the number of those that
/// are done; `each` as `Replica::evaluate` has it.
[[nodiscard]] Score test_samples(const Task& task, Replica& replica, std::size_t first,
                                 std::size_t count, std::size_t batch,
                                 const std::function<void(std::size_t done)>& after,
                                 std::vector<Prediction>* each = nullptr, bool whole = false);

/// Writes a gradient of the model into the folder of --dump-gradients, if `step` is one to
/// dump. `whose`: the end of the file's name.
void dump_gradient(const Options& options, const Replica& replica, std::uint32_t step,
                   const std::string& whose, std::span<const float> gradient);

}  // namespace train
