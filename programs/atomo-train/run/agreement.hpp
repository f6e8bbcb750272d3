// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whether all processes were started alike.

#include <string>

#include "command_line/options.hpp"
#include "exchange/transport.hpp"

namespace train {

/// What this process has of the options, or of atomo's version, in which not all processes are alike; empty where they are.
/// Paths of data may differ. Called by all processes.
[[nodiscard]] std::string disagreement(const Options& options, Transport& transport);

}  // namespace train
