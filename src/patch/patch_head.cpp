// SPDX-License-Identifier: Apache-2.0
/// The tensors of a state by name, each of which a patch can hold, and checksums.
#include "patch/patch_head.hpp"

#include "core/utf8.hpp"
#include "format/checksum.hpp"

namespace atomo::patch {
namespace {

void check(const PatchTensor& tensor) {
  const auto fail = [&](const std::string& what) {
    throw Error("the tensor " + quoted(tensor.name) + ": " + what);
  };
  const std::size_t size = tensor.element_bytes;
  if (size != 1 && size != 2 && size != 4 && size != 8)
    fail("elements of " + std::to_string(size) + " bytes; 1, 2, 4 and 8 are accepted");
  if (tensor.data.size() % size != 0)
    fail(std::to_string(tensor.data.size()) + " bytes are no whole number of elements of " +
         std::to_string(size));
  if (tensor.name.size() > 0xFFFF) fail("its name is longer than 65,535 bytes");
  if (tensor.type.size() > 0xFF) fail("its type's name is longer than 255 bytes");
  if (tensor.shape.size() > 0xFF) fail("it has more than 255 dimensions");
}

}  // namespace

std::uint64_t checksum(ConstBytes bytes, Executor* executor) noexcept {
  return format::body_checksum(bytes, {}, executor);
}

std::string quoted(std::string_view name) {
  std::string text = core::shown(name);
  text.insert(text.begin(), '\'');
  text.push_back('\'');
  return text;
}

ByName by_name(std::span<const PatchTensor> tensors) {
  ByName found;
  for (const PatchTensor& tensor : tensors) {
    check(tensor);
    if (!found.emplace(tensor.name, &tensor).second)
      throw Error("the tensor " + quoted(tensor.name) + " stands twice in one state");
  }
  return found;
}

const PatchTensor* find(const ByName& tensors, std::string_view name) {
  const auto at = tensors.find(name);
  return at == tensors.end() ? nullptr : at->second;
}

}  // namespace atomo::patch
