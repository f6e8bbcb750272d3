// SPDX-License-Identifier: Apache-2.0
/// \file
/// Images are resized by means of areas, first along rows, then along columns. A pixel of the new
/// image covers a part of a row that begins and ends within pixels of the old one, which count by
/// their parts.

#include "learning/image_set.hpp"

#include <algorithm>
#include <cmath>

namespace train {
namespace {

/// What of a line of pixels one of the new pixels covers.
struct Cover {
  std::size_t first = 0;
  std::vector<float> parts;  ///< of the pixels from `first` on, 1 in sum
};

std::vector<Cover> covers_of(std::int64_t from, std::int64_t to) {
  std::vector<Cover> covers;
  const double width = static_cast<double>(from) / static_cast<double>(to);
  for (std::int64_t k = 0; k < to; ++k) {
    const double begin = width * static_cast<double>(k);
    const double end = std::min(width * static_cast<double>(k + 1), static_cast<double>(from));
    Cover cover{static_cast<std::size_t>(begin), {}};
    for (std::size_t i = cover.first; static_cast<double>(i) < end; ++i) {
      const double part =
          std::min(end, static_cast<double>(i + 1)) - std::max(begin, static_cast<double>(i));
      cover.parts.push_back(static_cast<float>(part / (end - begin)));
    }
    covers.push_back(std::move(cover));
  }
  return covers;
}

}  // namespace

void append_resized(std::span<const std::uint8_t> image, const ImageShape& shape, std::int64_t side,
                    std::vector<std::uint8_t>& out) {
  const std::int64_t square = std::min(shape.height, shape.width);
  const auto top = static_cast<std::size_t>((shape.height - square) / 2);
  const auto left = static_cast<std::size_t>((shape.width - square) / 2);
  const auto width = static_cast<std::size_t>(shape.width), old = static_cast<std::size_t>(square);
  const auto plane = static_cast<std::size_t>(shape.height) * width;
  const auto covers = covers_of(square, side);
  std::vector<float> rows(old * covers.size());  // old rows of new pixels
  for (std::size_t c = 0; c < static_cast<std::size_t>(shape.channels); ++c) {
    for (std::size_t r = 0; r < old; ++r) {
      const std::uint8_t* const row = image.data() + c * plane + (top + r) * width + left;
      for (std::size_t k = 0; k < covers.size(); ++k) {
        float sum = 0;
        for (std::size_t i = 0; i < covers[k].parts.size(); ++i)
          sum += covers[k].parts[i] * row[covers[k].first + i];
        rows[r * covers.size() + k] = sum;
      }
    }
    for (const auto& cover : covers) {
      for (std::size_t k = 0; k < covers.size(); ++k) {
        float sum = 0;
        for (std::size_t i = 0; i < cover.parts.size(); ++i)
          sum += cover.parts[i] * rows[(cover.first + i) * covers.size() + k];
        out.push_back(static_cast<std::uint8_t>(std::min(std::lround(sum), 255L)));
      }
    }
  }
}

void resize_images(ImageSet& set, std::int64_t side) {
  if (side == 0 || (set.shape.height == side && set.shape.width == side)) return;
  std::vector<std::uint8_t> resized;
  const std::size_t pixels = set.shape.pixels();
  for (std::size_t k = 0; k < set.size(); ++k)
    append_resized(std::span(set.images).subspan(k * pixels, pixels), set.shape, side, resized);
  set.images = std::move(resized);
  set.shape.height = set.shape.width = side;
}

}  // namespace train
