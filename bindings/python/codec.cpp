// SPDX-License-Identifier: Apache-2.0
/// \file
/// The methods of `_atomo.Codec` for arrays in host memory are defined here. Each call takes its
/// scratch memory from the codec's pool, gives up Python's global lock while the library works, and
/// turns a failed status into an exception. The calls on GPU memory are added by device.cpp.

#include "codec.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arguments.hpp"
#include "arrays.hpp"

namespace atomo::python {
namespace {

nb::object number_or_none(const std::optional<double>& value) {
  return value ? nb::object(nb::float_(*value)) : nb::none();
}

nb::dict traits_of(const PyCodec& self) {
  const Traits& t = self.codec.traits();
  nb::dict traits;
  traits["unbiased"] = t.unbiased;
  traits["bias_bound"] = t.bias_bound;
  traits["omega"] = number_or_none(t.omega);
  traits["contraction"] = number_or_none(t.contraction);
  traits["largest"] = number_or_none(t.largest);
  traits["step"] = t.step;
  traits["smallest"] = t.smallest;
  traits["highest"] = t.highest;
  traits["linear"] = t.linear;
  traits["votes"] = t.votes;
  traits["averages_over_workers"] = t.averages_over_workers;
  traits["fixed_size"] = t.fixed_size;
  traits["bounded"] = t.bounded;
  traits["allocates"] = t.allocates;
  traits["synchronises"] = t.synchronises;
  traits["capturable"] = t.capturable;
  traits["cpu"] = t.cpu;
  traits["cuda"] = t.cuda;
  traits["memory"] = t.memory;
  traits["differences"] = t.differences;
  return traits;
}

nb::bytes encode(PyCodec& self, nb::handle x, nb::handle seed, nb::handle step, nb::handle worker,
                 nb::handle tensor, nb::handle channel) {
  const Array array(x, Access::read, "x");
  const ConstTensorView view = array.on_host().view();
  const Key key = key_of(seed, step, worker, channel, tensor);
  const auto message = self.pool.take(self.codec.max_encoded_bytes(view.shape, view.dtype));
  const auto workspace = self.pool.take(self.codec.encode_workspace_bytes(view.shape, view.dtype));
  std::uint64_t bytes = 0;
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = self.codec.encode(view, key, {message.bytes().data(), message.bytes().size(), &bytes},
                               {.workspace = workspace.bytes()});
  }
  check_encoded(status);
  self.warning.tell(status, self.codec.to_string());
  return bytes_of(message.bytes(), bytes);
}

void decode(PyCodec& self, nb::handle payload, nb::handle out) {
  const Memory message(payload, Access::read, "payload");
  const Array array(out, Access::write, "out");
  const ConstBytes bytes = message.on_host();
  const TensorView view = array.on_host().writable();
  const auto workspace = self.pool.take(self.codec.decode_workspace_bytes(view.shape, view.dtype));
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = self.codec.decode(bytes, view, {.workspace = workspace.bytes()});
  }
  check_decoded(status);
}

void decode_add(PyCodec& self, nb::handle payload, nb::handle out, nb::handle alpha) {
  const float factor = alpha_of(alpha);
  const Memory message(payload, Access::read, "payload");
  const Array array(out, Access::write, "out");
  const ConstBytes bytes = message.on_host();
  const TensorView view = array.on_host().for_sums().writable();
  const auto workspace = self.pool.take(self.codec.decode_workspace_bytes(view.shape, view.dtype));
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = self.codec.decode_add(bytes, factor, view, {.workspace = workspace.bytes()});
  }
  check_decoded(status);
}

void decode_add_all(PyCodec& self, nb::list payloads, nb::handle out, nb::handle alpha) {
  const float factor = alpha_of(alpha);
  const Messages messages(payloads);
  messages.require_host();
  const Array array(out, Access::write, "out");
  const TensorView view = array.on_host().for_sums().writable();
  const auto workspace = self.pool.take(self.codec.decode_workspace_bytes(view.shape, view.dtype));
  std::vector<Status> each(messages.bytes.size());
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = self.codec.decode_add_all(messages.bytes, factor, view,
                                       {.workspace = workspace.bytes(), .statuses = each.data()});
  }
  check_added(status, each);
}

/// `Query` is one of the codec's two.
template <auto Query>
std::size_t workspace_bytes(const PyCodec& self, nb::handle shape, const std::string& dtype,
                            const std::string& device) {
  return (self.codec.*Query)(shape_of(shape), dtype_of(dtype), device_of(device));
}

}  // namespace

nb::class_<PyCodec> bind_codec(nb::module_& module) {
  return nb::class_<PyCodec>(module, "Codec", "A codec of the library with its scratch memory.")
      .def(nb::init<const std::string&>(), nb::arg("spec"))
      .def("to_string", [](const PyCodec& self) { return self.codec.to_string(); })
      .def("traits", &traits_of)
      .def(
          "notice",
          [](PyCodec& self, std::int32_t status) {
            self.warning.tell(static_cast<Status>(status), self.codec.to_string());
          },
          nb::arg("status"))
      .def("without_lossless",
           [](const PyCodec& self) { return self.codec.without_lossless().to_string(); })
      .def("without_memory",
           [](const PyCodec& self) { return self.codec.without_memory().to_string(); })
      .def(
          "max_encoded_bytes",
          [](const PyCodec& self, nb::handle shape, const std::string& dtype) {
            return self.codec.max_encoded_bytes(shape_of(shape), dtype_of(dtype));
          },
          nb::arg("shape").none(), nb::arg("dtype"))
      .def(
          "expected_bytes",
          [](const PyCodec& self, nb::handle shape, const std::string& dtype) {
            return self.codec.expected_bytes(shape_of(shape), dtype_of(dtype));
          },
          nb::arg("shape").none(), nb::arg("dtype"))
      .def(
          "wire_bytes",
          [](const PyCodec& self, nb::handle shape, const std::string& dtype) {
            return self.codec.wire_bytes(shape_of(shape), dtype_of(dtype));
          },
          nb::arg("shape").none(), nb::arg("dtype"))
      .def("encode_workspace_bytes", &workspace_bytes<&Codec::encode_workspace_bytes>,
           nb::arg("shape").none(), nb::arg("dtype"), nb::arg("device"))
      .def("decode_workspace_bytes", &workspace_bytes<&Codec::decode_workspace_bytes>,
           nb::arg("shape").none(), nb::arg("dtype"), nb::arg("device"))
      .def("encode", &encode, nb::arg("x").none(), nb::arg("seed").none(), nb::arg("step").none(),
           nb::arg("worker").none(), nb::arg("tensor").none(), nb::arg("channel").none())
      .def("decode", &decode, nb::arg("payload").none(), nb::arg("out").none())
      .def("decode_add", &decode_add, nb::arg("payload").none(), nb::arg("out").none(),
           nb::arg("alpha").none())
      .def("decode_add_all", &decode_add_all, nb::arg("payloads"), nb::arg("out").none(),
           nb::arg("alpha").none());
}

}  // namespace atomo::python
