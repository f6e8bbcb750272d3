// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Mutations of the driver, and of containers: with lengths and checksums that hold again.

#include "fuzz/target.hpp"

namespace atomo::fuzz {

/// One to four small changes: bits, bytes, numbers, pieces left out, doubled or moved, tokens, and
/// pieces of another input. Never longer than `most`.
void mutate_bytes(Buffer& input, std::size_t most, Draw& draw, ConstBytes other,
                  const std::vector<std::string>* tokens);

/// Makes the length, the rows and both checksums of a container hold, where its head can be walked:
/// the last layer that has bytes takes what is there. Returns whether it could.
bool mend_container(Buffer& message);

/// A mutation of a container: of all of it or of one layer's body or kind, inside or outside a
/// lossless stage, mostly mended afterwards.
void mutate_container(Buffer& message, std::size_t most, const AnyMutation& any, Draw& draw);

/// The goldens, and messages of every spec of the table of codecs, some of several layers.
std::vector<Buffer> container_seeds();

}  // namespace atomo::fuzz
