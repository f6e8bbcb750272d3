// SPDX-License-Identifier: Apache-2.0
/// `atomo:` chooses a family of atoms; each family is a method of its own.

#include "codec/spec.hpp"

namespace atomo::codec {

double read_budget(SpecArgs& args) {
  if (args.has("bits") && args.has("ratio"))
    args.fail("ratio", "bits= and ratio= say the same: give one of them");
  if (args.has("ratio")) return 32.0 / args.number("ratio", 1, 32000);
  return args.number("bits", 0.001, 32);
}

std::shared_ptr<const Method> make_atomo(SpecArgs& args) {
  enum : std::size_t { automatic, sketch, svd, rows, blocks, coordinate };
  const std::size_t atoms =
      args.choice("atoms", {"auto", "sketch", "svd", "rows", "blocks", "coordinate"}, automatic);
  if ((atoms == coordinate || atoms == svd) && args.has("cap"))
    args.fail("cap", "cap= goes with atoms=auto, sketch, rows and blocks");
  switch (atoms) {
    case rows:
    case blocks:
      return make_atoms(read_price_options(args), atoms == rows);
    case coordinate:
      return make_coordinate(args);
    case svd:
      return make_svd(args);
    case sketch:
      return make_sketch(read_price_options(args), args);
    default:
      return make_automatic(args);
  }
}

}  // namespace atomo::codec
