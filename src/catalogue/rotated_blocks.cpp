// SPDX-License-Identifier: Apache-2.0
/// \file
/// Blocks that are rotated at random: each is multiplied by random signs and a Hadamard matrix, and back.
#include "catalogue/rotated_blocks.hpp"

#include <algorithm>
#include <vector>

namespace atomo::catalogue {
namespace {

constexpr std::uint64_t kChoiceWords = std::uint64_t{1} << 41;  ///< behind those of the signs
constexpr std::size_t kHeadBytes = 6;                           ///< e and G

/// The length of the next block of a tensor, of which `left` entries are left: a power of two, and at most an
/// eighth of it beyond the entries, or below 128.
std::size_t block_length(std::size_t left, std::size_t most) noexcept {
  if (left >= most) return most;
  const std::size_t padded = std::bit_ceil(left);
  return padded <= 64 || left > padded / 8 * 7 ? padded : padded / 2;
}

/// Calls f(first entry, entries, padded length, first padded entry).
template <typename F>
void for_each_block(std::size_t n, std::size_t most, F&& f) {
  for (std::size_t first = 0, padded_first = 0; first < n;) {
    const std::size_t length = block_length(n - first, most), entries = std::min(length, n - first);
    f(first, entries, length, padded_first);
    first += entries;
    padded_first += length;
  }
}

/// Turns the signs of entries that the words say, a bit an entry.
void turn_signs(float* v, std::size_t n, const Draws& draws, std::uint64_t first_word) noexcept {
  std::uint32_t words[256];
  for (std::size_t i = 0; i < n; i += 8192) {
    const std::size_t count = std::min<std::size_t>(8192, n - i);
    draws.fill(first_word + i / 32, std::span(words, (count + 31) / 32));
    for (std::size_t k = 0; k < count; k += 32) {
      const std::uint32_t word = words[k / 32];
      float* const at = v + i + k;
      const auto last = static_cast<std::uint32_t>(std::min<std::size_t>(32, count - k));
      for (std::uint32_t j = 0; j < last; ++j)
        at[j] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(at[j]) ^ (word >> j << 31));
    }
  }
}

void multiply(float* v, std::size_t n, float by) noexcept {
  for (std::size_t i = 0; i < n; ++i) v[i] *= by;
}

std::uint64_t sign_words(unsigned rotation, std::size_t padded_first) noexcept {
  return (std::uint64_t{rotation} << 38) + padded_first / 32;
}

float norm_factor(std::size_t n) noexcept {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
}

}  // namespace

RotatedBlocks::RotatedBlocks(std::size_t block, unsigned rotations, RotatedForm form)
    : block_(block), rotations_(rotations), form_(form) {
  require(std::has_single_bit(block), "block= has to be a power of two");
}

std::size_t RotatedBlocks::max_bytes(const Shape& shape) const {
  const std::size_t n = shape.elements(), whole = n / block_;
  std::size_t bytes = whole * (kHeadBytes + code_bytes(block_));
  for_each_block(n % block_, block_,
                 [&](std::size_t, std::size_t, std::size_t length, std::size_t) {
                   bytes += kHeadBytes + code_bytes(length);
                 });
  return bytes;
}

std::size_t RotatedBlocks::encode(std::span<const float> x, const OwnLayer& layer,
                                  Bytes body) const {
  Writer out(body);
  const std::size_t most = std::min(block_, std::bit_ceil(x.size()));
  std::vector<float> rotated(most);
  std::vector<Code> codes(codes_of(most));
  for_each_block(
      x.size(), block_,
      [&](std::size_t first, std::size_t entries, std::size_t length, std::size_t padded_first) {
        const auto from = x.subspan(first, entries);
        const std::span<float> v(rotated.data(), length);
        const std::span<Code> c(codes.data(), codes_of(length));
        const float largest = largest_of(from);
        int exponent = 0;
        std::frexp(largest, &exponent);
        const double shrink = std::ldexp(1.0, -exponent);
        for (std::size_t i = 0; i < entries; ++i) v[i] = static_cast<float>(from[i] * shrink);
        std::fill(v.begin() + static_cast<std::ptrdiff_t>(entries), v.end(), 0.0f);
        const double energy = energy_of(v);
        rotate(v, layer.draws, padded_first);
        float scale = 0;
        if (largest > 0) {
          Words words(layer.draws, kChoiceWords + padded_first);
          scale = choose(v, energy, words, c);
        } else {
          std::ranges::fill(c, Code{0});
        }
        out.put(static_cast<std::int16_t>(exponent));
        out.put(scale);
        put(out, c);
      });
  return out.bytes();
}

void RotatedBlocks::decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const {
  Reader in(body);
  const std::size_t most = std::min(block_, std::bit_ceil(y.size()));
  std::vector<float> rotated(most);
  std::vector<Code> codes(codes_of(most));
  for_each_block(
      y.size(), block_,
      [&](std::size_t first, std::size_t entries, std::size_t length, std::size_t padded_first) {
        const auto exponent = in.get<std::int16_t>();
        const auto scale = in.get<float>();
        require(exponent >= -150 && exponent <= 128 && scale >= 0,
                "a block's scale is out of its range");
        const std::span<float> v(rotated.data(), length);
        const std::span<Code> c(codes.data(), codes_of(length));
        get(in, c, length);
        std::ranges::fill(v, 0.0f);
        expand(c, v);
        turn_back(v, layer.draws, padded_first);
        const double factor = std::ldexp(double{scale}, exponent);
        for (std::size_t i = 0; i < entries; ++i) y[first + i] = finite(v[i] * factor);
      });
  in.end();
}

float RotatedBlocks::scale_of(double along, double squares, double energy,
                              std::size_t length) const noexcept {
  return static_cast<float>(form_ == RotatedForm::published
                                ? energy / along
                                : along / (static_cast<double>(length) * squares));
}

/// Multiplies by sqrt(length) R.
void RotatedBlocks::rotate(std::span<float> v, const Draws& draws,
                           std::size_t padded_first) const noexcept {
  for (unsigned r = 0; r < rotations_; ++r) {
    if (r > 0) multiply(v.data(), v.size(), norm_factor(v.size()));
    turn_signs(v.data(), v.size(), draws, sign_words(r, padded_first));
    hadamard(v.data(), v.size());
  }
}

/// Multiplies by sqrt(length) R^T.
void RotatedBlocks::turn_back(std::span<float> v, const Draws& draws,
                              std::size_t padded_first) const noexcept {
  for (unsigned r = rotations_; r-- > 0;) {
    hadamard(v.data(), v.size());
    turn_signs(v.data(), v.size(), draws, sign_words(r, padded_first));
    if (r > 0) multiply(v.data(), v.size(), norm_factor(v.size()));
  }
}

void hadamard(float* v, std::size_t n) noexcept {
  std::size_t h = 1;
  if (std::countr_zero(n) % 2 == 1) {
    for (std::size_t i = 0; i < n; i += 2) {
      const float a = v[i], b = v[i + 1];
      v[i] = a + b;
      v[i + 1] = a - b;
    }
    h = 2;
  }
  for (; h < n; h *= 4) {
    for (std::size_t i = 0; i < n; i += 4 * h) {
      float *const a = v + i, *const b = a + h, *const c = b + h, *const d = c + h;
      for (std::size_t k = 0; k < h; ++k) {
        const float s = a[k] + b[k], t = a[k] - b[k], u = c[k] + d[k], w = c[k] - d[k];
        a[k] = s + u;
        b[k] = t + w;
        c[k] = s - u;
        d[k] = t - w;
      }
    }
  }
}

}  // namespace atomo::catalogue
