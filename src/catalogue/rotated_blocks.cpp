// SPDX-License-Identifier: Apache-2.0
/// \file
/// Blocks that are rotated at random and sent as levels. A body is the blocks one after another: i16 e, f32 G, then a
/// code of `bits` bits for each of the block's padded entries. A block decodes to 2^e G R^T q, R^T being without its
/// factor 1 / sqrt(length), and q the levels of the codes.
#include "catalogue/rotated_blocks.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "catalogue/body.hpp"

namespace atomo::catalogue {
namespace {

constexpr float kLevels[4][16] = {
    {-0.7978845608f, 0.7978845608f},
    {-1.5104176085f, -0.4527800346f, 0.4527800346f, 1.5104176085f},
    {-2.1519457045f, -1.3439092785f, -0.7560052812f, -0.2450941789f, 0.2450941789f, 0.7560052812f,
     1.3439092785f, 2.1519457045f},
    {-2.7325895710f, -2.0690172265f, -1.6180463860f, -1.2562311973f, -0.9423404565f, -0.6567591185f,
     -0.3880482995f, -0.1283950299f, 0.1283950299f, 0.3880482995f, 0.6567591185f, 0.9423404565f,
     1.2562311973f, 1.6180463860f, 2.0690172265f, 2.7325895710f}};

constexpr std::uint64_t kRoundingWords = std::uint64_t{1} << 41;  ///< behind those of the signs
constexpr std::size_t kHeadBytes = 6;                             ///< e and G

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

class Rotated final : public OwnCodec {
 public:
  Rotated(unsigned bits, std::size_t block, unsigned rotations, RotatedForm form)
      : bits_(bits),
        block_(block),
        rotations_(rotations),
        form_(form),
        levels_(normal_levels(bits)) {
    for (std::size_t j = 0; j + 1 < levels_.size(); ++j) {
      borders_[j] =
          form == RotatedForm::unbiased ? levels_[j + 1] : (levels_[j] + levels_[j + 1]) / 2;
      if (form == RotatedForm::unbiased) over_gap_[j] = 1.0 / (double{levels_[j + 1]} - levels_[j]);
    }
  }

  Traits traits() const override {
    Traits t;
    t.fixed_size = t.bounded = true;
    const double least = levels_[levels_.size() / 2], most = levels_.back();
    const auto length = static_cast<double>(block_);
    if (form_ == RotatedForm::unbiased) {
      claim_unbiased(t);
      double gap = 0;
      for (std::size_t j = 0; j + 1 < levels_.size(); ++j)
        gap = std::max(gap, double{levels_[j + 1]} - levels_[j]);
      // Each rotated entry errs by gap^2 / 4 at most, and the levels are stretched to the largest.
      t.omega = gap * gap / 4 * std::max(1.0, length / (most * most)) * 1.001;
    }
    // cos^2 of the angle between a vector and its signs is at least 1 / length.
    if (form_ == RotatedForm::mse && bits_ == 1)
      t.contraction = 0.9 * (least * least) / (most * most) / length;
    return t;
  }

  std::size_t max_bytes(const Shape& shape) const override {
    std::size_t bytes = 0;
    const std::size_t n = shape.elements(), whole = n / block_;
    bytes += whole * (kHeadBytes + packed_bytes(block_, bits_));
    for_each_block(n % block_, block_,
                   [&](std::size_t, std::size_t, std::size_t length, std::size_t) {
                     bytes += kHeadBytes + packed_bytes(length, bits_);
                   });
    return bytes;
  }

  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    Writer out(body);
    const std::size_t most = std::min(block_, std::bit_ceil(x.size()));
    std::vector<float> rotated(most);
    std::vector<std::uint8_t> codes(most);
    for_each_block(
        x.size(), block_,
        [&](std::size_t first, std::size_t entries, std::size_t length, std::size_t padded_first) {
          const auto from = x.subspan(first, entries);
          const std::span<float> v(rotated.data(), length);
          const std::span<std::uint8_t> c(codes.data(), length);
          const float largest = largest_of(from);
          int exponent = 0;
          std::frexp(largest, &exponent);
          const double shrink = std::ldexp(1.0, -exponent);
          for (std::size_t i = 0; i < entries; ++i) v[i] = static_cast<float>(from[i] * shrink);
          std::fill(v.begin() + static_cast<std::ptrdiff_t>(entries), v.end(), 0.0f);
          const double energy = energy_of(v);
          rotate(v, layer.draws, padded_first);
          const float scale = largest > 0 ? choose(v, energy, layer.draws, padded_first, c) : 0;
          if (largest == 0) std::ranges::fill(c, std::uint8_t{0});
          out.put(static_cast<std::int16_t>(exponent));
          out.put(scale);
          put_codes(out, c, bits_);
        });
    return out.bytes();
  }

  void decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const override {
    Reader in(body);
    const std::size_t most = std::min(block_, std::bit_ceil(y.size()));
    std::vector<float> rotated(most);
    std::vector<std::uint8_t> codes(most);
    for_each_block(
        y.size(), block_,
        [&](std::size_t first, std::size_t entries, std::size_t length, std::size_t padded_first) {
          const auto exponent = in.get<std::int16_t>();
          const auto scale = in.get<float>();
          require(exponent >= -150 && exponent <= 128 && scale >= 0,
                  "a block's scale is out of its range");
          const std::span<float> v(rotated.data(), length);
          const std::span<std::uint8_t> c(codes.data(), length);
          get_codes(in, c, bits_);
          for (std::size_t i = 0; i < length; ++i) v[i] = levels_[c[i]];
          turn_back(v, layer.draws, padded_first);
          const double factor = std::ldexp(double{scale}, exponent);
          for (std::size_t i = 0; i < entries; ++i) y[first + i] = finite(v[i] * factor);
        });
    in.end();
  }

 private:
  static std::uint64_t sign_words(unsigned rotation, std::size_t padded_first) noexcept {
    return (std::uint64_t{rotation} << 38) + padded_first / 32;
  }

  /// Multiplies by sqrt(length) R.
  void rotate(std::span<float> v, const Draws& draws, std::size_t padded_first) const noexcept {
    for (unsigned r = 0; r < rotations_; ++r) {
      if (r > 0) multiply(v.data(), v.size(), norm_factor(v.size()));
      turn_signs(v.data(), v.size(), draws, sign_words(r, padded_first));
      hadamard(v.data(), v.size());
    }
  }
  /// Multiplies by sqrt(length) R^T.
  void turn_back(std::span<float> v, const Draws& draws, std::size_t padded_first) const noexcept {
    for (unsigned r = rotations_; r-- > 0;) {
      hadamard(v.data(), v.size());
      turn_signs(v.data(), v.size(), draws, sign_words(r, padded_first));
      if (r > 0) multiply(v.data(), v.size(), norm_factor(v.size()));
    }
  }
  static float norm_factor(std::size_t n) noexcept {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  }

  /// The place of t among the borders, which it is not below.
  std::uint8_t place_of(float t) const noexcept {
    unsigned place = 0;
    for (std::size_t j = 0; j + 1 < levels_.size(); ++j) place += t > borders_[j] ? 1u : 0u;
    return static_cast<std::uint8_t>(place);
  }

  /// Chooses the codes of a rotated block; its scale G.
  float choose(std::span<const float> v, double energy, const Draws& draws,
               std::size_t padded_first, std::span<std::uint8_t> codes) const {
    const auto length = static_cast<double>(v.size());
    if (form_ == RotatedForm::unbiased) {
      const double stretched = std::max(std::sqrt(energy), largest_of(v) / double{levels_.back()});
      const float scale = rounded_up(stretched / length);
      const double to_level = 1 / (double{scale} * length);
      Words words(draws, kRoundingWords + padded_first);
      for (std::size_t i = 0; i < v.size(); ++i) {
        const double u = v[i] * to_level;
        const std::uint8_t place = std::min<std::uint8_t>(
            place_of(static_cast<float>(u)), static_cast<std::uint8_t>(levels_.size() - 2));
        const bool up = words.happens((u - double{levels_[place]}) * over_gap_[place]);
        codes[i] = static_cast<std::uint8_t>(place + (up ? 1 : 0));
      }
      return scale;
    }
    const auto to_level = static_cast<float>(1 / std::sqrt(energy));
    double along = 0, squares = 0;
    for (std::size_t i = 0; i < v.size(); ++i) codes[i] = place_of(v[i] * to_level);
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double level = levels_[codes[i]];
      along += v[i] * level;
      squares += level * level;
    }
    return static_cast<float>(form_ == RotatedForm::published ? energy / along
                                                              : along / (length * squares));
  }

  unsigned bits_;
  std::size_t block_;
  unsigned rotations_;
  RotatedForm form_;
  std::span<const float> levels_;
  std::array<float, 16> borders_{};
  std::array<double, 16> over_gap_{};
};

}  // namespace

std::span<const float> normal_levels(unsigned bits) noexcept {
  return {kLevels[bits - 1], std::size_t{1} << bits};
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

std::shared_ptr<const OwnCodec> make_rotated(unsigned bits, std::size_t block, unsigned rotations,
                                             RotatedForm form) {
  require(std::has_single_bit(block), "block= has to be a power of two");
  return std::make_shared<Rotated>(bits, block, rotations, form);
}

std::shared_ptr<const OwnCodec> read_rotated(unsigned bits, SpecKeys& keys) {
  const auto block = static_cast<std::size_t>(keys.integer("block", 64, 65536, 16384));
  const auto rotations = static_cast<unsigned>(keys.integer("rotations", 1, 3, 1));
  const auto form = keys.choice("form", {"published", "mse", "unbiased"}, 0);
  return make_rotated(bits, block, rotations, static_cast<RotatedForm>(form));
}

}  // namespace atomo::catalogue
