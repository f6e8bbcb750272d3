// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The algorithms a run can follow: one file each in this folder, and one row in the table of
/// algorithms.cpp.

#include <span>
#include <string>
#include <string_view>

#include "run/run.hpp"

namespace train {

/// Who holds the weights.
enum class Family {
  server,      ///< ranks that serve; the others train
  all_reduce,  ///< all ranks train and hold the same weights
  graph,       ///< all ranks train, each with weights of its own, and talk to their neighbours
};

struct Algorithm {
  const char* name;
  Family family;
  const char* what;    ///< one line
  const char* origin;  ///< the paper or system it is from
  /// Every process calls it, once all agree that the run can begin. \throws Fault,
  /// std::runtime_error
  Outcome (*run)(Run& run);
  bool gathers_payloads = false;  ///< whole ones of all ranks, by one collective call
  bool takes_codec = true;        ///< --budget, --codec and --policy go with it
  // What it promises of faults; `faults.py` tries it.
  bool repeats = true;           ///< the same options give the same losses, to the bit
  bool outlives_silent = false;  ///< goes on without a worker that gives no sign of life
  /// Options that go only with algorithms whose row names them: "--compensation --adaptive". Those
  /// of the groups Servers and Graph that no row names go with their whole family.
  std::string_view options = "";
};

[[nodiscard]] std::span<const Algorithm> algorithms() noexcept;
/// Null when there is none of that name.
[[nodiscard]] const Algorithm* find_algorithm(const std::string& name) noexcept;
/// The table as text, for --list, or as a JSON array of its rows.
[[nodiscard]] std::string list_of_algorithms(bool as_json);

// One line an algorithm, in the order of the table.
[[nodiscard]] Outcome parameter_server(Run& run);
[[nodiscard]] Outcome asgd(Run& run);
[[nodiscard]] Outcome dcasgd(Run& run);
[[nodiscard]] Outcome fedavg(Run& run);
[[nodiscard]] Outcome parameter_averaging(Run& run);
[[nodiscard]] Outcome gradient_difference(Run& run);
[[nodiscard]] Outcome all_gather(Run& run);
[[nodiscard]] Outcome two_shot(Run& run);
[[nodiscard]] Outcome ring(Run& run);
[[nodiscard]] Outcome local_sgd(Run& run);
[[nodiscard]] Outcome power_sgd(Run& run);
[[nodiscard]] Outcome dpsgd(Run& run);
[[nodiscard]] Outcome dsgd(Run& run);
[[nodiscard]] Outcome choco(Run& run);
[[nodiscard]] Outcome pdmm(Run& run);
[[nodiscard]] Outcome admm(Run& run);
[[nodiscard]] Outcome alone(Run& run);
[[nodiscard]] Outcome dsgd_stale(Run& run);

}  // namespace train
