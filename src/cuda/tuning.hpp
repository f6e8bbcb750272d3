// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/namespaces.hpp"

namespace atomo::cuda {

/// Warps that share a block in `Queue::launch_warps`, 1 to 8. Tests change it: results must not.
inline unsigned warps_per_block = 4;

/// What a product of a sketch's matrix takes vectors for: numbers of TF32, or what they are, to about a
/// rounding of f32 (tf32_product.cuh).
enum class TensorVectors { rounded, whole };
/// Of the products that find a sketch's bases. Tests change it: other bases, the same expectation.
inline TensorVectors basis_vectors = TensorVectors::rounded;

}  // namespace atomo::cuda
