// SPDX-License-Identifier: Apache-2.0
/// \file
/// Codecs and compressors get their `..._on` methods here, which encode and decode in GPU memory on
/// a CUDA stream that Python passes as an integer. The device writes a message's length and status
/// into `Result`, which `atomo/_device.py` reads. Exact SVDs go through CUDA's solver libraries: each
/// stream has one set of handles for them, and one call at a time uses any of these.

#include "device.hpp"

#include <nanobind/stl/optional.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "arguments.hpp"
#include "atomo/cuda.hpp"

namespace atomo::python {
namespace {

/// What the device tells of a call; `atomo/_device.py` reads it.
struct Result {
  std::uint64_t bytes;
  Status status;
};

/// Where a call works. A framework's stream of number 0 is the legacy default stream.
class Place {
 public:
  Place(nb::handle result, nb::handle workspace, std::uint64_t stream)
      : result_(result, Access::write, "result"),
        workspace_(workspace, Access::write, "workspace"),
        stream_(stream == 0 ? legacy_stream() : reinterpret_cast<Stream>(stream)) {
    if (result_.writable().size() < sizeof(Result)) throw Error("result: 16 bytes are needed");
  }
  [[nodiscard]] Payload payload(const Memory& memory) const noexcept {
    return {memory.writable().data(), memory.writable().size(),
            reinterpret_cast<std::uint64_t*>(result_.writable().data() + offsetof(Result, bytes))};
  }
  [[nodiscard]] Context context(Handles* handles = nullptr) const noexcept {
    return {
        .stream = stream_,
        .workspace = workspace_.writable(),
        .handles = handles,
        .status = reinterpret_cast<Status*>(result_.writable().data() + offsetof(Result, status))};
  }
  [[nodiscard]] Stream stream() const noexcept { return stream_; }

 private:
  Memory result_, workspace_;
  Stream stream_;
};

/// The libraries behind exact SVDs take one call at a time, and the calls of one stream.
class Solvers {
 public:
  /// `call(handles)` on the current device; null handles for a codec that needs none.
  template <typename Call>
  Status run(bool needed, Stream stream, Call call) {
    if (!needed) return call(static_cast<Handles*>(nullptr));
    const std::lock_guard lock(mutex_);
    HandlesPtr& handles = handles_[stream];
    if (!handles) handles = make_handles();
    return call(handles.get());
  }

 private:
  std::mutex mutex_;
  std::map<Stream, HandlesPtr> handles_;
};

/// Never given back: at the interpreter's end the driver may be gone.
Solvers& solvers() {
  static auto* const all = new Solvers;
  return *all;
}

void encode_on(PyCodec& self, nb::handle x, nb::handle payload, nb::handle result,
               nb::handle workspace, std::uint64_t stream, nb::handle seed, nb::handle step,
               nb::handle worker, nb::handle tensor, nb::handle channel) {
  const Array array(x, Access::read, "x");
  const Memory message(payload, Access::write, "payload");
  const Place place(result, workspace, stream);
  const Key key = key_of(seed, step, worker, channel, tensor);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status = solvers().run(self.codec.traits().synchronises, place.stream(), [&](Handles* handles) {
      return self.codec.encode(array.view(), key, place.payload(message), place.context(handles));
    });
  }
  check_encoded(status);
}

/// `alpha` none: overwrites by the only message.
void decode_on(PyCodec& self, nb::list payloads, nb::handle out, std::optional<float> alpha,
               nb::handle result, nb::handle workspace, std::uint64_t stream) {
  const Messages messages(payloads);
  const Array array(out, Access::write, "out");
  if (alpha) static_cast<void>(array.for_sums());
  if (!alpha && messages.bytes.size() != 1) throw Error("decode: one message is expected");
  const Place place(result, workspace, stream);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    status =
        alpha ? self.codec.decode_add_all(messages.bytes, *alpha, array.writable(), place.context())
              : self.codec.decode(messages.bytes[0], array.writable(), place.context());
  }
  check_decoded(status);
}

bool needs_solver(const Compressor& model) {
  for (std::size_t i = 0; i < model.layers().size(); ++i)
    if (model.codec(i).traits().synchronises) return true;
  return false;
}

void encode_model_on(PyCompressor& self, nb::handle gradients, nb::handle payload,
                     nb::handle result, nb::handle workspace, std::uint64_t stream, nb::handle seed,
                     nb::handle step, nb::handle worker, nb::handle channel) {
  const Arrays arrays(gradients, Access::read, "gradients", &self.names);
  self.check(arrays, true, "gradients");
  const std::vector<ConstTensorView> views = arrays.views();
  const Memory message(payload, Access::write, "payload");
  const Place place(result, workspace, stream);
  const Key key = key_of(seed, step, worker, channel);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::unique_lock alone(self.step);
    status = solvers().run(needs_solver(self.model), place.stream(), [&](Handles* handles) {
      return self.model.encode(views, key, place.payload(message), place.context(handles));
    });
  }
  check_encoded(status);
}

/// `alpha` none: overwrites by the only message.
void decode_model_on(PyCompressor& self, nb::list payloads, nb::handle out,
                     std::optional<float> alpha, nb::handle result, nb::handle workspace,
                     std::uint64_t stream) {
  const Messages messages(payloads);
  const Arrays arrays(out, Access::write, "out", &self.names);
  self.check(arrays, false, "out");
  if (!alpha && messages.bytes.size() != 1) throw Error("decode: one message is expected");
  const std::vector<TensorView> views = arrays.writable();
  const Place place(result, workspace, stream);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    status = alpha ? self.model.decode_add_all(messages.bytes, *alpha, views, place.context())
                   : self.model.decode(messages.bytes[0], views, place.context());
  }
  check_decoded(status);
}

void encode_layer_on(PyCompressor& self, std::size_t number, nb::handle gradient,
                     nb::handle payload, nb::handle result, nb::handle workspace,
                     std::uint64_t stream) {
  const std::size_t i = self.layer_of(number);
  const Array array(gradient, Access::read, "gradient");
  self.check(i, array, true, "gradient");
  const Memory message(payload, Access::write, "payload");
  const Place place(result, workspace, stream);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    const std::lock_guard alone(self.layers[i]);
    status = solvers().run(self.model.codec(i).traits().synchronises, place.stream(),
                           [&](Handles* handles) {
                             return self.model.encode_layer(i, array.view(), place.payload(message),
                                                            place.context(handles));
                           });
  }
  check_encoded(status);
}

/// `alpha` none: overwrites by the only message.
void decode_layer_on(PyCompressor& self, std::size_t number, nb::list payloads, nb::handle out,
                     std::optional<float> alpha, nb::handle result, nb::handle workspace,
                     std::uint64_t stream) {
  const std::size_t i = self.layer_of(number);
  const Messages messages(payloads);
  const Array array(out, Access::write, "out");
  if (alpha) static_cast<void>(array.for_sums());
  if (!alpha && messages.bytes.size() != 1) throw Error("decode: one message is expected");
  const Place place(result, workspace, stream);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    status = alpha
                 ? self.model.decode_layer_add_all(i, messages.bytes, *alpha, array.writable(),
                                                   place.context())
                 : self.model.decode_layer(i, messages.bytes[0], array.writable(), place.context());
  }
  check_decoded(status);
}

void end_step_on(PyCompressor& self, nb::handle result, std::uint64_t stream) {
  const Place place(result, result, stream);
  const nb::gil_scoped_release gil_released;
  const std::unique_lock alone(self.step);
  check_encoded(self.model.end_step(place.context()));
}

}  // namespace

void bind_device_calls(nb::class_<PyCodec>& codec, nb::class_<PyCompressor>& compressor) {
  codec
      .def("encode_on", &encode_on, nb::arg("x").none(), nb::arg("payload").none(),
           nb::arg("result"), nb::arg("workspace"), nb::arg("stream"), nb::arg("seed").none(),
           nb::arg("step").none(), nb::arg("worker").none(), nb::arg("tensor").none(),
           nb::arg("channel").none())
      .def("decode_on", &decode_on, nb::arg("payloads"), nb::arg("out").none(),
           nb::arg("alpha").none(), nb::arg("result"), nb::arg("workspace"), nb::arg("stream"));
  compressor
      .def("encode_on", &encode_model_on, nb::arg("gradients").none(), nb::arg("payload").none(),
           nb::arg("result"), nb::arg("workspace"), nb::arg("stream"), nb::arg("seed").none(),
           nb::arg("step").none(), nb::arg("worker").none(), nb::arg("channel").none())
      .def("decode_on", &decode_model_on, nb::arg("payloads"), nb::arg("out").none(),
           nb::arg("alpha").none(), nb::arg("result"), nb::arg("workspace"), nb::arg("stream"))
      .def("encode_layer_on", &encode_layer_on, nb::arg("number"), nb::arg("gradient").none(),
           nb::arg("payload").none(), nb::arg("result"), nb::arg("workspace"), nb::arg("stream"))
      .def("decode_layer_on", &decode_layer_on, nb::arg("number"), nb::arg("payloads"),
           nb::arg("out").none(), nb::arg("alpha").none(), nb::arg("result"), nb::arg("workspace"),
           nb::arg("stream"))
      .def("end_step_on", &end_step_on, nb::arg("result"), nb::arg("stream"))
      .def("encode_workspace_bytes",
           [](const PyCompressor& self) { return self.model.encode_workspace_bytes(); })
      .def("decode_workspace_bytes",
           [](const PyCompressor& self) { return self.model.decode_workspace_bytes(); })
      .def(
          "layer_encode_workspace_bytes",
          [](const PyCompressor& self, std::size_t number) {
            return self.model.encode_workspace_bytes(self.layer_of(number));
          },
          nb::arg("number"))
      .def(
          "layer_decode_workspace_bytes",
          [](const PyCompressor& self, std::size_t number) {
            return self.model.decode_workspace_bytes(self.layer_of(number));
          },
          nb::arg("number"));
}

}  // namespace atomo::python
