// SPDX-License-Identifier: Apache-2.0
/// \file
/// `write_all` calls write(2) until every byte is written, because one call may take fewer bytes
/// than it is given. A call that a signal breaks off before it has written anything is repeated.

#include "common/write_all.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace atomo::programs {

bool write_all(int file, std::span<const std::byte> bytes) {
  // Linux writes at most 0x7ffff000 bytes a call; smaller pieces also let a signal through sooner.
  constexpr std::size_t kPiece = std::size_t{1} << 26;
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), std::min(bytes.size(), kPiece));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace atomo::programs
