// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Blocks that are rotated at random and sent in the rotated basis: what DRIVE and EDEN are.

#include <cstdint>
#include <memory>

#include "atomo/own_codec.hpp"
#include "catalogue/body.hpp"

namespace atomo::catalogue {

/// How what is sent is chosen and scaled back.
enum class RotatedForm : std::uint8_t {
  published,  ///< the nearest, |x|^2 / <Rx, sent>: no bias if the rotation were uniform
  mse,        ///< the nearest, the scale of least squared error: biased towards zero
  unbiased,   ///< at random: no bias whatever the rotation is
};

/// Blocks, their rotations and their scales. A body is the blocks one after another: i16 e, f32 G, then the codes of the
/// block. A block decodes to 2^e G R^T q, R^T being without its factor 1 / sqrt(length), and q what the codes stand for.
class RotatedBlocks : public OwnCodec {
 public:
  /// `block`: entries of a block. \throws Error unless it is a power of two.
  RotatedBlocks(std::size_t block, unsigned rotations, RotatedForm form);

  std::size_t max_bytes(const Shape& shape) const override;
  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override;
  void decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const override;

 protected:
  /// A code of a block: what an entry, or a group of entries, is sent as.
  using Code = std::uint16_t;

  /// The number of codes of a block, and their bytes.
  [[nodiscard]] virtual std::size_t codes_of(std::size_t length) const = 0;
  [[nodiscard]] virtual std::size_t code_bytes(std::size_t length) const = 0;
  /// Chooses the codes of a rotated block, sqrt(length) Rx, of which not all entries are 0; its scale G. `energy` is |x|^2.
  virtual float choose(std::span<const float> v, double energy, Words& words,
                       std::span<Code> codes) const = 0;
  virtual void put(Writer& out, std::span<const Code> codes) const = 0;
  /// `length` is the block's. \throws Error for codes that stand for nothing.
  virtual void get(Reader& in, std::span<Code> codes, std::size_t length) const = 0;
  /// Fills `q`, whose entries are 0 at first.
  virtual void expand(std::span<const Code> codes, std::span<float> q) const noexcept = 0;

  /// G of `published` and `mse`, from <v, q> and |q|^2.
  [[nodiscard]] float scale_of(double along, double squares, double energy,
                               std::size_t length) const noexcept;
  [[nodiscard]] RotatedForm form() const noexcept { return form_; }
  [[nodiscard]] std::size_t block() const noexcept { return block_; }

 private:
  void rotate(std::span<float> v, const Draws& draws, std::size_t padded_first) const noexcept;
  void turn_back(std::span<float> v, const Draws& draws, std::size_t padded_first) const noexcept;

  std::size_t block_;
  unsigned rotations_;
  RotatedForm form_;
};

/// The key `bits` of eden and trellis: 0.02 to below 1, or 1, 2, 3 or 4; 2 where it is not given. \throws Error
double read_rotated_bits(SpecKeys& keys);

/// 2^`bits` levels of each rotated entry, `bits` 1 to 4, with the keys `block`, `rotations` and `form`. \throws Error
std::shared_ptr<const OwnCodec> read_rotated_levels(unsigned bits, SpecKeys& keys);

/// One rotated entry of each group, at most `bits` bits an entry, 0.02 to below 1, with the same keys. \throws Error
std::shared_ptr<const OwnCodec> read_rotated_groups(double bits, SpecKeys& keys);

/// The entries of a group that `read_rotated_groups` makes of so many bits an entry.
std::size_t group_of(double bits);

/// Multiplies `v` by the Hadamard matrix, whose entries are 1 and -1. `n` is a power of two.
void hadamard(float* v, std::size_t n) noexcept;

/// The 2^bits levels of least squared error for a normal variable, ascending.
std::span<const float> normal_levels(unsigned bits) noexcept;

}  // namespace atomo::catalogue
