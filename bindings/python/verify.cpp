// SPDX-License-Identifier: Apache-2.0
/// \file
/// `verify` of the module `_atomo`: a codec of the library, or two functions of Python's that take and
/// give bytes, against claims in a dictionary. The report comes as JSON and as text.

#include "verify.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "arrays.hpp"
#include "atomo/verify.hpp"
#include "own_codecs.hpp"

namespace atomo::python {
namespace {

nb::bytes python_bytes(const void* data, std::size_t bytes) {
  return nb::bytes(bytes == 0 ? "" : static_cast<const char*>(data), bytes);
}

/// Both functions are called with the global lock held.
verify::Subject subject_of(const std::string& name, const nb::object& encode,
                           const nb::object& decode, std::uint64_t outcomes) {
  return {name,
          [encode](std::span<const float> x, const Shape& shape, const Key& key) {
            const nb::object made =
                encode(python_bytes(x.data(), x.size_bytes()), tuple_of(shape),
                       nb::make_tuple(key.seed, key.step, key.tensor, key.worker, key.channel));
            const auto message = nb::cast<nb::bytes>(made);
            const auto* data = reinterpret_cast<const std::byte*>(message.c_str());
            return std::vector<std::byte>(data, data + message.size());
          },
          [decode](ConstBytes message, std::span<float> y, const Shape& shape) {
            const nb::object made =
                decode(python_bytes(message.data(), message.size()), tuple_of(shape));
            const auto values = nb::cast<nb::bytes>(made);
            if (values.size() != y.size_bytes())
              throw Error("decoded to another number of entries");
            if (!y.empty()) std::memcpy(y.data(), values.c_str(), y.size_bytes());
          },
          outcomes};
}

verify::NonFinite non_finite_of(const std::string& name) {
  if (name == "any") return verify::NonFinite::any;
  if (name == "told") return verify::NonFinite::told;
  if (name == "everywhere") return verify::NonFinite::everywhere;
  throw Error("non_finite '" + name + "': any, told and everywhere are accepted");
}

/// \throws nb::type_error for a claim of another type, in the words of the others.
[[noreturn]] void refuse_claim(const std::string& what, const char* expected, nb::handle value) {
  throw nb::type_error((what + ": " + expected + " is expected, found " + shown(value)).c_str());
}

void add_claim(verify::Claims& claims, const std::string& name, nb::handle value) {
  const std::string what = "claims: " + name;
  const auto truth = [&] {
    const std::string type = type_of(value);  // Python's, or NumPy's of either name
    if (type != "bool" && type != "bool_") refuse_claim(what, "True or False", value);
    return PyObject_IsTrue(value.ptr()) == 1;
  };
  const auto number = [&] { return number_of(value, what.c_str()); };
  if (name == "unbiased") {
    claims.unbiased = truth();
  } else if (name == "bias_bound") {
    claims.bias_bound = number();
  } else if (name == "omega") {
    claims.omega = number();
  } else if (name == "contraction") {
    claims.contraction = number();
  } else if (name == "largest") {
    claims.largest = number();
  } else if (name == "step") {
    claims.step = number();
  } else if (name == "smallest") {
    claims.smallest = number();
  } else if (name == "highest") {
    claims.highest = number();
  } else if (name == "independent_workers") {
    claims.independent_workers = truth();
  } else if (name == "independent_entries") {
    claims.independent_entries = truth();
  } else if (name == "fixed_size") {
    claims.fixed_size = truth();
  } else if (name == "max_bytes") {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    claims.max_bytes = [most = integer_of(value, what.c_str(), kMost)](const Shape&) {
      return most;
    };
  } else if (name == "average_bytes") {
    claims.average_bytes = [most = number()](const verify::Input&) { return most; };
  } else if (name == "bits") {
    claims.average_bytes = [bits = number()](const verify::Input& input) {
      return bits / 8 * static_cast<double>(input.values.size());
    };
  } else if (name == "deterministic") {
    claims.deterministic = truth();
  } else if (name == "order_free") {
    claims.order_free = truth();
  } else if (name == "non_finite") {
    if (!nb::isinstance<nb::str>(value)) refuse_claim(what, "a str", value);
    claims.non_finite = non_finite_of(nb::cast<std::string>(value));
  } else {
    throw Error("verify: '" + name + "' is no claim");
  }
}

/// (name, array) a tensor.
std::vector<verify::Input> inputs_of(const nb::list& arrays) {
  std::vector<verify::Input> inputs;
  for (const nb::handle item : arrays) {
    const auto row = nb::cast<nb::tuple>(item);
    const auto name = nb::cast<std::string>(row[0]);
    const Array array(row[1], Access::read, name);
    const ConstTensorView view = array.on_host().for_sums().view();
    std::vector<float> values(view.shape.elements());
    if (!values.empty()) std::memcpy(values.data(), view.data, 4 * values.size());
    inputs.push_back({name, view.shape, std::move(values)});
  }
  return inputs;
}

nb::tuple verify_one(const std::optional<std::string>& codec, nb::object encode, nb::object decode,
                     const std::string& name, const std::optional<nb::dict>& claimed,
                     nb::list arrays, nb::handle outcome_count, nb::handle seed, nb::handle draws,
                     nb::handle family_error, bool own_inputs) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t outcomes = integer_of(outcome_count, "outcomes", kMost);
  verify::Options options;
  options.seed = integer_of(seed, "seed", kMost);
  options.draws = static_cast<std::uint32_t>(
      integer_of(draws, "draws", std::numeric_limits<std::uint32_t>::max()));
  options.family_error = number_of(family_error, "family_error");
  options.own_inputs = own_inputs;
  options.inputs = inputs_of(arrays);
  verify::Claims claims;
  if (codec && !claimed) claims = verify::claims_of(Codec::parse(*codec));
  if (claimed)
    for (const auto& [key, value] : *claimed) {
      if (!nb::isinstance<nb::str>(key)) refuse_claim("claims", "a mapping of names", key);
      add_claim(claims, nb::cast<std::string>(key), value);
    }
  verify::Report report;
  if (codec) {
    const verify::Subject subject = verify::subject_of(Codec::parse(*codec));
    const nb::gil_scoped_release gil_released;
    report = verify::run(subject, claims, options);
  } else {
    report = verify::run(subject_of(name, encode, decode, outcomes), claims, options);
  }
  // A run takes whatever a registered codec raises for a finding.
  if (restore_what_ends(false)) throw nb::python_error();
  return nb::make_tuple(report.to_json(), report.to_text());
}

}  // namespace

void bind_verify(nb::module_& module) {
  module.def("verify", &verify_one, nb::arg("codec").none(), nb::arg("encode").none(),
             nb::arg("decode").none(), nb::arg("name"), nb::arg("claims").none(), nb::arg("arrays"),
             nb::arg("outcomes").none(), nb::arg("seed").none(), nb::arg("draws").none(),
             nb::arg("family_error").none(), nb::arg("own_inputs"));
}

}  // namespace atomo::python
