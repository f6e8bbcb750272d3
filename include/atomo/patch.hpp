// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Patches: how some tensors differ from an earlier state of them, without loss. Where few elements
/// have changed, as of bf16 weights from one update of a fine-tuning to the next, a patch is a small
/// part of the tensors (FORMAT.md, "Patches").
///
/// ```cpp
/// std::vector<float> weights(128 * 784), moved = weights, made(128 * 784);
/// moved[5] = 1;
/// const atomo::PatchTensor before{"fc.weight", "F32", {128, 784}, 4, true, std::as_bytes(std::span(weights))};
/// const atomo::PatchTensor after{"fc.weight", "F32", {128, 784}, 4, true, std::as_bytes(std::span(moved))};
/// const std::vector<std::byte> patch = atomo::make_patch({&before, 1}, {&after, 1});
/// const atomo::Bytes out[] = {std::as_writable_bytes(std::span(made))};
/// atomo::apply_patch(patch, {&before, 1}, out);  // made is moved
/// ```
///
/// These calls allocate. They wait for nothing but their own tasks, and the bytes do not depend on the
/// executor.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/types.hpp"

namespace [[gnu::visibility("default")]] atomo {

/// A tensor in host memory, of elements of any type, at any address.
struct PatchTensor {
  std::string name;                  ///< unique among the tensors of a state, at most 65,535 bytes
  std::string type;                  ///< what its elements are called, "BF16"; at most 255 bytes
  std::vector<std::uint64_t> shape;  ///< at most 255 dimensions
  std::uint8_t element_bytes = 4;  ///< 1, 2, 4 or 8; bytes that are compared and sent as one number
  bool floating = true;  ///< IEEE numbers, sign first, whose neighbours are near each other
  ConstBytes data;       ///< a whole number of elements
};

/// A tensor as a patch describes it.
struct PatchEntry {
  /// How the patch has the tensor's new state.
  enum class Form : std::uint8_t { same, changes, whole };

  std::string name;                  ///< as `PatchTensor`
  std::string type;                  ///< as `PatchTensor`
  std::vector<std::uint64_t> shape;  ///< as `PatchTensor`
  std::uint8_t element_bytes = 0;    ///< as `PatchTensor`
  bool floating = false;             ///< as `PatchTensor`
  Form form = Form::same;            ///< how the patch has it
  std::uint64_t bytes = 0;           ///< of the tensor
  std::uint64_t changed = 0;         ///< elements that differ; of a whole tensor all
  std::uint64_t sent = 0;            ///< bytes of the patch that are this tensor's alone
  std::uint64_t checksum = 0;        ///< of the new state's bytes (FORMAT.md, "Patches")
};

/// What a patch says before it is applied.
struct PatchInfo {
  std::string note;                 ///< what `make_patch` was given
  std::vector<PatchEntry> tensors;  ///< of the new state, in its order
  std::uint64_t bytes = 0;          ///< of the patch
};

/// The patch that makes `after` of `before`. A tensor that both have, by name, type and shape, is
/// sent as the elements that differ, where that is shorter than the tensor; any other tensor of
/// `after` whole. Those of `before` alone are not in the new state. `note` is kept as it is, of at
/// most 2^32 - 1 bytes. \throws Error naming the tensor for a name twice, or elements of another
/// size.
[[nodiscard]] std::vector<std::byte> make_patch(std::span<const PatchTensor> before,
                                                std::span<const PatchTensor> after,
                                                std::string_view note = {},
                                                Executor* executor = nullptr);

/// Reads what a patch says and checks that all of it is there: any bytes at all may be given. The
/// sizes of tensors in it are claims until `apply_patch` has compared them with those of `before`.
/// \throws Error saying what is damaged.
[[nodiscard]] PatchInfo inspect_patch(ConstBytes patch);

/// Writes the tensors of the new state: `out[i]` has the bytes of entry i, and may be the memory of
/// the tensor in `before`. The patch and the tensors of `before` are verified before a byte is
/// written, the new state afterwards. \throws Error naming the tensor that is missing, or not the
/// one that the patch was made from, or what is damaged.
void apply_patch(ConstBytes patch, std::span<const PatchTensor> before, std::span<const Bytes> out,
                 Executor* executor = nullptr);

}  // namespace atomo
