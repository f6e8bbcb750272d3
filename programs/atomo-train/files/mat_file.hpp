// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Arrays of a MATLAB file, version 5 (save -v6 and -v7), as SVHN has them.

#include <cstdint>
#include <string>
#include <vector>

namespace train {

/// A real array of numbers.
struct MatArray {
  std::string name;
  std::vector<std::int64_t> dims;   ///< the first one runs fastest
  std::vector<std::uint8_t> bytes;  ///< as many as elements, each a number from 0 to 255
};

/// The numeric arrays of a file, compressed or not. \throws std::runtime_error naming the file, for
/// one that is cut or damaged, of another version or byte order, or has numbers that are no bytes.
[[nodiscard]] std::vector<MatArray> read_mat_file(const std::string& path);

}  // namespace train
