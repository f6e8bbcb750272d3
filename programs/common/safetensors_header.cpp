// SPDX-License-Identifier: Apache-2.0
/// \file
/// `with_length` pads a JSON header with spaces and puts its length in front of it, and
/// `header_length` reads this length back. The tool and the trainer both build their files of this
/// format on these two functions.

#include "common/safetensors_header.hpp"

namespace atomo::programs {

std::string with_length(std::string header) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(kHeaderLengthBytes, '\0');
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i)
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return length + header;
}

std::uint64_t header_length(std::span<const std::byte, kHeaderLengthBytes> start_of_file) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i)
    length |= std::to_integer<std::uint64_t>(start_of_file[i]) << (8 * i);
  return length;
}

}  // namespace atomo::programs
