// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Tensors from and to .npy, .npz and .safetensors.
///
/// ```cpp
/// for (const auto& tensor : atomo::cli::read_tensors("grads.safetensors")) encode(tensor.view());
/// ```
///
/// Accepted elements: little-endian float32 and float16 everywhere, bfloat16 in .safetensors. All
/// else is refused with an InputError that names the file, the tensor, what was found and what
/// would be right. No size stated in a file is believed before it is checked against the bytes that
/// are there.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "atomo/types.hpp"
#include "tensors/files.hpp"

namespace atomo::cli {

/// A named tensor and a share in the memory that holds it. Aligned for its element type.
struct Tensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::shared_ptr<std::byte[]> data;

  [[nodiscard]] std::size_t bytes() const noexcept { return shape.elements() * size_of(dtype); }
  [[nodiscard]] ConstTensorView view() const noexcept { return {data.get(), dtype, shape}; }
  [[nodiscard]] TensorView writable() noexcept { return {data.get(), dtype, shape}; }
};

enum class Format { npy, npz, safetensors };

/// "npy", "npz", "safetensors".
[[nodiscard]] const char* name_of(Format format) noexcept;

/// By the extension of the path. \throws InputError for any other extension.
[[nodiscard]] Format format_of_path(const std::string& path);
[[nodiscard]] bool has_tensor_extension(const std::string& path) noexcept;

/// Reads every tensor of a file in the file's order. The extension says the format; a path without
/// a known one, and standard input, are told apart by their first bytes. A tensor of a .npy file is
/// named after the file.
[[nodiscard]] std::vector<Tensor> read_tensors(const std::string& path);

/// All files as one model. A name that occurs in several files is prefixed with its file's stem:
/// "a/weight".
[[nodiscard]] std::vector<Tensor> read_model(const std::vector<std::string>& paths);

/// The bytes of a file in parts that borrow from the tensors and from `owned`.
struct FileParts {
  std::vector<Buffer> owned;
  std::vector<ConstBytes> parts;
};

/// \throws InputError when the format cannot hold these tensors: several in a .npy, bfloat16
/// outside .safetensors.
[[nodiscard]] FileParts write_tensors(const std::vector<Tensor>& tensors, Format format);

/// Exact conversion of every element to f32.
[[nodiscard]] Tensor to_f32(const Tensor& tensor);

namespace detail {

/// `label` names the file (and the entry) in messages.
[[nodiscard]] Tensor read_npy(const Buffer& file, const std::string& label,
                              const std::string& name);
[[nodiscard]] std::vector<Tensor> read_npz(const Buffer& file, const std::string& label);
[[nodiscard]] std::vector<Tensor> read_safetensors(const Buffer& file, const std::string& label);

/// A tensor of a .safetensors file, of elements of any type.
struct StoredTensor {
  std::string name, type;  ///< "BF16"
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes behind the header

  [[nodiscard]] std::uint64_t bytes() const noexcept { return end - begin; }
};
struct StoredTensors {
  std::uint64_t data_begin = 0;       ///< where the header ends, in bytes of the file
  std::vector<StoredTensor> tensors;  ///< in the order of their data, which they cover
};
[[nodiscard]] StoredTensors index_safetensors(const Buffer& file, const std::string& label);

/// The header of a .npy file of this tensor, padded so that data begins at a multiple of 64.
[[nodiscard]] std::string npy_header(const Tensor& tensor);
[[nodiscard]] FileParts write_npz(const std::vector<Tensor>& tensors);
[[nodiscard]] FileParts write_safetensors(const std::vector<Tensor>& tensors);

/// The array at `offset` of the file: shared where its alignment allows, else copied.
[[nodiscard]] std::shared_ptr<std::byte[]> share_aligned(const Buffer& file, std::size_t offset,
                                                         std::size_t bytes, DType dtype);

/// A Shape from numbers in a file. \throws InputError beginning with `label`.
[[nodiscard]] Shape checked_shape(const std::vector<std::int64_t>& dims, const std::string& label);

}  // namespace detail
}  // namespace atomo::cli
