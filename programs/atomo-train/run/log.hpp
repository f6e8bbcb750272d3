// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the user sees: progress, JSON lines, the final table. Only rank 0 has one.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "command_line/options.hpp"
#include "learning/task.hpp"
#include "run/run_folder.hpp"

namespace train {

/// Where the time of a step went, in milliseconds.
struct StepTimes {
  double compute = 0;  ///< forward and backward, without encoding; mean over workers
  double encode = 0;   ///< what it held up; mean over workers
  double wire = 0;     ///< the rest: transfers, waiting for the slowest, the optimiser
  double decode = 0;   ///< decode-add of all workers' payloads
};

struct StepRecord {
  std::uint32_t step = 0;
  std::uint32_t steps = 1;                     ///< that it stands for, `step` being the last
  double loss = 0;                             ///< mean over workers
  std::uint64_t correct = 0, predictions = 0;  ///< of all workers, in training
  std::uint64_t bytes = 0;                     ///< of gradients, sent by all workers in this step
  std::uint64_t reduced = 0;                   ///< of these, what all-reduces add up
  std::uint64_t sent = 0, received = 0;        ///< between all workers and others, every copy
  StepTimes times;
  double beside = 0;  ///< milliseconds of encoding beside back-propagation; mean over workers
  int workers = 0;    ///< that took the step; 0: all
  std::map<int, double> losses;  ///< by node, where each trains a model of its own
};

/// A node that a run has gone on without. Nodes count from 0.
struct LostNode {
  int node = 0;
  std::string name;                      ///< of its process
  std::uint32_t reweighted = 0;          ///< the first step under the weights without it
  std::map<int, std::uint32_t> dropped;  ///< by neighbour: the first step that did not count it
  std::vector<std::vector<int>> parts;   ///< what is left of the graph
};

class Log {
 public:
  /// \throws std::runtime_error when the log file cannot be written.
  Log(const Options& options, const Measure& measure, int workers, std::uint64_t parameters,
      std::uint64_t sent_bytes);

  void step(const StepRecord& record);
  /// `score` is that of all workers; `of_mean` that of their mean model, where each has its own,
  /// and `of_each` the own ones of `nodes`.
  void evaluation(std::uint32_t steps_done, const Score& score, const Score* of_mean = nullptr,
                  std::span<const Score> of_each = {}, std::span<const int> nodes = {});
  void checkpoint(std::uint32_t steps_done);
  void lost(const LostNode& lost);
  /// One line for the user, above the progress line.
  void note(const std::string& line);
  void finish(std::uint32_t steps_done, bool interrupted);
  [[nodiscard]] std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }

 private:
  /// Since the run began, also before it was resumed in its folder.
  [[nodiscard]] double seconds() const;
  void emit(const nlohmann::json& line);
  void print(const std::string& line);
  void rewrite(const std::string& line);
  void print_table();
  /// What the last test found besides its measure: of images, into a line of the log.
  void add_figures(nlohmann::json& line) const;
  /// The same for the user, with the loss.
  [[nodiscard]] std::string figures() const;
  [[nodiscard]] std::string progress_of(const StepRecord& record) const;
  [[nodiscard]] StepTimes mean_times() const;

  const Options& options_;
  const Measure& measure_;
  double workers_;
  std::uint64_t parameters_;
  std::uint64_t sent_bytes_;  ///< by all workers since step 0
  std::uint64_t sent_here_ = 0;
  std::uint32_t steps_here_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool live_;
  bool line_open_ = false;
  std::optional<double> tested_;             ///< by the measure
  std::optional<Score> score_;               ///< of the last test
  Score trained_;                            ///< since the test before
  std::optional<double> training_accuracy_;  ///< between the last test and the one before
  std::vector<StepTimes> times_;             ///< of a step, a record each
  LineFile file_;                            ///< of --log
  std::optional<RunFolder> folder_;          ///< of --out
};

}  // namespace train
