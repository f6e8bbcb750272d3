// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Copies a layer in one pass that also looks for what is not finite and hashes what it writes.

#include "core/namespaces.hpp"
#include "format/checksum.hpp"

namespace atomo::cpu {

/// Copies n entries; whether all are finite. `hashed`, where it is not null, becomes the checksum of
/// the blocks that the copy fills, as the first of their message. Long copies go past the caches.
/// Runs on the executor, which may be null.
[[nodiscard]] bool copy_checked(const float* x, std::size_t n, std::byte* out, HashedBlocks* hashed,
                                Executor* executor) noexcept;

}  // namespace atomo::cpu
