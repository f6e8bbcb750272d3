// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The size of a workspace that serves a model in both directions.

#include <algorithm>
#include <atomo/compressor.hpp>
#include <cstddef>

namespace atomo::programs {

/// Bytes that suffice for encoding and for decoding whole messages, one call at a time.
inline std::size_t workspace_bytes(const Compressor& model) {
  return std::max(model.encode_workspace_bytes(), model.decode_workspace_bytes());
}

}  // namespace atomo::programs
