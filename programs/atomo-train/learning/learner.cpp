// SPDX-License-Identifier: Apache-2.0
/// \file
/// A learner puts the task, the worker's share of the samples, the network and the compressor
/// together. Its `backward` gathers a step's batch, runs the network over it and ends the run when
/// the loss is not a finite number. `test_samples` and `dump_gradient` are separate functions
/// because servers and `atomo-train evaluate` call them too.

#include "learning/learner.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "exchange/coder.hpp"
#include "files/stored_tensors.hpp"
#include "learning/first_weights.hpp"
#include "learning/optimiser.hpp"
#include "learning/own_model.hpp"
#include "run/interrupt.hpp"

namespace train {
namespace {

/// Scales `values` down where their Euclidean norm is above `most`. Those that are not all finite stay as
/// they are: they end the run.
void scale_to_norm(std::span<float> values, double most) {
  double squares = 0;
  for (const float v : values) squares += double{v} * v;
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm) || norm <= most) return;
  for (float& v : values) v = static_cast<float>(v * (most / norm));
}

}  // namespace

void dump_gradient(const Options& options, const Replica& replica, std::uint32_t step,
                   const std::string& whose, std::span<const float> gradient) {
  if (!options.dumped(step)) return;
  std::filesystem::create_directories(options.dump_gradients);
  std::vector<StoredTensor> tensors;
  for (std::size_t i = 0; i < replica.layers().size(); ++i) {
    const auto& layer = replica.layers()[i];
    const auto dims = layer.shape.dims();
    tensors.push_back({layer.name,
                       "F32",
                       {dims.begin(), dims.end()},
                       text_of(gradient.subspan(replica.offset(i), layer.shape.elements()))});
  }
  write_safetensors(
      options.dump_gradients + "/step" + std::to_string(step) + "-" + whose + ".safetensors",
      tensors, {{"model", options.model}, {"step", std::to_string(step)}});
}

Score test_samples(const Task& task, Replica& replica, std::size_t first, std::size_t count,
                   std::size_t batch_size, const std::function<void(std::size_t)>& after,
                   std::vector<Prediction>* each, bool whole) {
  std::vector<std::uint32_t> which(count);
  std::iota(which.begin(), which.end(), static_cast<std::uint32_t>(first));
  Batch batch;
  Score total;
  for (std::size_t at = 0; at < count; at += batch_size) {
    if (!whole && interrupted()) {
      total.broken_off = 1;
      break;
    }
    const std::size_t samples = std::min(batch_size, count - at);
    task.gather(Split::test, std::span(which).subspan(at, samples), batch);
    total += replica.evaluate(batch, each);
    after(at + samples);
  }
  return total;
}

Learner::Learner(const Options& options, int worker, int workers, std::function<void()> breathe)
    : options_(options),
      worker_(worker),
      workers_(workers),
      breathe_(std::move(breathe)),
      task_(make_task(options)),
      order_(share_of(SplitSpec::parse(options.split),
                      {task_->samples(Split::train), task_->labels(), task_->classes()},
                      static_cast<std::size_t>(worker), static_cast<std::size_t>(workers),
                      options.seed),
             options.batch, options.seed),
      replica_(make_first_replica(options, task_->input(), options.gpu)),
      policy_(options.policy_at(0)),
      compressor_(compressor_of(policy_)),
      augmentation_(Augmentation::parse(options.augment)) {
  batch_.smoothing = options.label_smoothing;
  if (options.share_by_rate == 0) return;
  std::vector<double> rates(options.steps);
  for (std::uint32_t step = 0; step < options.steps; ++step)
    rates[step] = options.learning_rate(step);
  const double kept = first_moment_of(options.optimizer, options.momentum, options.beta1);
  shares_ = atomo::budget_shares(rates, options.share_by_rate, 0.1, kept);
}

atomo::Compressor Learner::compressor_of(const std::string& policy) const {
  return {replica_->layers(),
          policy_of_compressors(options_, atomo::Policy::parse(policy)),
          {.device = options_.encodes_on()}};
}

bool Learner::take_policy(std::uint32_t step) {
  auto policy = options_.policy_at(step);
  if (policy == policy_) return false;
  auto next = compressor_of(policy);
  next.load(compressor_.save());
  compressor_ = std::move(next);
  policy_ = std::move(policy);
  return true;
}

void Learner::to_host(std::span<const float> computed, std::span<float> copy) const {
  if (options_.on_device()) return device_to_host(computed, copy);
  std::ranges::copy(computed, copy.begin());
}

atomo::Key Learner::key(std::uint32_t step) const noexcept {
  return {.seed = options_.seed, .step = step, .worker = static_cast<std::uint16_t>(worker_)};
}

void Learner::take_share(std::uint32_t step) {
  if (step < shares_.size()) compressor_.set_budget_share(shares_[step]);
}

void Learner::gather(std::uint32_t step) {
  const auto samples = order_.samples(step);
  task_->gather(Split::train, samples, batch_);
  batch_.step = step;
  batch_.worker = static_cast<std::uint32_t>(worker_);
  if (!augmentation_.any()) return;
  const auto shape = std::get<ImageShape>(task_->input());
  for (std::size_t k = 0; k < samples.size(); ++k) {
    move_image(draw_move(augmentation_, options_.seed, order_.epoch(step), samples[k]), shape,
               task_->black(),
               std::span(batch_.pixels).subspan(k * shape.pixels(), shape.pixels()));
  }
}

double Learner::backward(std::uint32_t step, const Replica::OnGradient& on_gradient) {
  gather(step);
  const double scale = options_.gradient_scale(step);
  const auto began = std::chrono::steady_clock::now();
  const bool whole = options_.clip_norm > 0 || options_.dumped(step);
  const double loss = whole ? backward_whole(step, scale, on_gradient)
                            : replica_->backward(batch_, scale, on_gradient);
  if (options_.slow_factor > 1) drag(began, options_.slow_factor);
  if (!std::isfinite(loss)) {
    throw std::runtime_error("the loss at step " + std::to_string(step) + " is " +
                             std::to_string(loss) +
                             ": the training diverged; lower --lr or take a codec with less error");
  }
  return loss;
}

double Learner::backward_whole(std::uint32_t step, double scale,
                               const Replica::OnGradient& on_gradient) {
  gradient_.assign(replica_->weights().size(), 0);
  std::vector<std::span<const float>> parts(replica_->layers().size());
  std::vector<std::size_t> order;
  const double loss =
      replica_->backward(batch_, scale, [&](std::size_t layer, std::span<const float> computed) {
        const auto part = std::span(gradient_).subspan(replica_->offset(layer), computed.size());
        to_host(computed, part);
        parts[layer] = part;
        order.push_back(layer);
        breathe_();
      });
  if (options_.clip_norm > 0) scale_to_norm(gradient_, options_.clip_norm * scale);
  dump_gradient(options_, *replica_, step, "worker" + std::to_string(worker_ + 1), gradient_);
  for (const std::size_t layer : order) on_gradient(layer, parts[layer]);
  return loss;
}

void Learner::drag(std::chrono::steady_clock::time_point began, double factor) const {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  while (std::chrono::steady_clock::now() - began < took * factor) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    breathe_();
  }
}

Score Learner::evaluate(std::uint32_t done, bool all) {
  if (all) return evaluate_part(done, 0, 1);
  return evaluate_part(done, static_cast<std::size_t>(worker_), static_cast<std::size_t>(workers_));
}

Score Learner::evaluate_part(std::uint32_t done, std::size_t part, std::size_t parts, bool whole) {
  const std::size_t samples = task_->samples(Split::test);
  const std::size_t count = options_.eval_samples == 0 || done == options_.steps
                                ? samples
                                : std::min<std::size_t>(options_.eval_samples, samples);
  const std::size_t begin = count * part / parts, end = count * (part + 1) / parts;
  return test_samples(
      *task_, *replica_, begin, end - begin, options_.test_batch,
      [this](std::size_t) { breathe_(); }, nullptr, whole);
}

std::uint32_t steps_of_epochs(const Options& options, int workers) {
  const auto task = make_task(options);
  return steps_of_epochs(options.epochs, SplitSpec::parse(options.split),
                         {task->samples(Split::train), task->labels(), task->classes()},
                         options.batch, static_cast<std::size_t>(workers), options.seed);
}

WorkerState Learner::state() const { return {compressor_.save(), replica_->buffers()}; }

void Learner::restore(const WorkerState& state) {
  compressor_.load(state.compressor);
  replica_->set_buffers(state.buffers);
}

}  // namespace train
