// SPDX-License-Identifier: Apache-2.0
/// What the stages of a codec are together: their spec and their promises.
#include "codec/stages.hpp"

#include <limits>

namespace atomo::codec {

std::string Stages::to_string() const {
  std::string text = memory ? memory->to_string() + "+" : std::string();
  text += body->to_string();
  return lossless ? text + "+" + lossless->to_string() : text;
}

Traits Stages::traits() const {
  Traits t = body->traits();
  t.bounded |= t.fixed_size;  // a lossless stage makes no body longer
  if (memory) {  // biased a step, whatever stands behind it: what is left out comes later
    t.memory = true;
    t.differences = memory->rule == MemoryOptions::Rule::ef21;
    t.unbiased = t.averages_over_workers = false;
    t.bias_bound = std::numeric_limits<double>::infinity();
    t.omega = t.contraction = t.largest = std::nullopt;
  }
  if (!lossless) return t;
  t.linear = t.votes = t.fixed_size = t.capturable = t.cuda = false;
  t.allocates = true;
  return t;
}

}  // namespace atomo::codec
