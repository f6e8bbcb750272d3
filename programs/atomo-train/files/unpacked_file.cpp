// SPDX-License-Identifier: Apache-2.0
/// \file
/// `read_unpacked_file` reads training data through zlib, which recognises gzip by its first bytes
/// and returns any other file as it is. The whole content is held in memory.

#include "files/unpacked_file.hpp"

#include <zlib.h>

#include <array>
#include <memory>
#include <stdexcept>

namespace train {

/// zlib reads plain files as they are.
std::vector<std::uint8_t> read_unpacked_file(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<std::uint8_t> bytes;
  std::array<std::uint8_t, 1 << 16> piece;
  for (;;) {
    const int got = gzread(file.get(), piece.data(), piece.size());
    if (got < 0) throw std::runtime_error("cannot read " + path + ": damaged gzip data");
    if (got == 0) return bytes;
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + got);
  }
}

}  // namespace train
