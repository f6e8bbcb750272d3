// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Plots of runs: plot_runs.py beside the program draws them.

#include <string>
#include <vector>

namespace train {

/// Runs plot_runs.py with these arguments, which its --help explains. Returns its exit status; an error
/// has been said.
int draw_plot(std::vector<std::string> arguments);

}  // namespace train
