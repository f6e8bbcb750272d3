// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The head of a patch (FORMAT.md, "Patches"): what it is made of, and the tensors of a state by
/// name. make_patch.cpp writes it, apply_patch.cpp reads it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "atomo/patch.hpp"
#include "patch/changes.hpp"

namespace atomo::patch {

using Form = PatchEntry::Form;

inline constexpr char kMagic[8] = {'A', 'T', 'M', 'P', 'A', 'T', 'C', 'H'};
inline constexpr std::uint32_t kVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version, tensors;
  std::uint64_t head_bytes, bytes;  ///< up to the bodies; of the whole patch
  std::uint32_t note_bytes, zero;
};
static_assert(sizeof(Header) == 40);

/// The dimensions follow, 8 bytes each, the name, the type, zeros up to a multiple of 8.
struct Record {
  std::uint64_t before, after, body;  ///< checksums
  std::uint64_t bytes, body_bytes, changed;
  std::uint16_t name_bytes;
  std::uint8_t type_bytes, dimensions, element_bytes, floating, form, zero;
};
static_assert(sizeof(Record) == 56);
inline constexpr std::size_t kChecksumBytes = 8;

/// Of bytes, as of a container's bodies.
[[nodiscard]] std::uint64_t checksum(ConstBytes bytes, Executor* executor) noexcept;

[[nodiscard]] inline std::size_t padded(std::size_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

[[nodiscard]] std::string quoted(std::string_view name);

[[nodiscard]] inline std::size_t block_bytes(WordType type) noexcept {
  return static_cast<std::size_t>(kBlockWords) * type.bytes;
}
[[nodiscard]] inline std::size_t count_blocks(std::uint64_t bytes, WordType type) noexcept {
  const std::uint64_t each = block_bytes(type);
  return static_cast<std::size_t>(bytes / each + (bytes % each != 0 ? 1 : 0));
}

using ByName = std::map<std::string_view, const PatchTensor*>;

/// \throws Error for a tensor that no patch holds, or a name that stands twice.
[[nodiscard]] ByName by_name(std::span<const PatchTensor> tensors);
/// Null where there is none.
[[nodiscard]] const PatchTensor* find(const ByName& tensors, std::string_view name);

}  // namespace atomo::patch
