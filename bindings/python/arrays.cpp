// SPDX-License-Identifier: Apache-2.0
/// \file
/// An array that Python hands over is borrowed through DLPack or the buffer protocol, and the
/// library is told its address, dtype, shape and device. Arrays that the library cannot use
/// (another dtype, strides, misaligned elements, read-only memory for an output) are refused with a
/// message that says what to give instead. NumPy cannot export bfloat16, so the words of such an
/// array are borrowed as uint16.

#include "arrays.hpp"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "arguments.hpp"

namespace atomo::python {
namespace {

using Imported = nb::ndarray<nb::ro>;

bool is_of(nb::handle object, const char* module_prefix) {
  const nb::object module = nb::getattr(object.type(), "__module__", nb::str(""));
  return nb::cast<std::string>(nb::str(module)).starts_with(module_prefix);
}

std::string dtype_of(const nb::dlpack::dtype& t) {
  using Code = nb::dlpack::dtype_code;
  std::string name = "elements of another kind, of ";
  switch (static_cast<Code>(t.code)) {
    case Code::Int:
      name = "int";
      break;
    case Code::UInt:
      name = "uint";
      break;
    case Code::Float:
      name = "float";
      break;
    case Code::Bfloat:
      name = "bfloat";
      break;
    case Code::Complex:
      name = "complex";
      break;
    case Code::Bool:
      return "bool";
    default:
      return name + std::to_string(t.bits) + " bits";
  }
  return name + std::to_string(t.bits);
}

std::string numbers(const std::int64_t* values, std::size_t n) {
  std::string text = "[";
  for (std::size_t i = 0; i < n; ++i) text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

/// A tensor whose history autograd follows: nobody writes into it behind its back.
bool requires_grad(nb::handle object) {
  const nb::object flag = nb::getattr(object, "requires_grad", nb::none());
  return flag.is(nb::handle(Py_True));
}

/// A tensor of PyTorch's whose values are the negatives of those in memory, as of `z.conj().imag`. Its DLPack
/// lends the memory and does not tell.
bool is_negative_view(nb::handle object) {
  const nb::object told = nb::getattr(object, "is_neg", nb::none());
  return PyCallable_Check(told.ptr()) != 0 && told().is(nb::handle(Py_True));
}

/// Why the array's own framework does not lend it, in its words; empty when it does not say.
std::string reason(nb::handle object) {
  try {
    static_cast<void>(object.attr("__dlpack__")());
  } catch (nb::python_error& error) {
    return nb::cast<std::string>(nb::str(error.value()));
  }
  return {};
}

/// Says why `object` could not be borrowed.
[[noreturn]] void refuse(nb::handle object, Access access, const std::string& what) {
  if (!nb::ndarray_check(object) || nb::isinstance<nb::bytes>(object)) {
    throw nb::type_error(
        (what + ": an array (NumPy, PyTorch, JAX, CuPy) is expected, found " + type_of(object))
            .c_str());
  }
  Imported readable;
  if (access == Access::write && nb::try_cast(object, readable, false))
    throw Error(what + ": this array is read-only; give a writable one, or like= for a new one");
  const std::string why = reason(object);
  throw Error(what + ": this " + type_of(object) + " does not lend its memory" +
              (why.empty() ? "" : " (" + why + ")") +
              "; a dense array of float32, float16 or bfloat16 in this machine's byte order does");
}

bool borrow(nb::handle object, Access access, Imported& array) {
  if (access == Access::read) return nb::try_cast(object, array, false);
  nb::ndarray<> writable;
  if (!nb::try_cast(object, writable, false)) return false;
  array = Imported(writable);
  return true;
}

/// NumPy knows neither DLPack nor a buffer of ml_dtypes' bfloat16: its words are lent as uint16.
bool is_numpy_bfloat16(nb::handle object) {
  if (!is_of(object, "numpy")) return false;
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  return nb::cast<std::string>(nb::str(dtype)) == "bfloat16";
}

bool is_contiguous(const Imported& array) {
  if (array.size() == 0) return true;
  std::int64_t step = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != step) return false;
    step *= static_cast<std::int64_t>(array.shape(i));
  }
  return true;
}

Device device_of(const Imported& array, const std::string& what) {
  switch (array.device_type()) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value:
      return Device::cpu;
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value:
      return Device::cuda;
    default:
      throw Error(what + ": this array is on a device of DLPack's type " +
                  std::to_string(array.device_type()) + "; the CPU and CUDA are known");
  }
}

DType dtype_of(const nb::dlpack::dtype& t, const std::string& what) {
  using Code = nb::dlpack::dtype_code;
  if (t.lanes == 1 && t.code == static_cast<std::uint8_t>(Code::Float) && t.bits == 32)
    return DType::f32;
  if (t.lanes == 1 && t.code == static_cast<std::uint8_t>(Code::Float) && t.bits == 16)
    return DType::f16;
  if (t.lanes == 1 && t.code == static_cast<std::uint8_t>(Code::Bfloat) && t.bits == 16)
    return DType::bf16;
  throw Error(what + ": the elements are " + dtype_of(t) +
              "; float32, float16 and bfloat16 are accepted: convert it, e.g. with "
              "x.astype('float32') or x.float()");
}

Shape shape_of(const Imported& array, const std::string& what) {
  try {
    return Shape(std::span(array.shape_ptr(), array.ndim()));
  } catch (const Error& error) {
    throw Error(what + ": " + error.what());
  }
}

}  // namespace

Array::Array(nb::handle object, Access access, const std::string& what) : what_(what) {
  if (access == Access::write && is_of(object, "jax"))
    throw Error(what + ": JAX's arrays are immutable; like= gives a new one");
  if (access == Access::write && requires_grad(object))
    throw Error(what + ": this tensor requires grad; give its .detach()");
  if (is_negative_view(object))
    throw Error(what + ": this tensor has its negative bit set: give its .resolve_neg()");
  std::optional<DType> dtype;
  if (!borrow(object, access, array_)) {
    if (!is_numpy_bfloat16(object)) refuse(object, access, what);
    owner_ = object.attr("view")("uint16");
    if (!borrow(owner_, access, array_)) refuse(owner_, access, what);
    dtype = DType::bf16;
  }
  view_ = {const_cast<void*>(array_.data()), dtype ? *dtype : dtype_of(array_.dtype(), what),
           shape_of(array_, what), device_of(array_, what)};
  if (!is_contiguous(array_)) {
    throw Error(what + ": strides " + numbers(array_.stride_ptr(), array_.ndim()) +
                " of the shape " + view_.shape.to_string() +
                " are not C-contiguous; give numpy.ascontiguousarray(x) or x.contiguous()");
  }
  const std::size_t size = size_of(view_.dtype);
  if (const auto at = reinterpret_cast<std::uintptr_t>(view_.data); at % size != 0) {
    throw Error(what + ": the elements begin " + std::to_string(at % size) +
                " bytes behind a multiple of " + std::to_string(size) +
                ", where none may stand; give x.copy() or x.clone()");
  }
}

const Array& Array::on_host() const {
  if (view_.device != Device::cpu)
    throw Error(what_ + ": this array is on a GPU; an array on the CPU is expected here");
  return *this;
}

const Array& Array::for_sums() const {
  if (view_.dtype != DType::f32) {
    throw Error(what_ + ": the elements are " + std::string(name_of(view_.dtype)) +
                "; a message is added to f32 only");
  }
  return *this;
}

ConstTensorView Array::view() const noexcept {
  return {view_.data, view_.dtype, view_.shape, view_.device};
}

Arrays::Arrays(nb::handle sequence, Access access, const std::string& what,
               const std::vector<std::string>* names) {
  if (!nb::isinstance<nb::list>(sequence) && !nb::isinstance<nb::tuple>(sequence)) {
    throw nb::type_error(
        (what + ": a list of arrays is expected, found " + type_of(sequence)).c_str());
  }
  arrays_.reserve(nb::len(sequence));
  for (const nb::handle object : sequence) {
    const std::size_t i = arrays_.size();
    const bool named = names != nullptr && i < names->size();
    arrays_.emplace_back(object, access,
                         what + "[" + (named ? "'" + (*names)[i] + "'" : std::to_string(i)) + "]");
  }
}

void Arrays::require_host() const {
  for (const Array& array : arrays_) static_cast<void>(array.on_host());
}

void Arrays::require_f32() const {
  for (const Array& array : arrays_) static_cast<void>(array.for_sums());
}

std::vector<ConstTensorView> Arrays::views() const {
  std::vector<ConstTensorView> views;
  views.reserve(arrays_.size());
  for (const Array& array : arrays_) views.push_back(array.view());
  return views;
}

std::vector<TensorView> Arrays::writable() const {
  std::vector<TensorView> views;
  views.reserve(arrays_.size());
  for (const Array& array : arrays_) views.push_back(array.writable());
  return views;
}

Memory::Memory(nb::handle object, Access access, const std::string& what) : what_(what) {
  const int flags = access == Access::write ? PyBUF_WRITABLE : PyBUF_SIMPLE;
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) == 0) {
      data_ = static_cast<std::byte*>(buffer_.buf);
      bytes_ = static_cast<std::size_t>(buffer_.len);
      return;
    }
    PyErr_Clear();
    throw Error(what + ": these bytes are not contiguous" +
                (access == Access::write ? " or read-only" : "") + "; give bytes(x)");
  }
  borrow_array(object, access, what);
}

void Memory::borrow_array(nb::handle object, Access access, const std::string& what) {
  if (!nb::ndarray_check(object)) {
    throw nb::type_error(
        (what + ": bytes or an array of uint8 are expected, found " + type_of(object)).c_str());
  }
  if (!borrow(object, access, array_)) refuse(object, access, what);
  const nb::dlpack::dtype t = array_.dtype();
  if (t.code != static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt) || t.bits != 8)
    throw Error(what + ": the elements are " + dtype_of(t) + "; uint8 is accepted");
  if (!is_contiguous(array_)) throw Error(what + ": these bytes are not contiguous");
  device_ = device_of(array_, what);
  data_ = static_cast<std::byte*>(const_cast<void*>(array_.data()));
  bytes_ = array_.size();
}

Memory::~Memory() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

Memory::Memory(Memory&& other) noexcept
    : buffer_(std::exchange(other.buffer_, Py_buffer{})),
      array_(std::move(other.array_)),
      data_(other.data_),
      bytes_(other.bytes_),
      device_(other.device_),
      what_(std::move(other.what_)) {}

ConstBytes Memory::on_host() const {
  if (device_ != Device::cpu)
    throw Error(what_ + ": this message is on a GPU; copy it to the CPU first");
  return view();
}

Messages::Messages(const nb::list& payloads) {
  for (const nb::handle payload : payloads) {
    held.emplace_back(payload, Access::read, "payloads[" + std::to_string(held.size()) + "]");
    bytes.push_back(held.back().view());
  }
}

void Messages::require_host() const {
  for (const Memory& message : held) static_cast<void>(message.on_host());
}

nb::bytes bytes_of(ConstBytes memory, std::uint64_t bytes) {
  return nb::bytes(reinterpret_cast<const char*>(memory.data()), static_cast<std::size_t>(bytes));
}

}  // namespace atomo::python
