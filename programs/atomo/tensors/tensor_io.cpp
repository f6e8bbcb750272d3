// SPDX-License-Identifier: Apache-2.0
/// \file
/// The format of a file is chosen here by its extension or its first bytes; npy.cpp, npz.cpp and
/// safetensors.cpp know the formats themselves. Tensors of several files become one model, in which
/// every tensor gets a name of its own. The conversion of half-precision elements to f32 is here
/// too.
#include "tensors/tensor_io.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "terminal/failure.hpp"

namespace atomo::cli {
namespace {

constexpr std::array<Format, 3> kFormats{Format::npy, Format::npz, Format::safetensors};
constexpr const char* kAcceptedFormats = ".npy, .npz and .safetensors";

std::string extension_of(const std::string& path) {
  return std::filesystem::path(path).extension().string();
}

std::string stem_of(const std::string& path) {
  return path == "-" ? "stdin" : std::filesystem::path(path).stem().string();
}

bool begins_with(const Buffer& file, std::string_view magic) {
  return file.bytes >= magic.size() &&
         std::memcmp(file.data.get(), magic.data(), magic.size()) == 0;
}

Format format_of_content(const Buffer& file, const std::string& label) {
  if (begins_with(file, "\x93NUMPY")) {
    return Format::npy;
  }
  if (begins_with(file, "PK")) {
    return Format::npz;
  }
  constexpr std::size_t kLengthBytes = 8;
  if (file.bytes > kLengthBytes && file.data[kLengthBytes] == std::byte{'{'}) {
    return Format::safetensors;
  }
  throw InputError(fmt::format("{}: holds no tensors; accepted are {}", label, kAcceptedFormats));
}

float half_to_float(std::uint16_t half) {
  // Exponent and mantissa moved into place are off by 2^112, which the exact product also does for
  // subnormals.
  const auto magnitude =
      std::bit_cast<float>(static_cast<std::uint32_t>(half & 0x7fffU) << 13) * 0x1p112F;
  auto bits = std::bit_cast<std::uint32_t>(magnitude);
  if ((half & 0x7c00U) == 0x7c00U) {
    bits |= 0x7f800000U;
  }
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(half & 0x8000U) << 16));
}

/// Gives every tensor a name of its own; `file_of[i]` is the number of the path tensor i came from.
void separate_names(std::vector<Tensor>& tensors, const std::vector<std::size_t>& file_of,
                    const std::vector<std::string>& paths) {
  std::map<std::string, std::size_t> uses;
  for (const Tensor& t : tensors) {
    ++uses[t.name];
  }
  std::set<std::string> taken;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::string& name = tensors[i].name;
    if (uses[name] > 1) {
      name = stem_of(paths[file_of[i]]) + "/" + name;
    }
    const std::string base = name;
    for (std::size_t number = 2; !taken.insert(name).second; ++number) {
      name = fmt::format("{}:{}", base, number);
    }
  }
}

}  // namespace

const char* name_of(Format format) noexcept {
  switch (format) {
    case Format::npy:
      return "npy";
    case Format::npz:
      return "npz";
    case Format::safetensors:
      return "safetensors";
  }
  return "";
}

bool has_tensor_extension(const std::string& path) noexcept {
  return std::any_of(kFormats.begin(), kFormats.end(), [&](Format f) {
    const std::string_view ending = name_of(f);
    return path.size() > ending.size() && path.ends_with(ending) &&
           path[path.size() - ending.size() - 1] == '.';
  });
}

Format format_of_path(const std::string& path) {
  const std::string extension = extension_of(path);
  for (const Format f : kFormats) {
    if (extension == fmt::format(".{}", name_of(f))) {
      return f;
    }
  }
  throw InputError(fmt::format("{}: extension '{}' says no tensor format; accepted are {}", path,
                               extension, kAcceptedFormats));
}

std::vector<Tensor> read_tensors(const std::string& path) {
  const Buffer file = read_whole(path);
  const std::string label = input_label(path);
  if (file.bytes == 0) {
    throw InputError(fmt::format("{}: is empty; accepted are {}", label, kAcceptedFormats));
  }
  const bool told = path != "-" && has_tensor_extension(path);
  std::vector<Tensor> tensors;
  switch (told ? format_of_path(path) : format_of_content(file, label)) {
    case Format::npy:
      tensors.push_back(detail::read_npy(file, label, path == "-" ? "tensor_0" : stem_of(path)));
      break;
    case Format::npz:
      tensors = detail::read_npz(file, label);
      break;
    case Format::safetensors:
      tensors = detail::read_safetensors(file, label);
      break;
  }
  if (tensors.empty()) {
    throw InputError(fmt::format("{}: holds no tensors; at least one is needed", label));
  }
  return tensors;
}

std::vector<Tensor> read_model(const std::vector<std::string>& paths) {
  if (std::count(paths.begin(), paths.end(), "-") > 1) {
    throw InputError("standard input ('-') can be read once only");
  }
  std::vector<Tensor> tensors;
  std::vector<std::size_t> file_of;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    for (Tensor& t : read_tensors(paths[i])) {
      tensors.push_back(std::move(t));
      file_of.push_back(i);
    }
  }
  separate_names(tensors, file_of, paths);
  return tensors;
}

FileParts write_tensors(const std::vector<Tensor>& tensors, Format format) {
  if (format == Format::safetensors) {
    return detail::write_safetensors(tensors);
  }
  for (const Tensor& t : tensors) {
    if (t.dtype == DType::bf16) {
      throw InputError(
          fmt::format("tensor '{}' is bf16, which .{} cannot hold; write .safetensors or f32",
                      t.name, name_of(format)));
    }
  }
  if (format == Format::npz) {
    return detail::write_npz(tensors);
  }
  if (tensors.size() != 1) {
    throw InputError(fmt::format(
        "a .npy file takes exactly one tensor and there are {}; write .npz or .safetensors",
        tensors.size()));
  }
  const std::string header = detail::npy_header(tensors[0]);
  FileParts file;
  file.owned.emplace_back(header.size());
  std::memcpy(file.owned[0].data.get(), header.data(), header.size());
  file.parts = {file.owned[0].view(), {tensors[0].data.get(), tensors[0].bytes()}};
  return file;
}

Tensor to_f32(const Tensor& tensor) {
  if (tensor.dtype == DType::f32) {
    return tensor;
  }
  Tensor out{tensor.name, DType::f32, tensor.shape, {}};
  out.data = Buffer(out.bytes()).data;
  auto* to = reinterpret_cast<float*>(out.data.get());
  const auto* from = reinterpret_cast<const std::uint16_t*>(tensor.data.get());
  for (std::size_t i = 0; i < tensor.shape.elements(); ++i) {
    to[i] = tensor.dtype == DType::f16
                ? half_to_float(from[i])
                : std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
  }
  return out;
}

namespace detail {

std::shared_ptr<std::byte[]> share_aligned(const Buffer& file, std::size_t offset,
                                           std::size_t bytes, DType dtype) {
  std::byte* at = file.data.get() + offset;
  if (reinterpret_cast<std::uintptr_t>(at) % size_of(dtype) == 0) {
    return {file.data, at};
  }
  const Buffer copy(bytes);
  std::memcpy(copy.data.get(), at, bytes);
  return copy.data;
}

Shape checked_shape(const std::vector<std::int64_t>& dims, const std::string& label) {
  try {
    return Shape(std::span<const std::int64_t>(dims));
  } catch (const Error& error) {
    throw InputError(fmt::format("{}: {}", label, error.what()));
  }
}

}  // namespace detail
}  // namespace atomo::cli
