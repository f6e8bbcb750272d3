// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `atomo-train evaluate FILE`: a process beside a run, without MPI, that tests its checkpoints.

namespace train {

/// `argv[1]` is "evaluate". Returns the exit status.
[[nodiscard]] int evaluate_checkpoints(int argc, char** argv);

}  // namespace train
