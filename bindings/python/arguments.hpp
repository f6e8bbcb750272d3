// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Python's numbers, shapes and names as the library's, and the library's failures as Python's.

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "atomo/types.hpp"

namespace atomo::python {

namespace nb = nanobind;

/// A call of the library that failed.
class Failure : public std::exception {
 public:
  /// `decoding`: what failed is a message; `atomo.DecodeError` then, else `atomo.Error`.
  /// `message`: the number of the first that failed, of several.
  Failure(Status status, bool decoding, std::optional<std::size_t> message = {}) noexcept
      : status_(status), decoding_(decoding), message_(message) {}
  [[nodiscard]] Status status() const noexcept { return status_; }
  [[nodiscard]] bool decoding() const noexcept { return decoding_; }
  [[nodiscard]] std::optional<std::size_t> message() const noexcept { return message_; }
  [[nodiscard]] const char* what() const noexcept override { return "a call of atomo failed"; }

 private:
  Status status_;
  bool decoding_;
  std::optional<std::size_t> message_;
};

/// \throws Failure when an encoding call failed.
void check_encoded(Status status);
/// \throws Failure when a call that reads a message failed.
void check_decoded(Status status);
/// \throws Failure that names the message, when a call that adds several failed; `each` has a status of
/// every message.
void check_added(Status status, std::span<const Status> each);

/// Warns, once, that messages of `spec` exceed their budget. The caller holds the GIL.
class OverspentWarning {
 public:
  /// After a call that may be made again as if it had not been. \throws nb::python_error where warnings
  /// are errors.
  void tell(Status status, const std::string& spec);
  /// After a call that has moved memories, so that its message has to reach its caller: where warnings
  /// are errors the warning is owed.
  void tell_or_owe(Status status, const std::string& spec);
  /// Before a call does anything. \throws nb::python_error where a warning is owed and warnings are still
  /// errors.
  void tell_owed(const std::string& spec);

 private:
  std::atomic_flag told_;
  bool owed_ = false;
};

/// The name of a failure: "truncated", ...
[[nodiscard]] const char* name_of(Status failure) noexcept;

/// (name, description, whether it is a failure) of a status that a device reported as a number.
[[nodiscard]] nb::tuple status_of(std::int32_t number);

/// Turns Failure and Error into `atomo.DecodeError` and `atomo.Error`.
void register_failures();

/// The object as Python writes it, for messages.
[[nodiscard]] std::string shown(nb::handle object);
/// The name of the object's type, for messages.
[[nodiscard]] std::string type_of(nb::handle object);

/// \throws Error when the integer is not from 0 to `highest`; nb::type_error when it is none.
[[nodiscard]] std::uint64_t integer_of(nb::handle value, const char* name, std::uint64_t highest);

/// \throws nb::type_error when it is no number.
[[nodiscard]] double number_of(nb::handle value, const char* name);
/// The same as an f32. \throws Error where it is finite and an f32 of it would not be.
[[nodiscard]] float f32_of(nb::handle value, const char* name);
/// The factor of messages that are added. \throws like `f32_of`, and Error for NaN.
[[nodiscard]] float alpha_of(nb::handle alpha);
/// Threads that work on one call. \throws Error when they are not from 1 to 1024.
[[nodiscard]] unsigned checked_threads(unsigned threads);

/// The key of a message. \throws like `integer_of`.
[[nodiscard]] Key key_of(nb::handle seed, nb::handle step, nb::handle worker, nb::handle channel);
[[nodiscard]] Key key_of(nb::handle seed, nb::handle step, nb::handle worker, nb::handle channel,
                         nb::handle tensor);

/// Of a sequence of integers, or of one. \throws Error for what is no shape.
[[nodiscard]] Shape shape_of(nb::handle dims, const char* name = "shape");
[[nodiscard]] nb::tuple tuple_of(const Shape& shape);

/// "f32", "f16" or "bf16". \throws Error for another name.
[[nodiscard]] DType dtype_of(const std::string& name);

/// "cpu" or "cuda". \throws Error for another name.
[[nodiscard]] Device device_of(const std::string& name);

}  // namespace atomo::python
