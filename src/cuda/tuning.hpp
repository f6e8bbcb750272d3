// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/namespaces.hpp"

namespace atomo::cuda {

/// Warps that share a block in `Queue::launch_warps`, 1 to 8. Tests change it: results must not.
inline unsigned warps_per_block = 4;

/// What a product of a sketch's matrix takes vectors for: what they are, to about a rounding of f32, or
/// TF32, which tensor cores multiply.
enum class SketchProducts { f32, tf32 };
/// Of the products that find a sketch's bases. Tests change it: other bases, the same expectation.
inline SketchProducts basis_products = SketchProducts::tf32;

}  // namespace atomo::cuda
