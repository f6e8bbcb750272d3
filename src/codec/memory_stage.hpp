// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The memory in front of a codec: what a sender keeps of the gradients that it has not sent yet. It is
/// never on the wire.

#include <cstddef>
#include <string>
#include <vector>

#include "atomo/types.hpp"
#include "codec/spec.hpp"

namespace atomo::codec {

/// A row of the table of memories, for help texts.
struct MemoryEntry {
  const char* name;
  const char* keys;
  const char* summary;
  const char* example;
  std::vector<std::string> specs;
};
/// In the order of the documentation.
[[nodiscard]] const std::vector<MemoryEntry>& memory_table();
/// Whether a stage of this name is a memory.
[[nodiscard]] bool is_memory(std::string_view stage);
/// Reads `ef:`, `momentum:`, `dgc:` or `ef21:`. \throws Error
[[nodiscard]] MemoryOptions read_memory(const std::string& stage, SpecArgs& args);
/// \throws Error, through `args`, for a codec that the memory cannot stand in front of.
void check_memory(const MemoryOptions& memory, const Traits& codec, const SpecArgs& args);

}  // namespace atomo::codec
