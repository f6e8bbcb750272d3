// SPDX-License-Identifier: Apache-2.0
/// \file
/// The trainer reads and writes .safetensors files here and adds a checksum to them: 16 digits of
/// XXH3 in the metadata, computed with zeros in their place. The reader does not trust a file: it
/// limits how deep the header nests, keeps every offset inside the file and accepts the data only
/// if each byte belongs to exactly one tensor. Every bit of a file with a checksum counts: the
/// checksum covers header and data, and its own field and digits have to be there.

#include "files/stored_tensors.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>
#include <stdexcept>

#include "common/safetensors_header.hpp"
#include "files/whole_file.hpp"

namespace train {

std::string checksum_of(const std::string& content) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(content.data(), content.size())));
  return digits;
}

namespace {

using atomo::programs::kHeaderLengthBytes;
using atomo::programs::kMostNested;

/// The checksum stands in the metadata as 16 digits, and is that of the whole file with 16 zeros in
/// their place.
constexpr const char* kChecksum = "xxh3";
constexpr std::string_view kChecksumField = "\"xxh3\":\"";
const std::string kNoChecksum(16, '0');

/// Where the digits of the checksum stand in a file.
std::size_t place_of_checksum(std::string_view content) {
  const auto at = content.find(kChecksumField);
  if (at == content.npos) throw std::runtime_error("its checksum is not where it is written");
  return at + kChecksumField.size();
}

/// With its length in front.
std::string header_of(const std::vector<StoredTensor>& tensors, const nlohmann::json& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const auto& t : tensors) {
    header[t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  return atomo::programs::with_length(header.dump());
}

nlohmann::json parse_header(std::string_view text) {
  return nlohmann::json::parse(text,
                               [](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
                                 if (depth > kMostNested)
                                   throw std::runtime_error("its header nests more than 8 lists");
                                 return true;
                               });
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

/// Whether bytes are missing is told before tensors are: that is what a full disk or a copy that
/// was broken off leaves.
void check_length(const nlohmann::json& header, std::string_view data) {
  std::uint64_t wanted = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__")
      wanted = std::max(wanted, entry.at("data_offsets").at(1).get<std::uint64_t>());
  }
  if (wanted > data.size())
    throw std::runtime_error("its tensors have " + std::to_string(wanted) + " bytes, of which " +
                             std::to_string(data.size()) + " are there: it was cut or changed");
}

/// Each byte of the data belongs to one tensor.
void check_data(const std::vector<StoredTensor>& tensors, std::string_view data) {
  std::vector<std::string_view> parts;
  for (const auto& t : tensors) parts.push_back(t.bytes);
  std::sort(parts.begin(), parts.end(), [](std::string_view a, std::string_view b) {
    return a.data() < b.data() || (a.data() == b.data() && a.size() < b.size());
  });
  const char* at = data.data();
  for (const auto part : parts) {
    if (part.data() != at)
      throw std::runtime_error("byte " + std::to_string(at - data.data()) +
                               " of its data belongs to no tensor, or to two");
    at += part.size();
  }
  const auto left = data.data() + data.size() - at;
  if (left != 0)
    throw std::runtime_error("it has " + std::to_string(left) +
                             " bytes behind the last tensor; it must end there");
}

void check_checksum(std::string content, const nlohmann::json& metadata) {
  const auto wanted = metadata.at(kChecksum).get<std::string>();
  content.replace(place_of_checksum(content), wanted.size(), kNoChecksum);
  const auto found = checksum_of(content);
  if (found != wanted)
    throw std::runtime_error("its checksum is " + wanted + ", that of its bytes is " + found +
                             ": they were changed");
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<StoredTensor>& tensors,
                       const nlohmann::json& metadata) {
  // One string: a checkpoint is small beside the activations of a step.
  auto with_checksum = metadata;
  with_checksum[kChecksum] = kNoChecksum;
  std::string content = header_of(tensors, with_checksum);
  for (const auto& t : tensors) content += t.bytes;
  const auto checksum = checksum_of(content);
  content.replace(place_of_checksum(content), checksum.size(), checksum);
  write_whole_file(path, content);
}

SafetensorsFile read_safetensors(const std::string& path) {
  SafetensorsFile file;
  file.content = read_whole_file(path);
  try {
    if (file.content.size() < kHeaderLengthBytes)
      throw std::runtime_error("it is shorter than 8 bytes");
    const auto length = atomo::programs::header_length(
        std::as_bytes(std::span(file.content)).first<kHeaderLengthBytes>());
    if (length > file.content.size() - kHeaderLengthBytes)
      throw std::runtime_error("its header leaves the file");
    const auto all = std::string_view(file.content);
    const auto header = parse_header(all.substr(kHeaderLengthBytes, length));
    const auto data = all.substr(kHeaderLengthBytes + length);
    check_length(header, data);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__")
        file.metadata = entry;
      else
        file.tensors.push_back(read_entry(name, entry, data));
    }
    check_data(file.tensors, data);
    if (file.metadata.contains(kChecksum)) check_checksum(file.content, file.metadata);
  } catch (const std::exception& e) {
    const bool ours = file.content.find(kChecksumField) != std::string::npos;
    throw DamagedFile("'" + path + "' is " + (ours ? "" : "no .safetensors file, or ") +
                      "damaged: " + e.what());
  }
  return file;
}

bool SafetensorsFile::has_checksum() const { return metadata.contains(kChecksum); }

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
