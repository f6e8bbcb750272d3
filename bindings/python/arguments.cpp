// SPDX-License-Identifier: Apache-2.0
/// \file
/// Every argument of a call from Python is checked and converted here, and one that does not fit is
/// refused with an error that names it, its value and what is accepted. A failed status, or an
/// error that the library throws, becomes `atomo.DecodeError` or `atomo.Error`. These classes are
/// written in Python, so they are imported from `atomo._errors` when one has to be raised.

#include "arguments.hpp"

#include "atomo/own_codec.hpp"
#include "own_codecs.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace atomo::python {
namespace {

/// Sets a Python exception of the package, which is defined in Python.
void raise(const char* type, const std::string& message, const char* status) {
  const bool of_codec = status != nullptr && std::string_view(status) == "codec_failed";
  if (restore_what_ends(of_codec)) return;
  try {
    const nb::object error = nb::module_::import_("atomo._errors").attr(type);
    const nb::object value = error(nb::str(message.c_str(), message.size()),
                                   status != nullptr ? nb::object(nb::str(status)) : nb::none());
    if (of_codec) {
      if (const nb::object cause = take_codec_exception(); cause.is_valid())
        PyException_SetCause(value.ptr(), nb::object(cause).release().ptr());
    }
    PyErr_SetObject(error.ptr(), value.ptr());
  } catch (nb::python_error& failure) {
    failure.restore();
  }
}

}  // namespace

std::string shown(nb::handle object) { return nb::cast<std::string>(nb::repr(object)); }

std::string type_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(nb::type_name(object.type())));
}

const char* name_of(Status failure) noexcept {
  switch (failure) {
    case Status::buffer_too_small:
      return "buffer_too_small";
    case Status::workspace_too_small:
      return "workspace_too_small";
    case Status::truncated:
      return "truncated";
    case Status::bad_magic:
      return "bad_magic";
    case Status::bad_version:
      return "bad_version";
    case Status::bad_checksum:
      return "bad_checksum";
    case Status::corrupt:
      return "corrupt";
    case Status::shape_mismatch:
      return "shape_mismatch";
    case Status::codec_mismatch:
      return "codec_mismatch";
    case Status::unsupported:
      return "unsupported";
    case Status::external:
      return "external";
    case Status::price_mismatch:
      return "price_mismatch";
    case Status::too_large:
      return "too_large";
    case Status::invalid_argument:
      return "invalid_argument";
    case Status::wrong_stage:
      return "wrong_stage";
    case Status::codec_unknown:
      return "codec_unknown";
    case Status::codec_failed:
      return "codec_failed";
    default:
      return "unknown";
  }
}

/// "ok", or the notices in a status, separated by commas.
static std::string names_of_notices(Status status) {
  constexpr std::pair<Status, const char*> kNotices[] = {{Status::non_finite, "non_finite"},
                                                         {Status::underspent, "underspent"},
                                                         {Status::overflow, "overflow"},
                                                         {Status::overspent, "overspent"}};
  std::string names;
  for (const auto& [notice, name] : kNotices) {
    if (has(status, notice)) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names.empty() ? "ok" : names;
}

nb::tuple status_of(std::int32_t number) {
  const auto status = static_cast<Status>(number);
  const std::string name = failed(status) ? name_of(status) : names_of_notices(status);
  return nb::make_tuple(name, explain(status), failed(status));
}

void check_encoded(Status status) {
  if (failed(status)) throw Failure(status, false);
}

void check_decoded(Status status) {
  if (failed(status)) throw Failure(status, true);
}

void check_added(Status status, std::span<const Status> each) {
  if (!failed(status)) return;
  const auto first = std::find_if(each.begin(), each.end(), [](Status s) { return failed(s); });
  if (first == each.end()) throw Failure(status, true);
  throw Failure(status, true, static_cast<std::size_t>(first - each.begin()));
}

void OverspentWarning::tell(Status status, const std::string& spec) {
  if (!has(status, Status::overspent) || told_.test_and_set()) return;
  const std::string text =
      "'" + spec +
      "': the budget does not pay for a message worth sending, so messages exceed it. Give more "
      "bits, encode small tensors together with others (atomo.Compressor), or leave them to "
      "identity";
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 2) != 0) throw nb::python_error();
}

void OverspentWarning::tell_or_owe(Status status, const std::string& spec) {
  try {
    tell(status, spec);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Warning)) throw;
    owed_ = true;
  }
}

void OverspentWarning::tell_owed(const std::string& spec) {
  if (!std::exchange(owed_, false)) return;
  told_.clear();
  tell(Status::overspent, spec);
}

void register_failures() {
  let_callers_see_what_ends();
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const Failure& failure) {
          std::string text = explain(failure.status());
          if (failure.message())
            text = "payloads[" + std::to_string(*failure.message()) + "]: " + text;
          raise(failure.decoding() ? "DecodeError" : "Error", text, name_of(failure.status()));
        } catch (const Error& error) {
          raise("Error", error.what(), nullptr);
        }
      },
      nullptr);
}

std::uint64_t integer_of(nb::handle value, const char* name, std::uint64_t highest) {
  const auto index = nb::steal<nb::object>(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    throw nb::type_error(
        (std::string(name) + ": an integer is expected, found " + type_of(value)).c_str());
  }
  const std::uint64_t number = PyLong_AsUnsignedLongLong(index.ptr());
  const bool beyond = number == std::numeric_limits<std::uint64_t>::max() && PyErr_Occurred();
  if (beyond) PyErr_Clear();
  if (beyond || number > highest) {
    throw Error(std::string(name) + " is " + nb::cast<std::string>(nb::str(index)) +
                ": it must be from 0 to " + std::to_string(highest));
  }
  return number;
}

double number_of(nb::handle value, const char* name) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number != -1 || PyErr_Occurred() == nullptr) return number;
  if (PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    PyErr_Clear();
    throw nb::type_error(
        (std::string(name) + ": a number is expected, found " + type_of(value)).c_str());
  }
  if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {
    PyErr_Clear();
    throw Error(std::string(name) +
                " is an integer of more than 1024 bits: a number that fits a "
                "64-bit float is expected");
  }
  throw nb::python_error();
}

float f32_of(nb::handle value, const char* name) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const double number = number_of(value, name);
  if (std::isfinite(number) && std::abs(number) > kLargest) {
    throw Error(std::string(name) + " is " + shown(value) +
                ": its magnitude must be at most 3.4028235e+38, the largest f32");
  }
  return static_cast<float>(number);
}

float alpha_of(nb::handle alpha) {
  const float factor = f32_of(alpha, "alpha");
  if (std::isnan(factor)) throw Error("alpha is NaN: a number is expected");
  return factor;
}

unsigned checked_threads(unsigned threads) {
  constexpr unsigned kMost = 1024;
  if (threads >= 1 && threads <= kMost) return threads;
  throw Error("threads is " + std::to_string(threads) + ": it must be an integer from 1 to 1024");
}

Key key_of(nb::handle seed, nb::handle step, nb::handle worker, nb::handle channel) {
  Key key;
  key.seed = integer_of(seed, "seed", std::numeric_limits<std::uint64_t>::max());
  key.step = static_cast<std::uint32_t>(
      integer_of(step, "step", std::numeric_limits<std::uint32_t>::max()));
  key.worker = static_cast<std::uint16_t>(
      integer_of(worker, "worker", std::numeric_limits<std::uint16_t>::max()));
  key.channel = static_cast<std::uint16_t>(
      integer_of(channel, "channel", std::numeric_limits<std::uint16_t>::max()));
  return key;
}

Key key_of(nb::handle seed, nb::handle step, nb::handle worker, nb::handle channel,
           nb::handle tensor) {
  Key key = key_of(seed, step, worker, channel);
  key.tensor = static_cast<std::uint16_t>(
      integer_of(tensor, "tensor", std::numeric_limits<std::uint16_t>::max()));
  return key;
}

Shape shape_of(nb::handle dims, const char* name) {
  constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> extents;
  if (PyIndex_Check(dims.ptr()) != 0) {
    extents.push_back(static_cast<std::int64_t>(integer_of(dims, name, kLargest)));
  } else {
    if (PyObject_HasAttrString(dims.ptr(), "__iter__") == 0) {
      throw nb::type_error(
          (std::string(name) + ": a sequence of integers is expected, found " + type_of(dims))
              .c_str());
    }
    for (const nb::handle extent : nb::iter(dims)) {
      extents.push_back(static_cast<std::int64_t>(integer_of(extent, name, kLargest)));
      if (extents.size() > Shape::kMaxRank) break;  // Shape says that these are too many
    }
  }
  return Shape(extents);
}

nb::tuple tuple_of(const Shape& shape) {
  nb::list list;
  for (const std::int64_t extent : shape.dims()) list.append(extent);
  return nb::tuple(list);
}

DType dtype_of(const std::string& name) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16})
    if (atomo::name_of(t) == name) return t;
  throw Error("dtype '" + name + "': f32, f16 and bf16 are accepted");
}

Device device_of(const std::string& name) {
  if (name == "cpu") return Device::cpu;
  if (name == "cuda") return Device::cuda;
  throw Error("device '" + name + "': cpu and cuda are accepted");
}

}  // namespace atomo::python
