// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace atomo::programs {

/// Whether all the bytes were written to an open file, whatever signals came; errno says why not.
[[nodiscard]] bool write_all(int file, std::span<const std::byte> bytes);

}  // namespace atomo::programs
