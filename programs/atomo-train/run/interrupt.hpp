// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Ctrl-C as a flag that the training loops read between steps.

namespace train {

/// From here on SIGINT, SIGTERM (what mpirun makes of Ctrl-C) and SIGUSR1 (what mpirun passes on)
/// only set the flag, and a file above the limit of its size is an error where it is written.
void catch_interrupts();
[[nodiscard]] bool interrupted() noexcept;

}  // namespace train
