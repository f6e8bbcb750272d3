// SPDX-License-Identifier: Apache-2.0
/// \file
/// .npy: "\x93NUMPY", major, minor, length of the header (u16 in 1.0, u32 in 2.0 and 3.0), the
/// header, the array. The header is a Python dictionary literal with the keys descr, fortran_order
/// and shape.
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "tensors/tensor_io.hpp"
#include "terminal/failure.hpp"

namespace atomo::cli::detail {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 1 << 16;  // a header of 8 dimensions takes under 400 bytes
constexpr std::size_t kDataAlignment = 64;

/// Reads the few literals a header may hold: strings, True, False and tuples of integers.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& label) : text_(text), label_(label) {}

  [[noreturn]] void fail(std::string_view wanted) const {
    throw InputError(
        fmt::format("{}: damaged .npy header: {} expected at character {}", label_, wanted, at_));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  bool take(char c) {
    skip_space();
    const bool found = at_ < text_.size() && text_[at_] == c;
    at_ += found ? 1 : 0;
    return found;
  }

  void expect(char c) {
    if (!take(c)) {
      fail(fmt::format("'{}'", c));
    }
  }

  std::string_view string() {
    const char quote = take('\'') ? '\'' : '"';
    if (quote == '"') {
      expect('"');
    }
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) {
      fail("a closing quote");
    }
    const std::string_view value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    skip_space();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    }
    fail("True or False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!take(')')) {
      std::int64_t value = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0) {
        fail("a dimension from 0 to 2^63 - 1");
      }
      at_ = static_cast<std::size_t>(end - text_.data());
      values.push_back(value);
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }

  void expect_end() {
    skip_space();
    if (at_ != text_.size()) {
      fail("the end");
    }
  }

  /// A value that opens like a list: the fields of a structured array.
  [[nodiscard]] bool at_list() {
    skip_space();
    return at_ < text_.size() && text_[at_] == '[';
  }

 private:
  std::string_view text_;
  const std::string& label_;
  std::size_t at_ = 0;
};

DType dtype_of(std::string_view descr, const std::string& label) {
  if (descr == "<f4") {
    return DType::f32;
  }
  if (descr == "<f2") {
    return DType::f16;
  }
  std::string why = fmt::format("elements of type '{}' are not supported", descr);
  if (descr == ">f4" || descr == ">f2") {
    why += " (big-endian)";
  } else if (descr.find('O') != std::string_view::npos) {
    why += " (Python objects)";
  } else if (descr == "|V2" || descr == "<V2") {
    why += " (bfloat16 saved by NumPy looks so: write it as .safetensors)";
  }
  throw InputError(
      fmt::format("{}: {}; accepted are '<f4' and '<f2', as from a.astype('<f4')", label, why));
}

struct Header {
  DType dtype = DType::f32;
  Shape shape;
};

Header parse_header(std::string_view text, const std::string& label) {
  HeaderReader reader(text, label);
  std::optional<DType> dtype;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> dims;
  reader.expect('{');
  while (!reader.take('}')) {
    const std::string_view key = reader.string();
    reader.expect(':');
    if (key == "descr" && reader.at_list()) {
      throw InputError(fmt::format(
          "{}: a structured array is not supported; accepted are '<f4' and '<f2'", label));
    }
    if (key == "descr" && !dtype) {
      dtype = dtype_of(reader.string(), label);
    } else if (key == "fortran_order" && !fortran_order) {
      fortran_order = reader.boolean();
    } else if (key == "shape" && !dims) {
      dims = reader.tuple();
    } else {
      reader.fail("each of the keys descr, fortran_order and shape once");
    }
    if (!reader.take(',')) {
      reader.expect('}');
      break;
    }
  }
  reader.expect_end();
  if (!dtype || !fortran_order || !dims) {
    reader.fail("each of the keys descr, fortran_order and shape once");
  }
  if (*fortran_order) {
    throw InputError(fmt::format(
        "{}: the array is in Fortran order; row-major is accepted: save numpy.ascontiguousarray(a)",
        label));
  }
  return {*dtype, checked_shape(*dims, label)};
}

}  // namespace

Tensor read_npy(const Buffer& file, const std::string& label, const std::string& name) {
  constexpr std::size_t kPreludeV1 = 10;
  constexpr std::size_t kPreludeV2 = 12;
  const auto byte = [&](std::size_t i) { return std::to_integer<std::size_t>(file.data[i]); };
  if (file.bytes < kMagic.size() ||
      std::memcmp(file.data.get(), kMagic.data(), kMagic.size()) != 0) {
    throw InputError(fmt::format("{}: not a .npy file: it must begin with \\x93NUMPY", label));
  }
  if (file.bytes < kPreludeV2) {
    throw InputError(
        fmt::format("{}: truncated: {} bytes do not hold a .npy header", label, file.bytes));
  }
  const std::size_t major = byte(6);
  if (major < 1 || major > 3) {
    throw InputError(
        fmt::format("{}: .npy version {}.{} is not known; accepted are 1.0, 2.0 and 3.0", label,
                    major, byte(7)));
  }
  const std::size_t begin = major == 1 ? kPreludeV1 : kPreludeV2;
  std::size_t length = byte(8) | byte(9) << 8;
  if (major > 1) {
    length |= byte(10) << 16 | byte(11) << 24;
  }
  if (length > kMaxHeader) {
    throw InputError(fmt::format("{}: a header of {} bytes; at most {} are accepted", label, length,
                                 kMaxHeader));
  }
  if (length > file.bytes - begin) {
    throw InputError(fmt::format("{}: truncated: the header says {} bytes, {} are there", label,
                                 length, file.bytes - begin));
  }
  const auto [dtype, shape] =
      parse_header({reinterpret_cast<const char*>(file.data.get()) + begin, length}, label);
  Tensor tensor{name, dtype, shape, {}};
  const std::size_t there = file.bytes - begin - length;
  if (there < tensor.bytes()) {
    throw InputError(fmt::format("{}: truncated: an array {} of {} takes {} bytes, {} are there",
                                 label, shape.to_string(), atomo::name_of(dtype), tensor.bytes(),
                                 there));
  }
  if (there > tensor.bytes()) {
    throw InputError(
        fmt::format("{}: {} bytes after the array; one array a file is accepted (several: .npz)",
                    label, there - tensor.bytes()));
  }
  tensor.data = share_aligned(file, begin + length, tensor.bytes(), dtype);
  return tensor;
}

std::string npy_header(const Tensor& tensor) {
  std::string dims;
  for (const std::int64_t d : tensor.shape.dims()) {
    dims += fmt::format("{}{}", dims.empty() ? "" : ", ", d);
  }
  if (tensor.shape.rank() == 1) {
    dims += ",";
  }
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                 tensor.dtype == DType::f32 ? "<f4" : "<f2", dims);
  constexpr std::size_t kPrelude = 10;
  const std::size_t used = kPrelude + text.size() + 1;
  text.append((kDataAlignment - used % kDataAlignment) % kDataAlignment, ' ');
  text += '\n';
  std::string header(kMagic);
  header += '\x01';
  header += '\x00';
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace atomo::cli::detail
