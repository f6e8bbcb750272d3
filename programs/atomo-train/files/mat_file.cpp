// SPDX-License-Identifier: Apache-2.0
/// \file
/// A MATLAB file of version 5 is a header of 128 bytes and elements, each a type, a length and its
/// data; compressed elements hold one element in zlib's format. Of an array's parts the flags, the
/// dimensions, the name and the real numbers are read. Other elements are passed over.

#include "files/mat_file.hpp"

#include <zlib.h>

#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <stdexcept>

#include "files/unpacked_file.hpp"

namespace train {
namespace {

using MatBytes = std::span<const std::uint8_t>;

// Types of elements.
constexpr std::uint32_t kMatUint8 = 2, kMatUint16 = 4, kMatInt32 = 5, kMatDouble = 9,
                        kMatMatrix = 14, kMatCompressed = 15;
constexpr std::uint8_t kFirstNumericClass = 6, kLastNumericClass = 15;  // doubles to uint64

struct MatElement {
  std::uint32_t type = 0;
  MatBytes data;
};

std::uint32_t mat_word(MatBytes bytes, std::size_t at) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

/// The first element of `rest`, which it is cut off from.
MatElement take_element(MatBytes& rest) {
  constexpr std::size_t kTag = 8, kSmallTag = 4;
  if (rest.size() < kTag) throw std::runtime_error("it ends within an element");
  const std::uint32_t first = mat_word(rest, 0);
  if (first >> 16 != 0) {  // a small element: type, length and data in eight bytes
    const std::size_t bytes = first >> 16;
    if (bytes > kTag - kSmallTag) throw std::runtime_error("a small element is too long");
    const MatElement element{first & 0xFFFF, rest.subspan(kSmallTag, bytes)};
    rest = rest.subspan(kTag);
    return element;
  }
  const std::size_t bytes = mat_word(rest, 4);
  if (bytes > rest.size() - kTag) throw std::runtime_error("it ends within an element");
  const MatElement element{first, rest.subspan(kTag, bytes)};
  const std::size_t padded = first == kMatCompressed ? bytes : (bytes + 7) / 8 * 8;
  rest = rest.subspan(std::min(kTag + padded, rest.size()));
  return element;
}

std::vector<std::uint8_t> inflated(MatBytes packed) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) throw std::runtime_error("zlib does not start");
  stream.next_in = const_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  std::vector<std::uint8_t> bytes;
  std::array<std::uint8_t, 1 << 16> piece;
  int state = Z_OK;
  while (state == Z_OK) {
    stream.next_out = piece.data();
    stream.avail_out = piece.size();
    state = inflate(&stream, Z_NO_FLUSH);
    bytes.insert(bytes.end(), piece.begin(),
                 piece.end() - static_cast<std::ptrdiff_t>(stream.avail_out));
  }
  inflateEnd(&stream);
  if (state != Z_STREAM_END) throw std::runtime_error("compressed data are damaged");
  return bytes;
}

/// Numbers that are stored in whichever type, as bytes.
std::vector<std::uint8_t> bytes_of_numbers(const MatElement& numbers, const std::string& name) {
  if (numbers.type == kMatUint8) return {numbers.data.begin(), numbers.data.end()};
  std::vector<std::uint8_t> bytes;
  const auto add_all = [&]<class T>(T number) {
    for (std::size_t at = 0; at + sizeof number <= numbers.data.size(); at += sizeof number) {
      std::memcpy(&number, numbers.data.data() + at, sizeof number);
      const auto value = static_cast<double>(number);
      if (!(value >= 0 && value <= 255) || value != std::floor(value))
        throw std::runtime_error("'" + name + "' has " + std::to_string(value) +
                                 ", which is no byte");
      bytes.push_back(static_cast<std::uint8_t>(value));
    }
  };
  if (numbers.type == kMatUint16)
    add_all(std::uint16_t{});
  else if (numbers.type == kMatDouble)
    add_all(double{});
  else
    throw std::runtime_error("'" + name + "' is stored in type " + std::to_string(numbers.type));
  return bytes;
}

/// Adds the array of a matrix element, if its numbers are real.
void add_array(MatBytes parts, std::vector<MatArray>& arrays) {
  const auto flags = take_element(parts);
  if (flags.data.empty()) throw std::runtime_error("an array has no flags");
  const std::uint8_t kind = flags.data[0];
  if (kind < kFirstNumericClass || kind > kLastNumericClass) return;
  MatArray array;
  const auto dims = take_element(parts);
  if (dims.type != kMatInt32) throw std::runtime_error("an array has no dimensions");
  std::uint64_t elements = 1;
  for (std::size_t at = 0; at + 4 <= dims.data.size(); at += 4) {
    array.dims.push_back(mat_word(dims.data, at));
    elements *= mat_word(dims.data, at);
  }
  const auto name = take_element(parts).data;
  array.name.assign(name.begin(), name.end());
  array.bytes = bytes_of_numbers(take_element(parts), array.name);
  if (array.bytes.size() != elements) {
    throw std::runtime_error("'" + array.name + "' has " + std::to_string(array.bytes.size()) +
                             " numbers, its dimensions say " + std::to_string(elements));
  }
  arrays.push_back(std::move(array));
}

}  // namespace

std::vector<MatArray> read_mat_file(const std::string& path) {
  constexpr std::size_t kHeader = 128, kVersion = 124;
  const auto content = read_unpacked_file(path);
  try {
    if (content.size() < kHeader || mat_word(content, kVersion) != 0x4D490100U)  // 1.0, "IM"
      throw std::runtime_error("its header is another one");
    std::vector<MatArray> arrays;
    for (MatBytes rest = MatBytes(content).subspan(kHeader); !rest.empty();) {
      const auto element = take_element(rest);
      if (element.type == kMatMatrix) add_array(element.data, arrays);
      if (element.type != kMatCompressed) continue;
      const auto bytes = inflated(element.data);
      MatBytes inside(bytes);
      const auto packed = take_element(inside);
      if (packed.type == kMatMatrix) add_array(packed.data, arrays);
    }
    return arrays;
  } catch (const std::exception& e) {
    throw std::runtime_error(path + " is no MATLAB file of version 5, or damaged: " + e.what());
  }
}

}  // namespace train
