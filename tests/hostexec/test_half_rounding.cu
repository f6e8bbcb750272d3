// SPDX-License-Identifier: Apache-2.0
// Halves as kernels make and read them, without branches: to the bit those of core/half.hpp.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>

#include "core/half.hpp"
#include "cuda/half_rounding.cuh"

namespace atomo::cuda {
namespace {

const Key kKey{.seed = 7, .tensor = 3};
const HalfDraws kDraws{Philox(kKey, Purpose::identity), Philox(kKey, Purpose::identity_low)};

/// A magnitude of f32 whose first 16 bits below a unit of f16 are `draw`, above 2^-24; its further ones are
/// random.
float tie(std::uint32_t draw, std::mt19937& random) {
  const auto any = static_cast<std::uint32_t>(random());
  const std::uint32_t exponent = 104 + any % 7,
                      dropped = 126 - exponent;  // bits of the mantissa
  const std::uint32_t mask = 0xFFFFu << (dropped - 16);
  return std::bit_cast<float>(exponent << 23 |
                              (((any & ~mask) | draw << (dropped - 16)) & 0x7FFFFFu));
}

/// Eight entries of one kind: any finite, of any exponent, ties, about the largest half, zeros of both signs and
/// what f32 has no smaller of, or with Inf and NaN.
void fill(unsigned kind, std::uint64_t block, std::mt19937& random, float (&x)[8]) {
  const PhiloxWords words = kDraws.first(block);
  for (unsigned k = 0; k < 8; ++k) {
    const auto any = static_cast<std::uint32_t>(random());
    const std::uint32_t sign = any & 0x80000000u;
    std::uint32_t bits = any % 0x7F800000u;
    if (kind == 1) bits = std::bit_cast<std::uint32_t>(tie(half_of(words, k), random));
    if (kind == 2) bits = 0x477FC000u + any % 0x8000u;
    if (kind == 3) bits = any % 3;
    if (kind == 4) bits = 0x7F7E0000u + any % 0x30000u;
    if (kind == 5) bits = 0x32000000u + any % 0x07000000u;
    x[k] = std::bit_cast<float>(bits | sign);
  }
}

TEST(HalfRounding, EightAreThoseOfOne) {
  std::mt19937 random(1);
  std::size_t overflows = 0;
  for (std::uint64_t block = 0; block < 60'000; ++block) {
    float x[8];
    fill(block % 6, block, random, x);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::uint32_t pairs[4];
      bool overflow = false, any = false;
      round_eight(x, dtype, kDraws, 8 * block, pairs, overflow);
      for (unsigned k = 0; k < 8; ++k) {
        const ShortDraw draw{half_of(kDraws.first(block), k), &kDraws.further, 8 * block + k};
        const std::uint16_t expected =
            dtype == DType::f16 ? draw_f16(x[k], draw, any) : draw_bf16(x[k], draw, any);
        ASSERT_EQ(static_cast<std::uint16_t>(pairs[k / 2] >> (k % 2 * 16)), expected)
            << x[k] << ", block " << block;
      }
      ASSERT_EQ(overflow, any) << block;
      overflows += any ? 1 : 0;
    }
  }
  EXPECT_GT(overflows, 10'000u);
}

TEST(HalfRounding, EveryHalfIsReadAsItIs) {
  for (std::uint32_t h = 0; h < 0x10000u; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide_half(half, true)),
              std::bit_cast<std::uint32_t>(from_f16(half)))
        << h;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide_half(half, false)),
              std::bit_cast<std::uint32_t>(from_bf16(half)))
        << h;
  }
}

}  // namespace
}  // namespace atomo::cuda
