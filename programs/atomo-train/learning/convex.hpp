// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The models whose loss is convex and whose gradient is a line: they need no torch.

#include "learning/replica.hpp"

namespace train {

/// Softmax regression: one matrix from pixels to classes, and a bias. Weights begin uniform within
/// 1 / sqrt(pixels), as torch's layers do.
[[nodiscard]] std::unique_ptr<Replica> make_logistic(const ImageShape& shape, std::uint64_t seed);

/// The mean of 1/2 sum a x^2 - sum c x over a batch, in double precision: the loss falls with the
/// square of the distance to the optimum, and a gradient is rounded once, when it becomes a float.
[[nodiscard]] std::unique_ptr<Replica> make_quadratic(const QuadraticShape& shape);

}  // namespace train
