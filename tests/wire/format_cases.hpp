// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Containers to check the format with: one list for the independent decoder, a small one whose
/// bytes are kept as goldens. Inputs come from integers alone, so every compiler and platform makes
/// the same.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "atomo/atomo.hpp"

namespace atomo::test {

/// Uniform integers, the same everywhere.
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// What the entries of a layer look like.
enum class Content {
  mixed,       ///< rows of scales from 2^-16 to 2^-4, one in 16 zero, an entry in 64 much larger
  flat,        ///< one scale, 2^-6, an entry in 64 much larger
  tiny,        ///< mixed, times 2^-124: subnormals
  huge,        ///< mixed, times 2^+104: about 1e30
  zero,        ///< zeros of both signs
  non_finite,  ///< mixed, with a NaN
  even,        ///< flat, without the larger entries
  largest,     ///< flat, an entry in 7 the largest f32 of either sign
  outer,       ///< an outer product of two such vectors, and a little of `even`
};

/// A layer to encode, with the codec that does it.
struct CaseLayer {
  std::string spec;
  Shape shape;
  Content content = Content::mixed;
  DType dtype = DType::f32;
  std::string name = {};
};

/// How the layers of a case become one message.
enum class Joining {
  codec,       ///< one layer, by its codec alone
  model,       ///< by a Compressor, at shared prices
  own_prices,  ///< layer by layer in a model's first step, joined
  low_price,   ///< layer by layer at a shared price of 2^-22, joined: for layers with a cap, which
               ///< it breaks
  summed,      ///< by a Compressor as several workers; their sum, doubled again and again
};

struct FormatCase {
  std::string name;  ///< also the stem of its files
  std::vector<CaseLayer> layers;
  Joining joining = Joining::codec;
  bool names_on_wire = false;
  unsigned doublings = 0;  ///< of a sum
  bool of_older = false;   ///< older builds wrote these bytes, and none does any more
  Key key{.seed = 0x9E3779B97F4A7C15, .step = 1234567, .tensor = 0, .worker = 3, .channel = 2};
};

/// Everything the independent decoder is checked with.
std::vector<FormatCase> format_cases();
/// A small part of it: one of every codec, and models.
std::vector<FormatCase> golden_cases();
/// Whether every build writes the same bytes: not those of older builds alone, and not behind a
/// lossless stage, an SVD or a sketch, which are libraries'.
bool bytes_are_fixed(const FormatCase& c);

/// \throws Error when the library refuses to encode it.
std::vector<std::byte> encode_case(const FormatCase& c);
/// Every layer decoded into `dtype`, one behind the other, little-endian.
/// \throws Error when the library refuses to decode it.
std::vector<std::byte> decode_case(const FormatCase& c, ConstBytes message, DType dtype);
/// Whether the library decodes `message`, which may be damaged, as the case's layers; into f32.
bool decodes(const FormatCase& c, ConstBytes message, std::vector<std::byte>& values);

}  // namespace atomo::test
