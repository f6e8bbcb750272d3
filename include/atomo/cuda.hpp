// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The legacy default stream by name, and what a caller with CUDA tensors makes once: the handles of the libraries that decompose matrices
/// (cuBLAS, cuSOLVER). Only encoding under `atomo:atoms=svd` needs them; decoding needs none.
///
/// ```cpp
/// const atomo::HandlesPtr handles = atomo::make_handles();  // on the current device
/// context.handles = handles.get();
/// ```

#include <cstdint>
#include <memory>

#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// The legacy default stream, `cudaStreamLegacy`: every other blocking stream of the device waits
/// for it. A call on CUDA tensors refuses a null stream, so that nobody takes this one in silence.
[[nodiscard]] inline Stream legacy_stream() noexcept {
  return reinterpret_cast<Stream>(std::uintptr_t{1});
}

/// Waits for the device and gives everything back.
struct DestroyHandles {
  /// `handles` may be null.
  void operator()(Handles* handles) const noexcept;
};
/// Owns the handles that make_handles() makes.
using HandlesPtr = std::unique_ptr<Handles, DestroyHandles>;

/// Handles for the current device, and the memory that the solver asks for: it grows when a matrix
/// needs more than any before. One call at a time may use them, and calls that follow one another
/// go to one stream, or to streams that wait for one another.
/// \throws Error in a build without a CUDA backend, or where the libraries fail.
[[nodiscard]] HandlesPtr make_handles();

}  // namespace atomo
