// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PNG plots, drawn by matplotlib through plot.py, which lies beside the binary or in
/// ../share/atomo of it.

#include <string>

#include "tensors/files.hpp"

namespace atomo::cli {

/// \throws InputError naming what is missing: Python, matplotlib or the script.
void require_plotting();

/// Accepts a path for a plot, or none. \throws InputError for one that does not end in .png, and as
/// `require_plotting`.
void check_plot_path(const std::string& path);

/// The PNG for a JSON report of `measure` or `verify`. \throws InputError with the script's last line when it
/// fails.
[[nodiscard]] Buffer draw_plot(const std::string& json);

}  // namespace atomo::cli
