// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// .safetensors: 8 bytes of header length (little-endian), a JSON header, the tensors' bytes.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace train {

struct StoredTensor {
  std::string name;
  std::string dtype;  ///< "F32" or "U8"
  std::vector<std::int64_t> shape;
  std::string_view bytes;  ///< little-endian, row-major; borrowed
};

/// A file that does not have the bytes that were written.
class DamagedFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// XXH3 in 64 bits, as 16 digits.
[[nodiscard]] std::string checksum_of(const std::string& content);

/// `metadata` is a flat object of strings, to which the file's checksum is added. Written whole or
/// not at all.
void write_safetensors(const std::string& path, const std::vector<StoredTensor>& tensors,
                       const nlohmann::json& metadata);

/// A file in memory; the tensors' bytes point into it.
struct SafetensorsFile {
  std::string content;
  nlohmann::json metadata;
  std::vector<StoredTensor> tensors;
  /// Whether the file was compared with a checksum: those that the trainer writes are.
  [[nodiscard]] bool has_checksum() const;
  /// \throws std::runtime_error when there is none of that name.
  [[nodiscard]] const StoredTensor& at(const std::string& name) const;
  [[nodiscard]] std::vector<float> floats(const std::string& name) const;
};
/// \throws DamagedFile naming the file when it breaks the format or is not what its checksum says.
/// \throws std::runtime_error when it cannot be read.
[[nodiscard]] SafetensorsFile read_safetensors(const std::string& path);

[[nodiscard]] inline std::string_view text_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace train
