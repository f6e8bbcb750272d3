// SPDX-License-Identifier: Apache-2.0
/// \file
/// .safetensors: the length of a JSON header (u64, little-endian), the header, the data. The header
/// maps each name to dtype, shape and data_offsets [begin, end) from the end of the header;
/// "__metadata__" is a map of strings.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/safetensors_header.hpp"
#include "tensors/tensor_io.hpp"
#include "terminal/failure.hpp"

namespace atomo::cli::detail {
namespace {

using Json = nlohmann::ordered_json;
using programs::kHeaderLengthBytes;
using programs::kMostNested;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr std::uint64_t kMostListed = 64;               // dimensions: no framework has more
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::array<std::pair<std::string_view, DType>, 3> kTypes{
    {{"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}}};

std::uint64_t unsigned_of(const Json& value, const std::string& label, std::string_view what) {
  if (!value.is_number_unsigned()) {
    throw InputError(fmt::format("{}: {} must be integers from 0", label, what));
  }
  return value.get<std::uint64_t>();
}

DType dtype_of(const std::string& type, const std::string& label) {
  for (const auto& [name, dtype] : kTypes) {
    if (type == name) {
      return dtype;
    }
  }
  throw InputError(fmt::format(
      "{}: elements of type '{}' are not supported; accepted are F32, F16 and BF16", label, type));
}

std::string label_of(const std::string& file_label, const std::string& name) {
  return fmt::format("{}: tensor '{}'", file_label, name);
}

StoredTensor stored_tensor(const std::string& name, const Json& value, std::uint64_t data_bytes,
                           const std::string& file_label) {
  const std::string label = label_of(file_label, name);
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    throw InputError(fmt::format("{}: damaged header: needs dtype, shape and data_offsets", label));
  }
  const Json& type = value["dtype"];
  const Json& dims = value["shape"];
  const Json& offsets = value["data_offsets"];
  if (!dims.is_array() || !offsets.is_array() || offsets.size() != 2) {
    throw InputError(
        fmt::format("{}: damaged header: shape must be a list, data_offsets two integers", label));
  }
  StoredTensor tensor{name, type.is_string() ? type.get<std::string>() : "", {}, 0, 0};
  for (const Json& d : dims) {
    tensor.shape.push_back(unsigned_of(d, label, "dimensions"));
  }
  tensor.begin = unsigned_of(offsets[0], label, "data_offsets");
  tensor.end = unsigned_of(offsets[1], label, "data_offsets");
  if (tensor.begin > tensor.end) {
    throw InputError(fmt::format("{}: damaged header: data_offsets [{}, {}] end before they begin",
                                 label, tensor.begin, tensor.end));
  }
  if (tensor.end > data_bytes) {
    throw InputError(fmt::format("{}: truncated: its data end at byte {}, {} are there", label,
                                 tensor.end, data_bytes));
  }
  return tensor;
}

/// A stored tensor of a type that codecs take, without its data.
Tensor tensor_of(const StoredTensor& stored, const std::string& label) {
  std::vector<std::int64_t> shape;
  for (const std::uint64_t size : stored.shape) {
    shape.push_back(static_cast<std::int64_t>(
        std::min<std::uint64_t>(size, std::numeric_limits<std::int64_t>::max())));
  }
  Tensor tensor;
  tensor.name = stored.name;
  tensor.dtype = dtype_of(stored.type, label);
  tensor.shape = checked_shape(shape, label);
  if (stored.bytes() != tensor.bytes()) {
    throw InputError(
        fmt::format("{}: damaged header: data_offsets [{}, {}] do not span the {} bytes of {}",
                    label, stored.begin, stored.end, tensor.bytes(), tensor.shape.to_string()));
  }
  return tensor;
}

Json parse_header(const Buffer& file, const std::string& label, std::uint64_t& header_bytes) {
  if (file.bytes < kHeaderLengthBytes) {
    throw InputError(fmt::format("{}: truncated: {} bytes do not hold a .safetensors header", label,
                                 file.bytes));
  }
  header_bytes = programs::header_length(file.view().first<kHeaderLengthBytes>());
  if (header_bytes > kMaxHeaderBytes) {
    throw InputError(
        fmt::format("{}: not a .safetensors file: a header of {} bytes; at most {} are accepted",
                    label, header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > file.bytes - kHeaderLengthBytes) {
    throw InputError(fmt::format("{}: truncated: the header says {} bytes, {} are there", label,
                                 header_bytes, file.bytes - kHeaderLengthBytes));
  }
  const char* text = reinterpret_cast<const char*>(file.data.get()) + kHeaderLengthBytes;
  // What is nested too deeply is cut off: a few bytes of brackets would take a hundred each.
  bool too_deep = false;
  std::uint64_t listed = 0;
  const auto keep = [&](int depth, Json::parse_event_t event, const Json&) {
    too_deep = too_deep || depth > kMostNested;
    if (event != Json::parse_event_t::value) {
      listed = 0;
    } else if (++listed > kMostListed) {
      // At once: a hundred million bytes of dimensions would take gigabytes.
      throw InputError(
          fmt::format("{}: damaged header: a list of more than {} values", label, kMostListed));
    }
    return !too_deep;
  };
  const Json header = Json::parse(text, text + header_bytes, keep, false);
  if (too_deep) {
    throw InputError(fmt::format("{}: not a .safetensors file: its header nests more than {} lists",
                                 label, kMostNested));
  }
  if (!header.is_object()) {
    throw InputError(
        fmt::format("{}: not a .safetensors file: its header is not a JSON object", label));
  }
  return header;
}

/// JSON for one tensor's place. \throws InputError for a name that JSON cannot hold.
std::string quoted(const std::string& name) {
  try {
    return Json(name).dump();
  } catch (const nlohmann::json::exception&) {
    throw InputError("a tensor's name is not UTF-8, which .safetensors needs; write .npz");
  }
}

}  // namespace

StoredTensors index_safetensors(const Buffer& file, const std::string& label) {
  std::uint64_t header_bytes = 0;
  const Json header = parse_header(file, label, header_bytes);
  StoredTensors stored;
  stored.data_begin = kHeaderLengthBytes + header_bytes;
  const std::uint64_t data_bytes = file.bytes - stored.data_begin;
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadata) {
      stored.tensors.push_back(stored_tensor(name, value, data_bytes, label));
    }
  }
  std::stable_sort(stored.tensors.begin(), stored.tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  // Gaps and overlaps are refused: a name that stands twice, or data nobody claims, cannot pass
  // unseen.
  std::uint64_t at = 0;
  for (const StoredTensor& tensor : stored.tensors) {
    if (tensor.begin != at) {
      throw InputError(fmt::format("{}: damaged header: its data begin at byte {}, {} was expected",
                                   label_of(label, tensor.name), tensor.begin, at));
    }
    at = tensor.end;
  }
  if (at != data_bytes) {
    throw InputError(
        fmt::format("{}: {} bytes after the last tensor's data; the file must end there", label,
                    data_bytes - at));
  }
  return stored;
}

std::vector<Tensor> read_safetensors(const Buffer& file, const std::string& label) {
  const StoredTensors stored = index_safetensors(file, label);
  // All shapes before any data, which may have to be copied.
  std::vector<Tensor> tensors;
  for (const StoredTensor& s : stored.tensors) {
    tensors.push_back(tensor_of(s, label_of(label, s.name)));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = tensors[i];
    tensor.data = share_aligned(file, stored.data_begin + stored.tensors[i].begin, tensor.bytes(),
                                tensor.dtype);
  }
  return tensors;
}

FileParts write_safetensors(const std::vector<Tensor>& tensors) {
  // Wider elements first, so that all data are aligned whatever their sizes.
  std::vector<const Tensor*> order;
  for (const Tensor& t : tensors) {
    if (t.name == kMetadata)
      throw InputError(fmt::format(
          "a .safetensors file cannot hold a tensor of the name '{}'; write .npz", t.name));
    order.push_back(&t);
  }
  std::stable_sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    return size_of(a->dtype) > size_of(b->dtype);
  });
  std::string header = "{";
  std::uint64_t at = 0;
  for (const Tensor* t : order) {
    const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                    [&](const auto& k) { return k.second == t->dtype; });
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                          at == 0 && header == "{" ? "" : ",", quoted(t->name), type->first,
                          Json(t->shape.dims()).dump(), at, at + t->bytes());
    at += t->bytes();
  }
  header += "}";
  header = programs::with_length(std::move(header));
  FileParts file;
  file.owned.emplace_back(header.size());
  std::memcpy(file.owned[0].data.get(), header.data(), header.size());
  file.parts.push_back(file.owned[0].view());
  for (const Tensor* t : order) {
    file.parts.push_back({t->data.get(), t->bytes()});
  }
  return file;
}

}  // namespace atomo::cli::detail
