// SPDX-License-Identifier: Apache-2.0
/// \file
/// Codecs whose code is in Python: the library's threads take the GIL for each call of theirs, and what
/// they raise becomes a C++ exception with its text. atomo/_own.py has the other side.

#include "own_codecs.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atomo/catalogue.hpp"
#include "atomo/own_codec.hpp"

namespace atomo::python {
namespace {

/// An object that is given up under the GIL, whichever thread does it; kept for ever once Python has ended.
using Shared = std::shared_ptr<PyObject>;
Shared shared(nb::object object) {
  return {object.release().ptr(), [](PyObject* held) {
            if (Py_IsInitialized() == 0) return;
            const nb::gil_scoped_acquire gil;
            Py_DECREF(held);
          }};
}

/// Guarded by the GIL. A raw pointer: nothing of it is destroyed when the process ends.
PyObject* last_exception = nullptr;
std::thread::id raised_in;      ///< the thread of `last_exception`
bool callers_see_them = false;  ///< this extension's calls raise what ends a program

/// Whether it is one that ends more than the codec's call.
bool ends(PyObject* exception) {
  return exception != nullptr && PyErr_GivenExceptionMatches(exception, PyExc_Exception) == 0;
}

void keep(nb::handle exception) {
  if (ends(last_exception)) return;  // it has not been raised yet
  Py_XDECREF(last_exception);
  last_exception = nb::object(nb::borrow(exception)).release().ptr();
  raised_in = std::this_thread::get_id();
}

/// Runs Python code; what it raises becomes Error. The caller holds the GIL.
template <typename Call>
auto in_python(const Call& call) {
  // The library goes on after some failures, such as one to bound a message: the call is to end all the same.
  if (callers_see_them && ends(last_exception) && raised_in == std::this_thread::get_id())
    throw Error("interrupted");
  try {
    return call();
  } catch (nb::python_error& e) {
    keep(e.value());
    std::string text = nb::cast<std::string>(nb::str(nb::type_name(e.type())));
    try {
      text += ": " + nb::cast<std::string>(nb::str(e.value()));
    } catch (nb::python_error&) {  // it has no text
    }
    throw Error(text);
  } catch (const nb::cast_error&) {
    throw Error("what it returned is of another type than it should be");
  }
}

nb::tuple dims_of(const Shape& shape) {
  nb::list dims;
  for (const std::int64_t dim : shape.dims()) dims.append(dim);
  return nb::tuple(dims);
}

nb::tuple numbers_of(const Key& key) {
  return nb::make_tuple(key.seed, key.step, key.tensor, key.worker, key.channel);
}

/// A buffer of Python's, as long as it lives.
class Buffer {
 public:
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] ConstBytes bytes() const noexcept {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

class PythonCodec final : public OwnCodec {
 public:
  /// `adapter` is an `_own.Adapter`.
  PythonCodec(nb::object adapter, Traits traits, double budget_bits)
      : adapter_(shared(std::move(adapter))), traits_(traits), budget_bits_(budget_bits) {}

  Traits traits() const override { return traits_; }
  double budget_bits() const override { return budget_bits_; }
  std::vector<RatePoint> price(std::span<const float> x, const Shape& shape) const override {
    const nb::gil_scoped_acquire gil;
    return in_python([&] {
      const nb::bytes entries(reinterpret_cast<const char*>(x.data()), x.size_bytes());
      const nb::object told = adapter().attr("price")(entries, dims_of(shape));
      std::vector<RatePoint> points;
      for (const auto& [bytes, squared_error] :
           nb::cast<std::vector<std::pair<double, double>>>(told))
        points.push_back({bytes, squared_error});
      return points;
    });
  }
  std::size_t max_bytes(const Shape& shape) const override {
    const nb::gil_scoped_acquire gil;
    return in_python(
        [&] { return nb::cast<std::size_t>(adapter().attr("max_bytes")(dims_of(shape))); });
  }
  std::size_t encode(std::span<const float> x, const OwnLayer& layer, Bytes body) const override {
    const nb::gil_scoped_acquire gil;
    return in_python([&] {
      const nb::bytes entries(reinterpret_cast<const char*>(x.data()), x.size_bytes());
      const nb::object made = adapter().attr("encode")(entries, dims_of(layer.shape),
                                                       numbers_of(layer.key), layer.setting);
      const Buffer written(made);
      const ConstBytes bytes = written.bytes();
      if (bytes.size() <= body.size() && !bytes.empty())
        std::memcpy(body.data(), bytes.data(), bytes.size());
      return bytes.size();  // the library refuses more than there is room for
    });
  }
  void decode(ConstBytes body, const OwnLayer& layer, std::span<float> y) const override {
    const nb::gil_scoped_acquire gil;
    in_python([&] {
      const nb::bytes bytes(reinterpret_cast<const char*>(body.data()), body.size());
      const nb::object values =
          adapter().attr("decode")(bytes, dims_of(layer.shape), numbers_of(layer.key));
      const Buffer entries(values);
      if (entries.bytes().size() != y.size_bytes())
        throw Error("it decoded to " + std::to_string(entries.bytes().size() / 4) +
                    " entries: expected " + std::to_string(y.size()));
      std::memcpy(y.data(), entries.bytes().data(), y.size_bytes());
    });
  }

 private:
  [[nodiscard]] nb::handle adapter() const noexcept { return adapter_.get(); }
  Shared adapter_;
  Traits traits_;
  double budget_bits_;
};

/// A key of a spec, as `_own.register` gives it: (name, "integer" | "number", low, high, default or
/// None), or (name, "choice", choices, default's place or None).
nb::object read_key(SpecKeys& keys, nb::handle key) {
  const auto name = nb::cast<std::string>(key[0]), kind = nb::cast<std::string>(key[1]);
  if (kind == "choice") {
    const auto choices = nb::cast<std::vector<std::string>>(key[2]);
    std::optional<std::size_t> fallback;
    if (!key[3].is_none()) fallback = nb::cast<std::size_t>(key[3]);
    return nb::str(choices[keys.choice(name, choices, fallback)].c_str());
  }
  if (kind == "integer") {
    std::optional<std::int64_t> fallback;
    if (!key[4].is_none()) fallback = nb::cast<std::int64_t>(key[4]);
    return nb::int_(keys.integer(name, nb::cast<std::int64_t>(key[2]),
                                 nb::cast<std::int64_t>(key[3]), fallback));
  }
  std::optional<double> fallback;
  if (!key[4].is_none()) fallback = nb::cast<double>(key[4]);
  return nb::float_(
      keys.number(name, nb::cast<double>(key[2]), nb::cast<double>(key[3]), fallback));
}

Traits traits_of(nb::handle claims) {
  const auto claimed = [&](const char* name) {
    return nb::cast<nb::object>(claims.attr("get")(name));
  };
  const auto yes = [&](const char* name) { return PyObject_IsTrue(claimed(name).ptr()) == 1; };
  const auto number = [&](const char* name) {
    const nb::object value = claimed(name);
    return value.is_none() ? std::nullopt : std::optional(nb::cast<double>(value));
  };
  Traits t;
  t.unbiased = yes("unbiased");
  t.averages_over_workers = yes("averages_over_workers");
  t.fixed_size = yes("fixed_size");
  t.bounded = yes("bounded");
  t.omega = number("omega");
  t.contraction = number("contraction");
  t.bias_bound = number("bias_bound").value_or(0);
  t.largest = number("largest");
  t.step = number("step").value_or(t.step);
  t.smallest = number("smallest").value_or(t.smallest);
  t.highest = number("highest").value_or(t.highest);
  return t;
}

/// `make(values)` gives (adapter, claims, bits of the budget) for the values of the keys.
void register_in_python(const std::string& name, const std::string& help,
                        const std::string& summary, const std::string& example, nb::list keys,
                        nb::object make) {
  const Shared keys_held = shared(std::move(keys)), make_held = shared(std::move(make));
  register_codec({.name = name,
                  .keys = help,
                  .summary = summary,
                  .example = example,
                  .make = [keys_held, make_held](SpecKeys& values) {
                    const nb::gil_scoped_acquire gil;
                    return in_python([&]() -> std::shared_ptr<const OwnCodec> {
                      nb::dict read;
                      for (const nb::handle key : nb::iter(nb::handle(keys_held.get())))
                        read[key[0]] = read_key(values, key);
                      const nb::object made = nb::handle(make_held.get())(read);
                      return std::make_shared<PythonCodec>(nb::object(made[0]), traits_of(made[1]),
                                                           nb::cast<double>(made[2]));
                    });
                  }});
}

}  // namespace

void let_callers_see_what_ends() { callers_see_them = true; }

bool restore_what_ends(bool of_any) {
  if (!ends(last_exception) || !(of_any || raised_in == std::this_thread::get_id())) return false;
  const nb::object ended = take_codec_exception();
  PyErr_SetObject(ended.type().ptr(), ended.ptr());
  return true;
}

nb::object take_codec_exception() { return nb::steal(std::exchange(last_exception, nullptr)); }

void bind_own_codecs(nb::module_& module, void (*when_unregistered)()) {
  register_catalogue();
  module.def("register", &register_in_python, nb::arg("name"), nb::arg("help"), nb::arg("summary"),
             nb::arg("example"), nb::arg("keys"), nb::arg("make"));
  module.def(
      "unregister",
      [when_unregistered](const std::string& name) {
        const bool was_there = unregister_codec(name);
        when_unregistered();
        return was_there;
      },
      nb::arg("name"));
  module.def("load_codecs", &load_codecs, nb::arg("path"));
}

}  // namespace atomo::python
