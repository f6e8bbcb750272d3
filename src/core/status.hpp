// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A status goes to its caller here.

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo::core {

/// Leaves the status where the caller looks for it, and hands it on.
inline Status report(const Context& context, Status status) noexcept {
  if (context.status != nullptr) *context.status = status;
  return status;
}

}  // namespace atomo::core
