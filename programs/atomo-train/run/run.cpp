// SPDX-License-Identifier: Apache-2.0
/// \file
/// The schedule of tests, checkpoints and the last step is computed here from the options, and the
/// optimisers are made from them. The other functions combine what all processes report into one
/// record, one score or one mean. `all_ready` lets a run begin only when no process has an error.

#include "run/run.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

#include "learning/own_model.hpp"

namespace train {
namespace {

/// Whether a multiple of `every` is among the last `steps` of `done` steps.
bool comes_round(std::uint32_t every, std::uint32_t done, std::uint32_t steps) {
  return every != 0 && done / every != (done - steps) / every;
}

}  // namespace

std::uint32_t Run::last_step() const {
  return options.stop_at == 0 ? options.steps : std::min(options.stop_at, options.steps);
}

bool Run::was_finished(std::uint32_t done) const { return done > 0 && done >= options.steps; }

bool Run::tests_after(std::uint32_t done, std::uint32_t steps) const {
  return done == options.steps || comes_round(options.eval_every, done, steps);
}

bool Run::saves_after(std::uint32_t done, bool stopped, std::uint32_t steps) const {
  if (options.save.empty()) return false;
  return done >= last_step() || stopped || comes_round(options.save_every, done, steps);
}

void Run::save(const Checkpoint& checkpoint, const std::vector<atomo::LayerSpec>& layers) const {
  namespace fs = std::filesystem;
  write_checkpoint(options.save, checkpoint, layers);
  if (!options.keep_checkpoints) return;
  const fs::path newest(options.save);
  fs::path kept = newest;
  kept.replace_filename(newest.stem().string() + "-step" + std::to_string(checkpoint.step) +
                        newest.extension().string());
  // The newest is replaced, not written to: a second name keeps what it is now.
  std::error_code error;
  fs::remove(kept, error);
  fs::create_hard_link(newest, kept, error);
  if (error) fs::copy_file(newest, kept, fs::copy_options::overwrite_existing);
}

std::optional<Checkpoint> Run::resume(const Replica& replica) const {
  if (options.resume.empty()) return std::nullopt;
  return read_checkpoint(options.resume, replica.layers(),
                         options.fingerprint(transport.workers()));
}

std::unique_ptr<Optimiser> Run::make_optimiser(std::span<const atomo::LayerSpec> layers) const {
  OptimiserSettings settings;
  settings.learning_rate = [this](std::uint32_t step) { return options.learning_rate(step); };
  settings.gradient_scale = [this](std::uint32_t step) { return options.gradient_scale(step); };
  settings.momentum = options.momentum;
  settings.weight_decay = options.weight_decay;
  settings.beta1 = options.beta1;
  settings.beta2 = options.beta2;
  settings.second_moment = second_moment_of(options.second_moment);
  settings.squares_every = options.squares_every;
  settings.workers = static_cast<std::size_t>(transport.workers());
  settings.max_update = options.max_update;
  if (options.own != nullptr && options.own->make_optimiser)
    return options.own->make_optimiser(std::move(settings), options.lr, layers);
  return train::make_optimiser(options.optimizer, std::move(settings), layers);
}

std::unique_ptr<Optimiser> Run::make_outer_optimiser(
    std::span<const atomo::LayerSpec> layers) const {
  OptimiserSettings settings;
  settings.learning_rate = [this](std::uint32_t) { return options.outer_lr; };
  settings.unit = "round";
  settings.momentum = options.outer_momentum;
  return train::make_optimiser(options.outer_optimizer, std::move(settings), layers);
}

StepRecord record_of(std::uint32_t step, std::span<const StepReport> reports) {
  StepRecord record;
  record.step = step;
  const auto workers = static_cast<double>(reports.size());
  for (const auto& report : reports) {
    record.loss += report.loss / workers;
    record.correct += report.correct;
    record.predictions += report.predictions;
    record.bytes += report.payload_bytes + report.squares_bytes + report.reduced_bytes;
    record.reduced += report.reduced_bytes;
    record.sent += report.sent;
    record.received += report.received;
    record.times.compute += report.compute / workers;
    record.times.encode += report.encode / workers;
    record.beside += report.beside / workers;
  }
  return record;
}

std::vector<float> mean_over_workers(std::span<const float> all, std::size_t workers) {
  const std::size_t each = all.size() / workers;
  std::vector<float> mean(each);
  for (std::size_t k = 0; k < workers; ++k) {
    for (std::size_t i = 0; i < each; ++i)
      mean[i] += all[k * each + i] / static_cast<float>(workers);
  }
  return mean;
}

std::optional<Score> total_of(std::span<const Score> scores) {
  Score total;
  for (const auto& score : scores) {
    if (score.broken_off != 0) return std::nullopt;
    total += score;
  }
  return total;
}

bool all_ready(Transport& transport, const std::string& error) {
  constexpr std::size_t kText = 8192;  // a traceback of Python's
  std::array<char, kText> mine{};
  std::memcpy(mine.data(), error.data(), std::min(error.size(), kText - 1));
  std::vector<char> all(kText * static_cast<std::size_t>(transport.size()));
  auto transfer = transport.all_gather(bytes_of(mine), std::as_writable_bytes(std::span(all)));
  transport.wait(transfer);
  std::map<std::string, std::string> who;  // of each error
  for (std::size_t at = 0; at < all.size(); at += kText) {
    const std::string text = &all[at];
    if (text.empty()) continue;
    auto& names = who[text];
    names += (names.empty() ? "" : ", ") + transport.name(static_cast<int>(at / kText));
  }
  for (const auto& [text, names] : who) {
    const std::string line = "atomo-train: cannot start: " + text + " [" + names + "]\n";
    if (transport.rank() == 0) std::fwrite(line.data(), 1, line.size(), stderr);
  }
  return who.empty();
}

}  // namespace train
