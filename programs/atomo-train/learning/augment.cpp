// SPDX-License-Identifier: Apache-2.0
/// \file
/// The move of an image is drawn by mixing the seed, the epoch and the number of the sample into one
/// word, from whose bits the shifts and the mirroring are taken. A moved image is copied row by row
/// from the image that was there.

#include "learning/augment.hpp"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace train {
namespace {

/// Uniform in [-kMostMove, kMostMove]; off by less than one in 10^8.
int shift_of(std::uint32_t draw) noexcept {
  constexpr std::uint64_t kMoves = 2 * kMostMove + 1;
  return static_cast<int>(draw * kMoves >> 32) - kMostMove;
}

}  // namespace

Augmentation Augmentation::parse(const std::string& text) {
  Augmentation augmentation;
  if (text.empty()) return augmentation;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    if (part != "crop" && part != "flip")
      throw std::runtime_error("'" + part +
                               "' is none of crop and flip; write for example crop,flip");
    bool& has = part == "crop" ? augmentation.crop : augmentation.flip;
    if (has) throw std::runtime_error("'" + part + "' is there twice; write for example crop,flip");
    has = true;
  }
  return augmentation;
}

Move draw_move(const Augmentation& augmentation, std::uint64_t seed, std::uint64_t epoch,
               std::uint32_t sample) noexcept {
  const std::uint64_t key = mixed(mixed(mixed(seed) ^ epoch) ^ sample);
  const std::uint64_t shifts = mixed(key);
  Move move;
  if (augmentation.crop) {
    move.down = shift_of(static_cast<std::uint32_t>(shifts));
    move.right = shift_of(static_cast<std::uint32_t>(shifts >> 32));
  }
  move.mirrored = augmentation.flip && key >> 63 != 0;
  return move;
}

void move_image(const Move& move, const ImageShape& shape, std::span<const float> black,
                std::span<float> image) {
  if (move == Move{}) return;
  const auto height = static_cast<int>(shape.height), width = static_cast<int>(shape.width);
  const std::vector<float> before(image.begin(), image.end());
  auto out = image.begin();
  for (int channel = 0; channel < static_cast<int>(shape.channels); ++channel) {
    for (int row = 0; row < height; ++row) {
      const int from = row + move.down;
      const float* const in = before.data() + (channel * height + from) * width;
      for (int k = 0; k < width; ++k) {
        const int column = (move.mirrored ? width - 1 - k : k) + move.right;
        const bool inside = from >= 0 && from < height && column >= 0 && column < width;
        *out++ = inside ? in[column] : black[static_cast<std::size_t>(channel)];
      }
    }
  }
}

}  // namespace train
