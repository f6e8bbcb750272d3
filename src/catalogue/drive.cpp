// SPDX-License-Identifier: Apache-2.0
/// \file
/// DRIVE: a block is rotated at random and sent as its signs and a scale. Vargaftik, Ben-Basat, Portnoy, Mendelson,
/// Ben-Itzhak, Mitzenmacher, "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021 (arXiv 2105.08339): Algorithm 1,
/// the scales of its sections on unbiased estimates (|x|^2 / |Rx|_1) and on the least error (|Rx|_1 / d), and the
/// randomised Hadamard transform of its section on structured rotations.
///
/// The paper's proof that the first scale has no bias is for a rotation that is uniform over all rotations. A
/// Hadamard matrix behind random signs is not: the codec claims no absence of bias with it. `rotations=2` comes closer,
/// `form=unbiased` rounds each rotated entry to plus or minus the largest, at random, and has none.
#include "catalogue/definitions.hpp"
#include "catalogue/rotated_blocks.hpp"

namespace atomo::catalogue {

CodecDefinition drive_definition() {
  return {.name = "drive",
          .keys = "block=64..65536, rotations=1..3, form=published|mse|unbiased",
          .summary = "the signs of a block rotated at random, and a scale (DRIVE)",
          .example = "drive:rotations=2",
          .make = [](SpecKeys& keys) { return read_rotated_levels(1, keys); }};
}

}  // namespace atomo::catalogue
