// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Matrices whose singular values are near 1: what Muon steps along.

#include <cstddef>
#include <span>
#include <vector>

namespace train {

/// Replaces a matrix U S V', row after row, by nearly U V': five steps of the iteration that Muon
/// takes (arXiv 2502.16982, section 2.1), which bring singular values above a hundredth of the
/// matrix's norm to between 0.6 and 1.3. A matrix of zeros stays one. It takes 5 m^2 (2 n + m)
/// multiplications, of the lesser side m and the greater n, on one thread, in one order.
/// `work` grows to 2 m (m + n) entries.
void orthogonalise(std::span<float> matrix, std::size_t rows, std::size_t columns,
                   std::vector<float>& work);

}  // namespace train
