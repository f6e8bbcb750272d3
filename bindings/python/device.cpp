// SPDX-License-Identifier: Apache-2.0
/// \file
/// Codecs and compressors get their `..._on` methods here, which encode and decode in memory that the
/// caller gives: in a GPU's on a CUDA stream that Python passes as an integer, or, of a model of the
/// CPU, in host memory, where the stream is not looked at. A message's length and its status go into
/// `Result`, which `atomo/_device.py` reads. Exact SVDs go through CUDA's solver libraries: each
/// stream has one set of handles for them, and one call at a time uses any of these.

#include "device.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstddef>
#include <map>
#include <memory>
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
  /// The GPU's number and the stream: frameworks have a default stream of one number on each GPU.
  [[nodiscard]] std::pair<int, Stream> where() const { return {result_.ordinal(), stream_}; }

 private:
  Memory result_, workspace_;
  Stream stream_;
};

/// The libraries behind exact SVDs take one call at a time, and the calls of one stream of one GPU.
class Solvers {
 public:
  /// `call(handles)` on the current device; null handles for a codec that needs none.
  template <typename Call>
  Status run(bool needed, const std::pair<int, Stream>& where, Call call) {
    if (!needed) return call(static_cast<Handles*>(nullptr));
    const std::lock_guard lock(mutex_);
    HandlesPtr& handles = handles_[where];
    if (!handles) handles = make_handles();
    return call(handles.get());
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, Stream>, HandlesPtr> handles_;
};

std::optional<float> alpha_or_none(nb::handle factor) {
  return factor.is_none() ? std::nullopt : std::optional(alpha_of(factor));
}

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
    status = solvers().run(self.codec.traits().synchronises, place.where(), [&](Handles* handles) {
      return self.codec.encode(array.view(), key, place.payload(message), place.context(handles));
    });
  }
  check_encoded(status);
}

/// `factor` none: overwrites by the only message.
void decode_on(PyCodec& self, nb::list payloads, nb::handle out, nb::handle factor,
               nb::handle result, nb::handle workspace, std::uint64_t stream) {
  const std::optional<float> alpha = alpha_or_none(factor);
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

bool needs_solver(const Compressor& model, const Arrays& arrays) {
  if (arrays[0].device() != Device::cuda) return false;
  for (std::size_t i = 0; i < model.layers().size(); ++i)
    if (model.codec(i).traits().synchronises) return true;
  return false;
}

/// A model's arrays as its calls take them, for one call or for many: to borrow an array takes some
/// microseconds. Holds them.
struct BoundArrays {
  /// \throws Error for arrays that are not those of the model's layers.
  BoundArrays(const PyCompressor& model, nb::handle list, bool encoding)
      : arrays(list, encoding ? Access::read : Access::write, encoding ? "gradients" : "out",
               &model.names),
        views(arrays.views()) {
    model.check(arrays, encoding, encoding ? "gradients" : "out");
    if (!encoding) writable = arrays.writable();
  }

  Arrays arrays;
  std::vector<ConstTensorView> views;
  std::vector<TensorView> writable;
};

void encode_model_on(PyCompressor& self, const BoundArrays& gradients, nb::handle payload,
                     nb::handle result, nb::handle workspace, std::uint64_t stream, nb::handle seed,
                     nb::handle step, nb::handle worker, nb::handle channel) {
  const Memory message(payload, Access::write, "payload");
  const Place place(result, workspace, stream);
  const Key key = key_of(seed, step, worker, channel);
  self.warning.tell_owed(self.policy);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::unique_lock alone(self.step);
    const bool solves = needs_solver(self.model, gradients.arrays);
    status = solvers().run(solves, place.where(), [&](Handles* handles) {
      return self.model.encode(gradients.views, key, place.payload(message),
                               place.context(handles));
    });
  }
  check_model_encoded(self, status, key);
}

/// `factor` none: overwrites by the only message.
void decode_model_on(PyCompressor& self, nb::list payloads, const BoundArrays& out,
                     nb::handle factor, nb::handle result, nb::handle workspace,
                     std::uint64_t stream) {
  const std::optional<float> alpha = alpha_or_none(factor);
  const Messages messages(payloads);
  if (!alpha && messages.bytes.size() != 1) throw Error("decode: one message is expected");
  const Place place(result, workspace, stream);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    status = alpha
                 ? self.model.decode_add_all(messages.bytes, *alpha, out.writable, place.context())
                 : self.model.decode(messages.bytes[0], out.writable, place.context());
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
    status = solvers().run(self.model.codec(i).traits().synchronises, place.where(),
                           [&](Handles* handles) {
                             return self.model.encode_layer(i, array.view(), place.payload(message),
                                                            place.context(handles));
                           });
  }
  check_encoded(status);
}

/// `factor` none: overwrites by the only message.
void decode_layer_on(PyCompressor& self, std::size_t number, nb::list payloads, nb::handle out,
                     nb::handle factor, nb::handle result, nb::handle workspace,
                     std::uint64_t stream) {
  const std::size_t i = self.layer_of(number);
  const std::optional<float> alpha = alpha_or_none(factor);
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

/// `only_if`: none, or a 32-bit status where the model is.
void take_memory_back_on(PyCompressor& self, nb::handle only_if, nb::handle result,
                         std::uint64_t stream) {
  std::optional<Memory> word;
  const Status* said = nullptr;
  if (!only_if.is_none()) {
    word.emplace(only_if, Access::read, "only_if");
    if (word->view().size() != sizeof(Status)) throw Error("only_if: 4 bytes are expected");
    said = reinterpret_cast<const Status*>(word->view().data());
  }
  const Place place(result, result, stream);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::unique_lock alone(self.step);
    status = self.model.take_memory_back({.stream = place.stream()}, said);
  }
  check_taken_back(status);
}

}  // namespace

void bind_device_calls(nb::module_& module, nb::class_<PyCodec>& codec,
                       nb::class_<PyCompressor>& compressor) {
  nb::class_<BoundArrays>(module, "BoundArrays", "Arrays of a model's layers, borrowed.");
  codec
      .def("encode_on", &encode_on, nb::arg("x").none(), nb::arg("payload").none(),
           nb::arg("result"), nb::arg("workspace"), nb::arg("stream"), nb::arg("seed").none(),
           nb::arg("step").none(), nb::arg("worker").none(), nb::arg("tensor").none(),
           nb::arg("channel").none())
      .def("decode_on", &decode_on, nb::arg("payloads"), nb::arg("out").none(),
           nb::arg("alpha").none(), nb::arg("result"), nb::arg("workspace"), nb::arg("stream"));
  compressor
      .def(
          "bind",
          [](const PyCompressor& self, nb::handle arrays, bool encoding) {
            return std::make_unique<BoundArrays>(self, arrays, encoding);
          },
          nb::arg("arrays").none(), nb::arg("encoding"))
      .def("encode_on", &encode_model_on, nb::arg("gradients"), nb::arg("payload").none(),
           nb::arg("result"), nb::arg("workspace"), nb::arg("stream"), nb::arg("seed").none(),
           nb::arg("step").none(), nb::arg("worker").none(), nb::arg("channel").none())
      .def("decode_on", &decode_model_on, nb::arg("payloads"), nb::arg("out"),
           nb::arg("alpha").none(), nb::arg("result"), nb::arg("workspace"), nb::arg("stream"))
      .def("encode_layer_on", &encode_layer_on, nb::arg("number"), nb::arg("gradient").none(),
           nb::arg("payload").none(), nb::arg("result"), nb::arg("workspace"), nb::arg("stream"))
      .def("decode_layer_on", &decode_layer_on, nb::arg("number"), nb::arg("payloads"),
           nb::arg("out").none(), nb::arg("alpha").none(), nb::arg("result"), nb::arg("workspace"),
           nb::arg("stream"))
      .def("end_step_on", &end_step_on, nb::arg("result"), nb::arg("stream"))
      .def("take_memory_back_on", &take_memory_back_on, nb::arg("only_if").none(),
           nb::arg("result"), nb::arg("stream"))
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
