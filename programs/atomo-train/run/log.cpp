// SPDX-License-Identifier: Apache-2.0
/// \file
/// Every event of a run passes through `emit`, which writes it to the log file, to the folder of
/// --out and, with --json, to standard output. Without --json the user sees a progress line,
/// rewritten on a terminal and printed ten times a run elsewhere, and at the end a table of bytes,
/// compression ratio, test result and times.

#include "run/log.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomo/compressor.hpp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "files/whole_file.hpp"

namespace train {
namespace {

constexpr double kMega = 1e6;

/// mpirun gives its processes a pseudo-terminal whatever its own output is, so ask about the
/// parent's.
bool shown_on_terminal() {
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return isatty(STDOUT_FILENO) != 0;
  char target[256] = "";
  const std::string link = "/proc/" + std::to_string(getppid()) + "/fd/1";
  const auto n = readlink(link.c_str(), target, sizeof target - 1);
  const std::string_view name(target, n > 0 ? static_cast<std::size_t>(n) : 0);
  return name.starts_with("/dev/pts/") || name.starts_with("/dev/tty");
}

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char text[512];
  va_list values;
  va_start(values, pattern);
  std::vsnprintf(text, sizeof text, pattern, values);
  va_end(values);
  return text;
}

/// Of every codec the policy may choose, and of factors without residuals.
bool unbiased(const Options& options) {
  if (options.algorithm == "powersgd" && options.residual.empty()) return false;
  const auto rules = atomo::Policy::parse(options.policy).rules();
  return std::all_of(rules.begin(), rules.end(),
                     [](const auto& rule) { return rule.codec.traits().unbiased; });
}

/// A codec of the policy that is biased, where a memory could stand in front of it and none does; else
/// nothing.
std::string lacks_memory(const Options& options) {
  if (options.algorithm != "allgather" && options.algorithm != "local") return "";
  const auto policy = atomo::Policy::parse(options.policy);
  for (const auto& rule : policy.rules()) {
    const atomo::Traits& traits = rule.codec.traits();
    if (!traits.unbiased && !traits.memory) return rule.codec.to_string();
  }
  return "";
}

double mean_loss(const Score& score) { return score.loss / static_cast<double>(score.predictions); }

double share_of_top(const Score& score) {
  return static_cast<double>(score.top5) / static_cast<double>(score.predictions);
}

/// None without predictions.
std::optional<double> share_of_right(const Score& score) {
  if (score.predictions == 0) return std::nullopt;
  return static_cast<double>(score.correct) / static_cast<double>(score.predictions);
}

nlohmann::json json_of(const StepTimes& t) {
  return {{"compute", t.compute}, {"encode", t.encode}, {"wire", t.wire}, {"decode", t.decode}};
}

}  // namespace

Log::Log(const Options& options, const Measure& measure, int workers, std::uint64_t parameters,
         std::uint64_t sent_bytes)
    : options_(options),
      measure_(measure),
      workers_(workers),
      parameters_(parameters),
      sent_bytes_(sent_bytes),
      live_(!options.json &&
            (options.progress == "on" || (options.progress == "auto" && shown_on_terminal()))) {
  if (!options.log.empty()) file_.open(options.log, false);
  if (!options.out.empty()) folder_.emplace(options);
  // What is written at the end must not fail at the end.
  for (const auto& path : {options.save, options.timeline}) {
    if (!path.empty()) check_writable(path);
  }
  auto line = options.fingerprint(workers);
  line["event"] = "start";
  line["graph"] = options.graph;
  line["codec"] = options.codec_label;
  line["measure"] = measure.key;
  line["epochs"] = options.epochs;
  line["init"] = options.init;
  line["parameters"] = parameters;
  line["threads"] = options.threads;
  line["unbiased"] = unbiased(options);
  emit(line);
  print(format("%s on %s: %llu parameters, %d workers, %s, %s", options.model.c_str(),
               options.data.c_str(), static_cast<unsigned long long>(parameters), workers,
               options.algorithm.c_str(), options.codec_label.c_str()));
  if (const std::string codec = lacks_memory(options); !codec.empty())
    print(format("%s is biased, and what it leaves out is lost: ef+%s sends it later",
                 codec.c_str(), codec.c_str()));
}

void Log::step(const StepRecord& record) {
  sent_bytes_ += record.bytes;
  sent_here_ += record.bytes;
  steps_here_ += record.steps;
  const auto of_a_step = [&](double time) { return time / record.steps; };
  times_.push_back({of_a_step(record.times.compute), of_a_step(record.times.encode),
                    of_a_step(record.times.wire), of_a_step(record.times.decode)});
  const double workers = record.workers == 0 ? workers_ : record.workers;
  trained_ += {.correct = record.correct, .predictions = record.predictions};
  nlohmann::json line{
      {"event", "step"},
      {"step", record.step},
      {"loss", record.loss},
      {"bytes_per_worker", static_cast<double>(record.bytes) / workers},
      {"all_reduced_bytes_per_worker", static_cast<double>(record.reduced) / workers},
      {"sent_bytes_per_worker", static_cast<double>(sent_bytes_) / workers_},
      {"traffic_per_worker",
       {{"sent", static_cast<double>(record.sent) / workers},
        {"received", static_cast<double>(record.received) / workers}}},
      {"seconds", seconds()},
      {"ms", json_of(record.times)},
      {"encode_beside_ms", record.beside}};
  for (const auto& [node, loss] : record.losses) line["loss_of_nodes"][std::to_string(node)] = loss;
  if (measure_.is_accuracy) {
    const auto accuracy =
        share_of_right({.correct = record.correct, .predictions = record.predictions});
    line["training_accuracy"] = accuracy ? nlohmann::json(*accuracy) : nlohmann::json();
  }
  emit(line);
  const std::uint32_t tenth = std::max(options_.steps / 10, 1U);
  if (live_)
    rewrite(progress_of(record));
  else if ((record.step + 1) % tenth == 0)
    print(progress_of(record));
}

void Log::evaluation(std::uint32_t steps_done, const Score& score, const Score* of_mean,
                     std::span<const Score> of_each, std::span<const int> nodes) {
  tested_ = measure_.of(score);
  score_ = score;
  training_accuracy_ = share_of_right(std::exchange(trained_, {}));
  nlohmann::json line{{"event", "evaluation"},
                      {"steps", steps_done},
                      {measure_.key, *tested_},
                      {"loss", mean_loss(score)},
                      {"sent_bytes_per_worker", static_cast<double>(sent_bytes_) / workers_},
                      {"seconds", seconds()}};
  add_figures(line);
  std::string mean;
  if (of_mean != nullptr) {
    const double tested = measure_.of(*of_mean);
    line[std::string(measure_.key) + "_of_mean"] = tested;
    line["loss_of_mean"] = mean_loss(*of_mean);
    mean = ", " + std::string(measure_.name) + " of the mean model " + measure_.text(tested);
  }
  for (std::size_t k = 0; k < of_each.size(); ++k) {
    const auto node = std::to_string(nodes[k]);
    line[std::string(measure_.key) + "_of_nodes"][node] = measure_.of(of_each[k]);
    line["loss_of_nodes"][node] = mean_loss(of_each[k]);
  }
  emit(line);
  if (!live_)
    print(format("tested after %u steps: %s %s, %s%s", steps_done, measure_.name,
                 measure_.text(*tested_).c_str(), figures().c_str(), mean.c_str()));
}

void Log::checkpoint(std::uint32_t steps_done) {
  emit({{"event", "checkpoint"}, {"steps", steps_done}, {"path", options_.save}});
  if (!live_) print(format("saved %s after %u steps", options_.save.c_str(), steps_done));
}

void Log::lost(const LostNode& lost) {
  const auto numbers = [](const std::vector<int>& nodes) {
    std::string text;
    for (const int node : nodes) text += (text.empty() ? "" : ", ") + std::to_string(node + 1);
    return text;
  };
  auto parts = nlohmann::json::array();
  std::string apart;
  for (const auto& part : lost.parts) {
    auto& list = parts.emplace_back(nlohmann::json::array());
    for (const int node : part) list.push_back(node + 1);
    apart += (apart.empty() ? "" : " | ") + numbers(part);
  }
  auto dropped = nlohmann::json::object();
  std::string edges;
  for (const auto& [node, step] : lost.dropped) {
    dropped[std::to_string(node + 1)] = step;
    edges += (edges.empty() ? "" : ", ") + format("worker %d from step %u", node + 1, step);
  }
  emit({{"event", "lost"},
        {"steps", lost.reweighted},
        {"worker", lost.node + 1},
        {"dropped_from", dropped},
        {"reweighted_from", lost.reweighted},
        {"parts", parts},
        {"seconds", seconds()}});
  print("lost " + lost.name + (edges.empty() ? "" : "; its edge was dropped by " + edges) +
        format("; all weights are those of the graph without it from step %u", lost.reweighted));
  if (lost.parts.size() > 1)
    print("the graph has fallen apart, each part goes on by itself: workers " + apart);
}

void Log::note(const std::string& line) { print(line); }

void Log::finish(std::uint32_t steps_done, bool interrupted) {
  const double bytes =
      static_cast<double>(sent_here_) / workers_ / static_cast<double>(std::max(steps_here_, 1U));
  nlohmann::json line{
      {"event", "end"},
      {"steps", steps_done},
      {"interrupted", interrupted},
      {"codec", options_.codec_label},
      {"bytes_per_step", bytes},
      {"ratio", bytes > 0 ? nlohmann::json(4.0 * static_cast<double>(parameters_) / bytes)
                          : nlohmann::json()},
      {measure_.key, tested_ ? nlohmann::json(*tested_) : nlohmann::json()},
      {"loss", score_ ? nlohmann::json(mean_loss(*score_)) : nlohmann::json()},
      {"ms", json_of(mean_times())},
      {"seconds", seconds()}};
  add_figures(line);
  emit(line);
  if (interrupted) {
    print(format("interrupted after %u of %u steps%s", steps_done, options_.steps,
                 options_.save.empty() ? "; without --save or --out nothing is kept"
                                       : (", go on with --resume " + options_.save).c_str()));
  }
  if (times_.empty()) return;
  print_table();
  if (score_) print("last test: " + figures());
}

void Log::add_figures(nlohmann::json& line) const {
  if (!measure_.is_accuracy || !score_) return;
  line["top5"] = share_of_top(*score_);
  line["training_accuracy"] =
      training_accuracy_ ? nlohmann::json(*training_accuracy_) : nlohmann::json();
}

std::string Log::figures() const {
  std::string text = format("loss %.4f", mean_loss(*score_));
  if (!measure_.is_accuracy) return text;
  text += ", top-5 " + measure_.text(share_of_top(*score_));
  if (training_accuracy_) text += ", training accuracy " + measure_.text(*training_accuracy_);
  return text;
}

/// Without the first tenth, at most five steps, in which caches and buffers warm up.
StepTimes Log::mean_times() const {
  StepTimes mean;
  const std::size_t skip = std::min<std::size_t>(times_.size() / 10, 5);
  const double count = static_cast<double>(std::max<std::size_t>(times_.size() - skip, 1));
  for (std::size_t i = skip; i < times_.size(); ++i) {
    mean.compute += times_[i].compute / count;
    mean.encode += times_[i].encode / count;
    mean.wire += times_[i].wire / count;
    mean.decode += times_[i].decode / count;
  }
  return mean;
}

void Log::print_table() {
  const auto t = mean_times();
  const double bytes =
      static_cast<double>(sent_here_) / workers_ / static_cast<double>(steps_here_);
  const int width = static_cast<int>(std::max<std::size_t>(options_.codec_label.size(), 5));
  const auto tested = tested_ ? measure_.text(*tested_) : std::string("not tested");
  const std::string title = std::string("test ") + measure_.name;
  const int column = static_cast<int>(std::max(title.size(), tested.size()));
  print(format("%-*s | %12s | %7s | %*s | ms a step: %7s + %7s + %7s + %7s", width, "codec",
               "bytes a step", "ratio", column, title.c_str(), "compute", "encode", "wire",
               "decode"));
  print(format("%-*s | %12.0f | %7.1f | %*s | %10s %7.2f   %7.2f   %7.2f   %7.2f", width,
               options_.codec_label.c_str(), bytes, 4.0 * static_cast<double>(parameters_) / bytes,
               column, tested.c_str(), "", t.compute, t.encode, t.wire, t.decode));
}

std::string Log::progress_of(const StepRecord& record) const {
  return format(
      "step %5u/%u  loss %8.4f  %s %s  sent %8.3f MB a worker  ms: compute %6.2f encode "
      "%5.2f wire "
      "%6.2f decode %5.2f",
      record.step + 1, options_.steps, record.loss, measure_.name,
      tested_ ? measure_.text(*tested_).c_str() : "-",
      static_cast<double>(sent_bytes_) / workers_ / kMega, record.times.compute,
      record.times.encode, record.times.wire, record.times.decode);
}

double Log::seconds() const {
  const std::chrono::duration<double> here = std::chrono::steady_clock::now() - start_;
  return here.count() + (folder_ ? folder_->seconds_before() : 0);
}

void Log::emit(const nlohmann::json& line) {
  if (file_.is_open()) file_.add(line.dump());
  if (folder_) folder_->add(line);
  if (options_.json) std::printf("%s\n", line.dump().c_str());
  if (options_.json) std::fflush(stdout);
}

void Log::print(const std::string& line) {
  if (options_.json) return;
  std::printf("%s%s\n", line_open_ ? "\n" : "", line.c_str());
  std::fflush(stdout);
  line_open_ = false;
}

void Log::rewrite(const std::string& line) {
  std::printf("\r%s\033[K", line.c_str());
  std::fflush(stdout);
  line_open_ = true;
}

}  // namespace train
