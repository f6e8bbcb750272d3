// SPDX-License-Identifier: Apache-2.0
/// The driver's mutations of bytes, whatever they mean.
#include <algorithm>
#include <cstring>

#include "fuzz/mutations.hpp"

namespace atomo::fuzz {
namespace {

constexpr std::uint64_t kNumbers[] = {0,
                                      1,
                                      2,
                                      3,
                                      7,
                                      8,
                                      15,
                                      16,
                                      17,
                                      31,
                                      32,
                                      33,
                                      63,
                                      64,
                                      65,
                                      127,
                                      128,
                                      255,
                                      256,
                                      257,
                                      511,
                                      512,
                                      1023,
                                      1024,
                                      4095,
                                      4096,
                                      4097,
                                      0x7F7F,
                                      0x7F80,
                                      0x8000,
                                      0xFFFF,
                                      65536,
                                      65537,
                                      0x3F800000,
                                      0x7F7FFFFF,
                                      0x7F800000,
                                      0x7FC00000,
                                      0x80000000,
                                      0xFFFFFFFF,
                                      std::uint64_t{1} << 32,
                                      std::uint64_t{1} << 40,
                                      std::uint64_t{1} << 62,
                                      ~std::uint64_t{0} >> 1,
                                      ~std::uint64_t{0}};

void insert(Buffer& input, std::size_t at, ConstBytes piece, std::size_t most) {
  const std::size_t n = std::min(piece.size(), most - std::min(most, input.size()));
  const Buffer copy(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
  input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), copy.begin(), copy.end());
}

void overwrite(Buffer& input, std::size_t at, ConstBytes piece) {
  const std::size_t n = std::min(piece.size(), input.size() - at);
  if (n > 0) std::memmove(input.data() + at, piece.data(), n);
}

/// A piece of some bytes, short more often than long.
ConstBytes piece_of(ConstBytes bytes, Draw& draw) {
  if (bytes.empty()) return {};
  const std::size_t at = draw() % bytes.size();
  const std::size_t longest = std::min<std::size_t>(bytes.size() - at, 1u << draw() % 8);
  return bytes.subspan(at, 1 + draw() % longest);
}

void mutate_once(Buffer& input, std::size_t most, Draw& draw, ConstBytes other,
                 const std::vector<std::string>* tokens) {
  const std::size_t at = input.empty() ? 0 : draw() % input.size();
  const auto byte = static_cast<std::byte>(draw());
  if (tokens != nullptr && !tokens->empty() && draw() % 3 == 0) {
    const std::string& token = (*tokens)[draw() % tokens->size()];
    const ConstBytes bytes = std::as_bytes(std::span(token));
    if (draw() % 2 == 0) return insert(input, at, bytes, most);
    return overwrite(input, at, bytes);
  }
  if (input.empty()) return insert(input, 0, {&byte, 1}, most);
  switch (draw() % 10) {
    case 0:
      input[at] = byte;
      break;
    case 1:
    case 2:
      input[at] ^= static_cast<std::byte>(1u << draw() % 8);
      break;
    case 3: {  // a number near the one that is there
      const auto by = static_cast<unsigned>(1 + draw() % 16);
      const auto value = std::to_integer<unsigned>(input[at]);
      input[at] = static_cast<std::byte>(draw() % 2 == 0 ? value + by : value - by);
      break;
    }
    case 4: {
      const std::uint64_t number = kNumbers[draw() % std::size(kNumbers)];
      const std::size_t bytes = std::size_t{1} << draw() % 4;
      overwrite(input, at, std::as_bytes(std::span(&number, 1)).first(bytes));
      break;
    }
    case 5: {
      const std::size_t n =
          std::min<std::size_t>(input.size() - at, 1 + draw() % (1u << draw() % 8));
      input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                  input.begin() + static_cast<std::ptrdiff_t>(at + n));
      break;
    }
    case 6:
      insert(input, at, piece_of(input, draw), most);
      break;
    case 7:
      overwrite(input, at, piece_of(input, draw));
      break;
    case 8: {
      const Buffer piece(1 + draw() % (1u << draw() % 7), draw() % 2 == 0 ? byte : std::byte{0});
      if (draw() % 2 == 0) {
        insert(input, at, piece, most);
      } else {
        overwrite(input, at, piece);
      }
      break;
    }
    default:
      if (draw() % 2 == 0) {
        insert(input, at, piece_of(other, draw), most);
      } else {
        overwrite(input, at, piece_of(other, draw));
      }
  }
}

}  // namespace

void mutate_bytes(Buffer& input, std::size_t most, Draw& draw, ConstBytes other,
                  const std::vector<std::string>* tokens) {
  for (std::size_t times = 1 + draw() % 4; times > 0; --times)
    mutate_once(input, most, draw, other, tokens);
  if (input.size() > most) input.resize(most);
}

}  // namespace atomo::fuzz
