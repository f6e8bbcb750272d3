// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Codecs of other people's papers, for comparisons: DRIVE, EDEN, codebooks, thresholds, sketches. They are codecs
/// as a user writes them (atomo/own_codec.hpp), on the CPU; docs/catalogue.md has a row for each.
///
/// ```cpp
/// atomo::register_catalogue();
/// const auto codec = atomo::Codec::parse("eden:bits=2");
/// ```
///
/// The tool `atomo`, `atomo-train` and the Python package have registered them when they start.

#include <vector>

#include "atomo/own_codec.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// Registers the codecs of the catalogue in this process. Names that are registered already are left as they
/// are, so it may be called again. Safe from several threads at once and beside every other call. Allocates.
void register_catalogue();

/// What `register_catalogue` registers, in the order of the documentation. Allocates.
[[nodiscard]] std::vector<CodecDefinition> catalogue_definitions();

}  // namespace atomo
