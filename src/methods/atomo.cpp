// SPDX-License-Identifier: Apache-2.0
/// `atomo:` chooses a family of atoms; each family is a method of its own.

#include "spec.hpp"

namespace atomo::detail {

double read_budget(SpecArgs& args) {
  if (args.has("bits") && args.has("ratio"))
    args.fail("ratio", "bits= and ratio= say the same: give one of them");
  if (args.has("ratio")) return 32.0 / args.number("ratio", 1, 32000);
  return args.number("bits", 0.001, 32);
}

std::shared_ptr<const Method> make_atomo(SpecArgs& args) {
  const std::size_t atoms =
      args.choice("atoms", {"rows", "blocks", "coordinate", "svd", "sketch", "auto"}, 0);
  if (atoms > 1 && args.has("cap"))
    args.fail("cap", "cap= goes with atoms=rows and atoms=blocks alone");
  switch (atoms) {
    case 0:
      return make_atoms(args, true);
    case 1:
      return make_atoms(args, false);
    case 2:
      return make_coordinate(args);
    case 3:
      return make_svd(args);
    case 4:
      return make_sketch(args);
    default:
      return make_automatic(args);
  }
}

}  // namespace atomo::detail
