// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The families of dithered atoms.

#include <cstdint>

namespace atomo::format {

/// What the atoms of a body are: the lower 8 bits of the params of the method atoms, on the wire.
enum class Family : std::uint32_t {
  blocks = 0,  ///< 256 entries in a row of memory
  rows = 1,    ///< one index of the first dimension
  pairs = 2,   ///< all singular pairs of a matrix
  sketch = 3,  ///< a few pairs, and the rows of what they leave; its rank is in the other bits
};

}  // namespace atomo::format
