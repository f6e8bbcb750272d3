// SPDX-License-Identifier: Apache-2.0
/// \file
/// `Examiner` rebuilds the task and the network from the options that a checkpoint stores, loads
/// the weights and scores them on the whole test set. With --follow the program looks for newer
/// versions of the file and tests each, until that of the last step has come, the time-out is over
/// or the user interrupts it.

#include "run/evaluate.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "command_line/option_groups.hpp"
#include "files/checkpoint.hpp"
#include "learning/learner.hpp"
#include "learning/replica.hpp"
#include "learning/task.hpp"
#include "run/interrupt.hpp"
#include "run/run.hpp"
#include "run/training.hpp"

namespace train {
namespace {

constexpr int kFailed = 1, kWrongUsage = 2, kInterrupted = 130;
constexpr auto kNap = std::chrono::milliseconds(100);  ///< between looks at the file

struct Request {
  std::string file, data, log, sample_scores, progress = "auto";
  bool follow = false, json = false, quiet = false;
  std::uint32_t batch = 100;   ///< samples at once
  double timeout_seconds = 0;  ///< without a newer version; 0: for ever
};

constexpr const char* kEvaluateFooter =
    R"(Beside a run that saves:
  mpirun -n 5 atomo-train --steps 800 --save run.safetensors --save-every 100
  atomo-train evaluate run.safetensors --follow)";

void add_options(CLI::App& app, Request& r) {
  app.add_option("FILE", r.file, "a checkpoint of --save; it says which model and data")
      ->required();
  app.add_flag("--follow", r.follow,
               "test every newer version of the file, up to that of the run's last step");
  app.add_option("--timeout", r.timeout_seconds,
                 "with --follow: seconds without a newer version until it is given up (0: never)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--data", r.data, "the run's data, where they lie elsewhere here");
  app.add_option("--test-batch", r.batch, "samples that a test computes at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--sample-scores", r.sample_scores,
                 "target, prediction and its probability of each sample, comma-separated")
      ->option_text("FILE");
  app.add_flag("--json", r.json, "JSON lines on standard output");
  app.add_option("--log", r.log, "JSON lines to this file");
  app.add_option("--progress", r.progress,
                 "a line rewritten while it tests or waits: on a terminal, or always, or never")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  check_numbers(app);
}

/// What the user sees.
class Report {
 public:
  explicit Report(const Request& request)
      : json_(request.json),
        quiet_(request.quiet),
        live_(!request.json && (request.progress == "on" ||
                                (request.progress == "auto" && isatty(STDOUT_FILENO) != 0))) {
    if (request.log.empty()) return;
    file_.open(request.log, std::ios::trunc);
    if (!file_) throw std::runtime_error("cannot write the log '" + request.log + "'");
  }

  void event(const nlohmann::json& line) {
    if (file_.is_open() && !(file_ << line.dump() << std::endl))
      throw std::runtime_error("cannot write the log");
    if (json_) std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  void line(const std::string& text) {
    if (json_ || quiet_) return;
    std::printf("%s%s\n", live_ ? "\r\033[K" : "", text.c_str());
    std::fflush(stdout);
  }
  /// Rewritten by what comes next.
  void progress(const std::string& text) {
    if (!live_ || text == shown_) return;
    shown_ = text;
    std::printf("\r\033[K%s", text.c_str());
    std::fflush(stdout);
  }

 private:
  bool json_, quiet_, live_;
  std::string shown_;
  std::ofstream file_;
};

/// Of a file that is replaced whole: another one has another of these.
struct Version {
  ino_t inode = 0;
  off_t bytes = 0;
  std::int64_t seconds = 0, nanoseconds = 0;
  friend bool operator==(const Version&, const Version&) = default;
};

std::optional<Version> version_of(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return Version{info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

/// The network of a run, with the weights of whichever checkpoint.
class Examiner {
 public:
  Examiner(const Request& request, Report& report)
      : path_(request.file),
        batch_(request.batch),
        report_(report),
        options_(read_fingerprint(request.file)),
        model_(options_.at("model")),
        scores_(request.sample_scores),
        data_(request.data.empty() ? options_.at("data").get<std::string>() : request.data),
        task_(make_task(model_, data_, options_.at("pixels"), options_.at("image-size"))),
        replica_(make_replica(model_, options_.at("norm"), task_->input(), options_.at("seed"))) {
    if (!scores_.empty() && task_->classes() == 0)
      throw std::runtime_error("--sample-scores goes with models of images only, not with " +
                               model_);
    auto line = options_;
    line["event"] = "start";
    line["data"] = data_;
    line["measure"] = task_->measure().key;
    line["parameters"] = replica_->weights().size();
    report_.event(line);
    report_.line(model_ + " on " + data_ + ", trained by " + text("algorithm") + " under '" +
                 text("policy") + "'");
  }

  /// Tests the file as it is, unless it has no more steps than the last one. False: interrupted.
  bool test() {
    const auto checkpoint = read_checkpoint(path_, replica_->layers(), options_);
    if (tested_ && checkpoint.step <= *tested_) return true;
    load(checkpoint);
    const std::size_t all = task_->samples(Split::test);
    std::vector<Prediction> each;
    const auto tell_progress = [&](std::size_t done) {
      report_.progress("testing after " + std::to_string(checkpoint.step) + " of " +
                       std::to_string(last_step()) + " steps: " +
                       std::to_string(100 * done / std::max<std::size_t>(all, 1)) + " %");
    };
    const auto score = test_samples(*task_, *replica_, 0, all, batch_, tell_progress,
                                    scores_.empty() ? nullptr : &each);
    if (score.broken_off != 0) return false;
    if (!scores_.empty()) write(each);
    tell(checkpoint, score);
    tested_ = checkpoint.step;
    return true;
  }

  [[nodiscard]] bool at_end() const { return tested_ && *tested_ >= last_step(); }
  [[nodiscard]] std::string where() const {
    return tested_ ? std::to_string(*tested_) + " of " + std::to_string(last_step()) + " steps"
                   : "no step";
  }

 private:
  [[nodiscard]] std::uint32_t last_step() const { return options_.at("steps"); }
  [[nodiscard]] std::string text(const char* option) const { return options_.at(option); }

  void load(const Checkpoint& checkpoint) {
    std::ranges::copy(checkpoint.weights, replica_->weights().begin());
    replica_->weights_changed();
    std::vector<float> buffers;
    for (const auto& worker : checkpoint.workers)
      buffers.insert(buffers.end(), worker.buffers.begin(), worker.buffers.end());
    replica_->set_buffers(mean_over_workers(buffers, checkpoint.workers.size()));
  }

  void write(const std::vector<Prediction>& each) const {
    std::ofstream file(scores_, std::ios::trunc);
    file << "sample,target,prediction,score\n";
    for (std::size_t i = 0; i < each.size(); ++i) {
      char score[32];
      std::snprintf(score, sizeof score, "%.6g", static_cast<double>(each[i].score));
      file << i << ',' << each[i].target << ',' << each[i].predicted << ',' << score << '\n';
    }
    if (!file.flush()) throw std::runtime_error("cannot write '" + scores_ + "'");
  }

  void tell(const Checkpoint& checkpoint, const Score& score) {
    const auto& measure = task_->measure();
    const double value = measure.of(score);
    const double loss = score.loss / static_cast<double>(score.predictions);
    nlohmann::json line{{"event", "evaluation"},
                        {"steps", checkpoint.step},
                        {measure.key, value},
                        {"loss", loss},
                        {"sent_bytes_per_worker", static_cast<double>(checkpoint.sent_bytes) /
                                                      options_.at("workers").get<double>()}};
    char figure[48];
    std::snprintf(figure, sizeof figure, ", loss %.4f", loss);
    std::string end = figure;
    if (measure.is_accuracy) {
      const double top5 = static_cast<double>(score.top5) / static_cast<double>(score.predictions);
      line["top5"] = top5;
      end += ", top-5 " + measure.text(top5);
    }
    report_.event(line);
    report_.line("tested after " + std::to_string(checkpoint.step) +
                 " steps: " + std::string(measure.name) + " " + measure.text(value) + end);
  }

  std::string path_;
  std::size_t batch_;
  Report& report_;
  nlohmann::json options_;  ///< of the run
  std::string model_, scores_, data_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Replica> replica_;
  std::optional<std::uint32_t> tested_;  ///< steps done in the last version that was tested
};

/// Waits for a version other than `last`. None: interrupted. \throws std::runtime_error when the
/// time is over.
std::optional<Version> newer(const Request& request, const std::optional<Version>& last,
                             const std::string& where, Report& report) {
  const auto since = std::chrono::steady_clock::now();
  while (!interrupted()) {
    const auto found = version_of(request.file);
    if (found && found != last) return found;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - since;
    if (request.timeout_seconds > 0 && waited.count() > request.timeout_seconds) {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%.1f", waited.count());
      throw std::runtime_error("'" + request.file + "' has not been written for " + seconds +
                               " seconds (--timeout); tested: " + where);
    }
    report.progress("tested " + where + ", waiting for '" + request.file + "' for " +
                    std::to_string(static_cast<int>(waited.count())) + " s");
    std::this_thread::sleep_for(kNap);
  }
  return std::nullopt;
}

int follow(const Request& request, Report& report) {
  std::unique_ptr<Examiner> examiner;
  std::optional<Version> last;
  for (;;) {
    last = newer(request, last, examiner ? examiner->where() : "no step", report);
    if (!last) return kInterrupted;
    if (!examiner) examiner = std::make_unique<Examiner>(request, report);
    if (!examiner->test()) return kInterrupted;
    if (examiner->at_end()) return 0;
  }
}

}  // namespace

void write_sample_scores(const std::string& checkpoint, const std::string& file) {
  Request request;
  request.file = checkpoint;
  request.sample_scores = file;
  request.progress = "off";
  request.quiet = true;
  Report report(request);
  (void)Examiner(request, report).test();
}

int evaluate_checkpoints(int argc, char** argv) {
  Request request;
  CLI::App app{"Tests the model of a checkpoint, or of each version of it while a run goes on.",
               "atomo-train evaluate"};
  app.footer(kEvaluateFooter);
  add_options(app, request);
  try {
    app.parse(argc - 1, argv + 1);
  } catch (const CLI::Success&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::Error& e) {
    std::fprintf(stderr, "atomo-train evaluate: %s\n", e.what());
    return kWrongUsage;
  }
  catch_interrupts();
  keep_to_one_thread_of_blas();
  try {
    Report report(request);
    if (request.follow) return follow(request, report);
    return Examiner(request, report).test() ? 0 : kInterrupted;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "atomo-train evaluate: %s\n", e.what());
    return kFailed;
  }
}

}  // namespace train
