// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Labelled images in memory, and the formats of data sets that they are read from.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "learning/task.hpp"

namespace train {

struct ImageSet {
  ImageShape shape;                   ///< of each; `classes` is 0 where no format says how many
  std::vector<std::uint8_t> images;   ///< size() x channels x height x width
  std::vector<std::uint16_t> labels;  ///< size()
  [[nodiscard]] std::size_t size() const noexcept { return labels.size(); }
};

struct ImageData {
  ImageSet training, test;
};

/// A format of a data set. `load` is called where `is_in`; `side`: images are made that high and wide
/// (0: they stay as they are). \throws std::runtime_error naming the file that is wrong.
struct ImageFormat {
  const char* files;  ///< for an error: what would be there
  bool (*is_in)(const std::filesystem::path& folder);
  ImageData (*load)(const std::filesystem::path& folder, std::int64_t side);
};

extern const ImageFormat kIdxFormat, kCifar10Format, kCifar100Format;  // image_records.cpp
extern const ImageFormat kSvhnFormat, kImageFolderFormat;              // svhn.cpp, image_folder.cpp

/// The central square of an image, channels x height x width, as `side` x `side` pixels behind `out`:
/// each the mean of the area that it covers.
void append_resized(std::span<const std::uint8_t> image, const ImageShape& shape, std::int64_t side,
                    std::vector<std::uint8_t>& out);

/// All images of a set; it stays as it is where `side` is 0.
void resize_images(ImageSet& set, std::int64_t side);

}  // namespace train
