// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Pictures from disk: PPM and PGM, and PNG and JPEG where their libraries were there when the program
/// was built.

#include <cstdint>
#include <string>
#include <vector>

namespace train {

struct ImageFile {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t>
      pixels;  ///< height x width x 3: red, green, blue; alike where it is grey
};

/// Whether a name ends as one of these files does.
[[nodiscard]] bool is_image_name(const std::string& name);

/// What is transparent is black. \throws std::runtime_error naming the file, for one that is damaged,
/// or of a format that this program was built without.
[[nodiscard]] ImageFile read_image_file(const std::string& path);

}  // namespace train
