// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Python's arrays as views: NumPy, PyTorch, JAX, CuPy and whatever else speaks DLPack or the
/// buffer protocol, without a copy.
///
/// ```cpp
/// const Array x(object, Access::read, "x");
/// codec.encode(x.view(), ...);
/// ```

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "atomo/types.hpp"

namespace atomo::python {

namespace nb = nanobind;

/// What a call does with an array.
enum class Access { read, write };

/// An array of f32, f16 or bf16, C-contiguous, borrowed for as long as this lives. Made, copied and
/// destroyed with the GIL held.
class Array {
 public:
  /// `what` names the array in messages. \throws Error for a dtype, layout, device or shape that
  /// the library does not take, or a read-only array to write to; nb::type_error for what is no
  /// array.
  Array(nb::handle object, Access access, const std::string& what);

  /// For arrays on the CPU. \throws Error for one elsewhere.
  [[nodiscard]] const Array& on_host() const;
  /// For `decode_add`. \throws Error for halves.
  [[nodiscard]] const Array& for_sums() const;

  [[nodiscard]] const Shape& shape() const noexcept { return view_.shape; }
  [[nodiscard]] DType dtype() const noexcept { return view_.dtype; }
  [[nodiscard]] Device device() const noexcept { return view_.device; }
  [[nodiscard]] ConstTensorView view() const noexcept;
  /// Only of an array that was taken to write.
  [[nodiscard]] TensorView writable() const noexcept { return view_; }

 private:
  nb::object owner_;           ///< what `array_` was borrowed from, where that is not the object
  nb::ndarray<nb::ro> array_;  ///< keeps the memory
  TensorView view_;
  std::string what_;
};

/// The arrays of a call on a whole model, and their views in the same order.
class Arrays {
 public:
  /// Of a list or tuple. `names` calls them in messages; none: by their numbers.
  Arrays(nb::handle sequence, Access access, const std::string& what,
         const std::vector<std::string>* names = nullptr);

  [[nodiscard]] std::size_t size() const noexcept { return arrays_.size(); }
  [[nodiscard]] const Array& operator[](std::size_t i) const noexcept { return arrays_[i]; }
  void require_host() const;
  void require_f32() const;
  [[nodiscard]] std::vector<ConstTensorView> views() const;
  [[nodiscard]] std::vector<TensorView> writable() const;

 private:
  std::vector<Array> arrays_;
};

/// Bytes of Python's, borrowed: `bytes`, `memoryview`, any other buffer, arrays of uint8.
class Memory {
 public:
  Memory(nb::handle object, Access access, const std::string& what);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&&) = delete;

  [[nodiscard]] ConstBytes view() const noexcept { return {data_, bytes_}; }
  [[nodiscard]] Bytes writable() const noexcept { return {data_, bytes_}; }
  [[nodiscard]] Device device() const noexcept { return device_; }
  /// The number of that GPU among those of the process.
  [[nodiscard]] int ordinal() const { return array_.is_valid() ? array_.device_id() : 0; }
  /// \throws Error for memory of a device.
  [[nodiscard]] ConstBytes on_host() const;

 private:
  void borrow_array(nb::handle object, Access access, const std::string& what);

  Py_buffer buffer_{};
  nb::ndarray<nb::ro> array_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_ = Device::cpu;
  std::string what_;
};

/// Messages of Python's, held while a call reads them.
struct Messages {
  explicit Messages(const nb::list& payloads);
  /// \throws Error for memory of a device.
  void require_host() const;

  std::vector<Memory> held;
  std::vector<ConstBytes> bytes;
};

/// The first `bytes` of this memory, copied.
[[nodiscard]] nb::bytes bytes_of(ConstBytes memory, std::uint64_t bytes);

}  // namespace atomo::python
