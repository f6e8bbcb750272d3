// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Images that training sees moved and mirrored.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "learning/task.hpp"

namespace train {

inline constexpr int kMostMove = 4;  ///< pixels in each direction

struct Augmentation {
  bool crop = false;  ///< a crop of its own size of the image with kMostMove black pixels around it
  bool flip = false;  ///< left and right change places in half of the draws

  /// Parts with commas between them; none is the empty text.
  /// \throws std::runtime_error naming a part that there is not, or is there twice.
  [[nodiscard]] static Augmentation parse(const std::string& text);
  [[nodiscard]] bool any() const noexcept { return crop || flip; }
};

/// The finaliser of SplitMix64: a word that looks random, of any other.
[[nodiscard]] inline std::uint64_t mixed(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

/// What becomes of an image: row r, column c are those of row r + down, column c + right before,
/// then the image is mirrored.
struct Move {
  int down = 0, right = 0;
  bool mirrored = false;
  friend bool operator==(const Move&, const Move&) = default;
};

/// Of a sample in an epoch, a function of these and the seed alone: whichever worker sees the sample
/// sees it moved alike, and a resumed run needs no stored state.
[[nodiscard]] Move draw_move(const Augmentation& augmentation, std::uint64_t seed,
                             std::uint64_t epoch, std::uint32_t sample) noexcept;

/// Moves one image, channels x height x width. `black`: what a channel's pixels are that come in
/// from outside.
void move_image(const Move& move, const ImageShape& shape, std::span<const float> black,
                std::span<float> image);

}  // namespace train
