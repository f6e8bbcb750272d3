// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Writes a status where the caller wants it, and picks the one of two to report.

#include "atomo/types.hpp"
#include "core/namespaces.hpp"

namespace atomo::core {

/// Leaves the status where the caller looks for it, and hands it on.
inline Status report(const Context& context, Status status) noexcept {
  if (context.status != nullptr) *context.status = status;
  return status;
}

/// Reports that the budget of a price was exceeded where there is nothing else to report.
[[nodiscard]] constexpr Status with_overspent(Status status, bool overspent) noexcept {
  return status == Status::ok && overspent ? Status::overspent : status;
}

[[nodiscard]] constexpr Status worse(Status a, Status b) noexcept {
  return static_cast<int>(a) >= static_cast<int>(b) ? a : b;
}

}  // namespace atomo::core
