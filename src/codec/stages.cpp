// SPDX-License-Identifier: Apache-2.0
/// What the stages of a codec are together: their spec and their promises.
#include "codec/stages.hpp"

namespace atomo::codec {

std::string Stages::to_string() const {
  return lossless ? body->to_string() + "+" + lossless->to_string() : body->to_string();
}

Traits Stages::traits() const {
  Traits t = body->traits();
  t.bounded |= t.fixed_size;  // a lossless stage makes no body longer
  if (!lossless) return t;
  t.linear = t.fixed_size = t.capturable = t.cuda = false;
  t.allocates = true;
  return t;
}

}  // namespace atomo::codec
