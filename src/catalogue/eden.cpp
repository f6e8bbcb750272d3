// SPDX-License-Identifier: Apache-2.0
/// \file
/// EDEN: a block is rotated at random, and each rotated entry is sent as the nearest of the 2^bits levels that suit the
/// normal distribution best. Vargaftik, Ben-Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher, "EDEN:
/// Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning", ICML 2022 (arXiv 2108.08842):
/// Algorithm 1 with Lloyd's levels and the scale |x|^2 / <Rx, levels>. Of its rates between whole numbers of bits those above
/// 1 are left out. Below 1 the paper draws entries of one bit; here one entry of each group is sent, with less error
/// (rotated_groups.cpp).
///
/// As of DRIVE, the proof of unbiasedness is for a uniform rotation, and a Hadamard matrix behind random signs is none.
/// `form=mse` is the scale <Rx, levels> / |levels|^2; `form=unbiased` stretches the levels to the block's largest rotated
/// entry and rounds to a neighbouring level at random, which has no bias whatever the rotation is.
#include "catalogue/definitions.hpp"
#include "catalogue/rotated_blocks.hpp"

namespace atomo::catalogue {

CodecDefinition eden_definition() {
  return {.name = "eden",
          .keys =
              "bits=1..4 or 0.02 to below 1, block=64..65536, rotations=1..3, "
              "form=published|mse|unbiased",
          .summary = "levels of a block rotated at random, and a scale (EDEN)",
          .example = "eden:bits=2,rotations=2",
          .make = [](SpecKeys& keys) {
            const double bits = read_rotated_bits(keys);
            if (bits < 1) return read_rotated_groups(bits, keys);
            return read_rotated_levels(static_cast<unsigned>(bits), keys);
          }};
}

}  // namespace atomo::catalogue
