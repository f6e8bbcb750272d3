// SPDX-License-Identifier: Apache-2.0
/// \file
/// The first bytes of a file say which format it has. PNG is read by libpng's simplified interface,
/// JPEG by libjpeg from memory; the binary formats of Netpbm, P5 and P6 with 255 as the largest
/// value, are read here.

#include "files/image_file.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <csetjmp>
#include <cstdio>
#include <stdexcept>
#include <string_view>

#include "files/unpacked_file.hpp"
#ifdef ATOMO_TRAIN_PNG
#include <png.h>
#endif
#ifdef ATOMO_TRAIN_JPEG
#include <jpeglib.h>
#endif

namespace train {
namespace {

using ImageBytes = std::vector<std::uint8_t>;
constexpr std::int64_t kLargestSide = 65535;

/// A number of a Netpbm header, behind white space and comments.
std::int64_t take_number(const ImageBytes& bytes, std::size_t& at) {
  while (at < bytes.size() && (std::isspace(bytes[at]) != 0 || bytes[at] == '#')) {
    if (bytes[at] == '#')
      while (at < bytes.size() && bytes[at] != '\n') ++at;
    else
      ++at;
  }
  std::int64_t number = 0;
  const std::size_t first = at;
  for (; at < bytes.size() && std::isdigit(bytes[at]) != 0 && number <= kLargestSide; ++at)
    number = 10 * number + bytes[at] - '0';
  if (at == first) throw std::runtime_error("its header is damaged");
  return number;
}

ImageFile read_netpbm(const ImageBytes& bytes) {
  ImageFile image;
  const std::int64_t channels = bytes[1] == '6' ? 3 : 1;
  std::size_t at = 2;
  image.width = take_number(bytes, at);
  image.height = take_number(bytes, at);
  if (take_number(bytes, at) != 255) throw std::runtime_error("its largest value is not 255");
  ++at;  // one white space
  const auto pixels = static_cast<std::size_t>(image.width * image.height * channels);
  if (image.width < 1 || image.height < 1 || bytes.size() < at || bytes.size() - at < pixels)
    throw std::runtime_error("it is cut");
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  if (channels == 3) {
    image.pixels.assign(begin, begin + static_cast<std::ptrdiff_t>(pixels));
    return image;
  }
  for (std::size_t k = 0; k < pixels; ++k)
    image.pixels.insert(image.pixels.end(), 3, bytes[at + k]);
  return image;
}

#ifdef ATOMO_TRAIN_PNG
ImageFile read_png(const ImageBytes& bytes) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&header, bytes.data(), bytes.size()) == 0)
    throw std::runtime_error(header.message);
  header.format = PNG_FORMAT_RGB;
  ImageFile image{.height = header.height, .width = header.width, .pixels = {}};
  image.pixels.resize(PNG_IMAGE_SIZE(header));
  constexpr png_color kBlack{0, 0, 0};
  if (png_image_finish_read(&header, &kBlack, image.pixels.data(), 0, nullptr) == 0)
    throw std::runtime_error(header.message);
  return image;
}
#else
ImageFile read_png(const ImageBytes&) {
  throw std::runtime_error("this program was built without PNG (libpng-dev)");
}
#endif

#ifdef ATOMO_TRAIN_JPEG
struct JpegFailure {
  jpeg_error_mgr base;  // libjpeg's pointer is to this
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> text;
};

void leave_jpeg(j_common_ptr info) {
  auto* const failure = reinterpret_cast<JpegFailure*>(info->err);
  failure->base.format_message(info, failure->text.data());
  std::longjmp(failure->back, 1);
}

/// Has no object with a destructor: libjpeg leaves it by a jump.
bool decompress(const ImageBytes& bytes, ImageFile& image, JpegFailure& failure) {
  jpeg_decompress_struct info{};
  info.err = jpeg_std_error(&failure.base);
  failure.base.error_exit = leave_jpeg;
  failure.base.output_message = [](j_common_ptr) {};
  if (setjmp(failure.back) != 0) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, bytes.data(), bytes.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  image.height = info.output_height;
  image.width = info.output_width;
  image.pixels.resize(std::size_t{3} * info.output_height * info.output_width);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = image.pixels.data() + std::size_t{3} * info.output_scanline * info.output_width;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  const bool whole = failure.base.num_warnings == 0;
  if (!whole)
    failure.base.format_message(reinterpret_cast<j_common_ptr>(&info), failure.text.data());
  jpeg_destroy_decompress(&info);
  return whole;
}

ImageFile read_jpeg(const ImageBytes& bytes) {
  ImageFile image;
  JpegFailure failure{};
  if (!decompress(bytes, image, failure)) throw std::runtime_error(failure.text.data());
  return image;
}
#else
ImageFile read_jpeg(const ImageBytes&) {
  throw std::runtime_error("this program was built without JPEG (libjpeg-dev)");
}
#endif

}  // namespace

bool is_image_name(const std::string& name) {
  std::string lower = name.substr(std::min(name.rfind('.'), name.size()));
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::array<std::string_view, 5> kEndings = {".png", ".jpg", ".jpeg", ".ppm", ".pgm"};
  return std::ranges::find(kEndings, lower) != kEndings.end();
}

ImageFile read_image_file(const std::string& path) {
  const auto bytes = read_unpacked_file(path);
  try {
    const std::string_view start(reinterpret_cast<const char*>(bytes.data()),
                                 std::min<std::size_t>(bytes.size(), 4));
    if (start == "\x89PNG") return read_png(bytes);
    if (start.starts_with("\xFF\xD8")) return read_jpeg(bytes);
    if (start.starts_with("P5") || start.starts_with("P6")) return read_netpbm(bytes);
    throw std::runtime_error("it is no PNG, JPEG, P5 or P6");
  } catch (const std::exception& e) {
    throw std::runtime_error("cannot read the image " + path + ": " + e.what());
  }
}

}  // namespace train
