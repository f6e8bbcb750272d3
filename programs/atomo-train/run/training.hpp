// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A run from its options to its end, in every process.

#include "command_line/options.hpp"
#include "exchange/transport.hpp"
#include "run/run.hpp"

namespace train {

/// The ranks that serve, which a `Transport` has to know.
[[nodiscard]] int servers_of(const Options& options);

/// Trains, once all processes agree that the run can begin; every process calls it. Fills in what
/// of the options only the processes know: steps of epochs, threads, the GPU.
/// \throws std::exception for whatever ends the run.
[[nodiscard]] Outcome train_on(Options& options, Transport& transport);

/// Leaves parallel work to the threads of the process, as long as the user does not say otherwise:
/// how many threads BLAS has changes the last bits of what it computes.
void keep_to_one_thread_of_blas();

}  // namespace train
