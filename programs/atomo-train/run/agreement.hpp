// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whether all processes were started alike.

#include <string>

#include "command_line/options.hpp"
#include "exchange/transport.hpp"

namespace train {

/// What a process has read of the files that a run begins with, empty where it has none.
struct FirstFiles {
  std::string init;    ///< the checksum of the file of --init
  std::string resume;  ///< the step and the checksum of the checkpoint of --resume
};

/// What this process has of the options, of those files, or of atomo's version, in which not all
/// processes are alike; empty where they are. Paths may differ. Called by all processes.
[[nodiscard]] std::string disagreement(const Options& options, const FirstFiles& files,
                                       Transport& transport);

}  // namespace train
