// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Quadratics with a known optimum: sample k is f_k(x) = 1/2 sum a_k x^2 - sum c_k x.
///
/// The file is JSON: {"rows": 1, "columns": 2, "start": 10, "samples": [
///   {"curvature": [1, 2], "pull": [1, -1]}, {"curvature": [3, 1], "pull": [-1, 1]}]}
/// `start`, the first weights, is a number or an array like the others (default 1). A test has one
/// sample, the mean of all, and tells the distance to its optimum sum c / sum a.

#include <memory>
#include <string>

#include "learning/task.hpp"

namespace train {

/// \throws std::runtime_error naming what is missing or wrong in the file, and what would be right.
[[nodiscard]] std::unique_ptr<Task> make_quadratic_task(const std::string& path);

}  // namespace train
