// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What is tested without MPI. `atomo-train evaluate FILE`: a process beside a run, without MPI, that tests its checkpoints.

#include <string>

namespace train {

/// `argv[1]` is "evaluate". Returns the exit status.
[[nodiscard]] int evaluate_checkpoints(int argc, char** argv);

/// Tests the checkpoint of a run and writes a row a sample of the test to `file`: its number, target,
/// prediction and the probability of that. \throws std::runtime_error
void write_sample_scores(const std::string& checkpoint, const std::string& file);

}  // namespace train
