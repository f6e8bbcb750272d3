// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors.hpp"

#include <cstring>
#include <stdexcept>

#include "files/whole_file.hpp"

namespace train {
namespace {

constexpr std::size_t kLengthBytes = 8;

/// Header with its length in front, filled with spaces so that data starts at a multiple of 8.
std::string header_of(const std::vector<StoredTensor>& tensors, const nlohmann::json& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const auto& t : tensors) {
    header[t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  std::string prefix(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    prefix[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return prefix + text;
}

StoredTensor read_entry(const std::string& name, const nlohmann::json& entry,
                        std::string_view data) {
  StoredTensor t{.name = name, .dtype = entry.at("dtype"), .shape = entry.at("shape"), .bytes = {}};
  const std::uint64_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
  if (begin > end || end > data.size())
    throw std::runtime_error("the offsets of '" + name + "' leave the file");
  t.bytes = data.substr(begin, end - begin);
  return t;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<StoredTensor>& tensors,
                       const nlohmann::json& metadata) {
  // One string: a checkpoint is small beside the activations of a step.
  std::string content = header_of(tensors, metadata);
  for (const auto& t : tensors) content += t.bytes;
  write_whole_file(path, content);
}

SafetensorsFile read_safetensors(const std::string& path) {
  SafetensorsFile file;
  file.content = read_whole_file(path);
  try {
    if (file.content.size() < kLengthBytes) throw std::runtime_error("it is shorter than 8 bytes");
    std::uint64_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;)
      length = length << 8 | static_cast<unsigned char>(file.content[i]);
    if (length > file.content.size() - kLengthBytes)
      throw std::runtime_error("its header leaves the file");
    const auto all = std::string_view(file.content);
    const auto header = nlohmann::json::parse(all.substr(kLengthBytes, length));
    const auto data = all.substr(kLengthBytes + length);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__")
        file.metadata = entry;
      else
        file.tensors.push_back(read_entry(name, entry, data));
    }
  } catch (const std::exception& e) {
    throw std::runtime_error("'" + path + "' is not a .safetensors file: " + e.what());
  }
  return file;
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  for (const auto& t : tensors) {
    if (t.name == name) return t;
  }
  throw std::runtime_error("there is no '" + name + "' in it");
}

std::vector<float> SafetensorsFile::floats(const std::string& name) const {
  const auto& t = at(name);
  if (t.dtype != "F32" || t.bytes.size() % sizeof(float) != 0)
    throw std::runtime_error("'" + name + "' is not F32");
  std::vector<float> values(t.bytes.size() / sizeof(float));
  std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
  return values;
}

}  // namespace train
