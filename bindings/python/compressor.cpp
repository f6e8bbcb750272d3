// SPDX-License-Identifier: Apache-2.0
/// \file
/// The methods of `_atomo.Compressor` for arrays in host memory are defined here: calls on a whole
/// model, steps that encode layer by layer, and saving and loading what the model has learnt.
/// Python's global lock is not held while the library works, so a shared mutex for the step and a
/// mutex for each layer keep concurrent calls apart. Gradients are compared with the registered
/// layers before they are encoded.

#include "compressor.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "arguments.hpp"
#include "atomo/container.hpp"

namespace atomo::python {
namespace {

std::vector<LayerSpec> layers_of(nb::list rows) {
  std::vector<LayerSpec> layers;
  for (const nb::handle row : rows) {
    const auto name = nb::cast<std::string>(row[0]);
    try {
      layers.push_back({name, shape_of(row[1]), dtype_of(nb::cast<std::string>(row[2]))});
    } catch (const Error& error) {
      throw Error("layer '" + name + "': " + error.what());
    }
  }
  return layers;
}

std::vector<std::string> names_of(const Compressor& model) {
  std::vector<std::string> names;
  for (const LayerSpec& layer : model.layers()) names.push_back(layer.name);
  return names;
}

/// \throws Error with `rule` when the call came at the wrong time.
void check_stage(Status status, const char* rule) {
  if (status == Status::wrong_stage) throw Error(rule);
  check_encoded(status);
}

nb::tuple tuple_of(const Prices& prices) { return nb::make_tuple(prices.atoms, prices.grid); }

nb::bytes encode(PyCompressor& self, nb::handle gradients, nb::handle seed, nb::handle step,
                 nb::handle worker, nb::handle channel) {
  const Arrays arrays(gradients, Access::read, "gradients", &self.names);
  arrays.require_host();
  self.check(arrays, true, "gradients");
  const std::vector<ConstTensorView> views = arrays.views();
  const Key key = key_of(seed, step, worker, channel);
  const auto message = self.pool.take(self.model.max_encoded_bytes());
  const auto workspace = self.pool.take(self.model.encode_workspace_bytes());
  std::uint64_t bytes = 0;
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const auto among = self.among_parts();
    const std::unique_lock alone(self.step);
    status =
        self.model.encode(views, key, {message.bytes().data(), message.bytes().size(), &bytes},
                          {.workspace = workspace.bytes(), .executor = self.threads.executor()});
  }
  check_encoded(status);
  self.warning.tell(status, self.policy);
  return bytes_of(message.bytes(), bytes);
}

void begin_message(PyCompressor& self, nb::handle seed, nb::handle step, nb::handle worker,
                   nb::handle channel) {
  const Key key = key_of(seed, step, worker, channel);
  std::unique_ptr<OpenMessage> open(
      new OpenMessage{self.pool.take(self.model.max_encoded_bytes()),
                      self.pool.take(self.model.encode_workspace_bytes())});
  const Bytes message = open->message.bytes();
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const auto among = self.among_parts();
    const std::unique_lock alone(self.step);
    status = self.model.begin_message(
        key, {message.data(), message.size(), &open->bytes},
        {.workspace = open->workspace.bytes(), .executor = self.threads.executor()});
  }
  check_stage(status, "begin_message: the message or the step before has to end first");
  self.open = std::move(open);
}

void add_layer(PyCompressor& self, std::size_t number, nb::handle gradient) {
  const std::size_t i = self.layer_of(number);
  const Array array(gradient, Access::read, "gradient");
  const ConstTensorView view = array.on_host().view();
  self.check(i, array, true, "gradient");
  if (self.open) self.open->gradients.push_back(array);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    const std::lock_guard alone(self.layers[i]);
    status = self.model.add_layer(i, view, {.executor = self.threads.executor()});
  }
  check_stage(status, "add_layer: begin_message has to begin a message first");
}

nb::bytes end_message(PyCompressor& self) {
  const std::unique_ptr<OpenMessage> open = std::move(self.open);
  if (!open) throw Error("end_message: begin_message has to begin a message first");
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const auto among = self.among_parts();
    const std::unique_lock alone(self.step);
    status = self.model.end_message({.executor = self.threads.executor()});
  }
  check_stage(status, "end_message: not every layer was added; the message is given up");
  self.warning.tell(status, self.policy);
  return bytes_of(open->message.bytes(), open->bytes);
}

void decode(PyCompressor& self, nb::handle payload, nb::handle out) {
  const Memory message(payload, Access::read, "payload");
  const Arrays arrays(out, Access::write, "out", &self.names);
  arrays.require_host();
  self.check(arrays, false, "out");
  const ConstBytes bytes = message.on_host();
  const std::vector<TensorView> views = arrays.writable();
  const auto workspace = self.pool.take(self.decode_workspace_bytes);
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    status = self.model.decode(
        bytes, views, {.workspace = workspace.bytes(), .executor = self.threads.executor()});
  }
  check_decoded(status);
}

void decode_add_all(PyCompressor& self, nb::list payloads, nb::handle out, float alpha) {
  const Messages messages(payloads);
  messages.require_host();
  const Arrays arrays(out, Access::write, "out", &self.names);
  arrays.require_host();
  self.check(arrays, false, "out");
  const std::vector<TensorView> views = arrays.writable();
  const auto workspace = self.pool.take(self.decode_workspace_bytes);
  std::vector<Status> each(messages.bytes.size());
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    status = self.model.decode_add_all(messages.bytes, alpha, views,
                                       {.workspace = workspace.bytes(),
                                        .executor = self.threads.executor(),
                                        .statuses = each.data()});
  }
  check_added(status, each);
}

void begin_step(PyCompressor& self, nb::handle seed, nb::handle step, nb::handle worker,
                nb::handle channel, std::optional<std::pair<float, float>> prices) {
  const Key key = key_of(seed, step, worker, channel);
  const nb::gil_scoped_release gil_released;
  const std::unique_lock alone(self.step);
  const Status status = prices ? self.model.begin_step(key, {prices->first, prices->second})
                               : self.model.begin_step(key);
  if (status == Status::invalid_argument) {
    throw Error("begin_step: prices are (" + std::to_string(prices->first) + ", " +
                std::to_string(prices->second) +
                "): each has to be one that predicted_prices told, of any worker");
  }
  if (status == Status::unsupported)
    throw Error("begin_step: the layers' heads leave no room under cap=: give more bits");
  check_stage(status, "begin_step: the step before has to end first");
}

nb::bytes encode_layer(PyCompressor& self, std::size_t number, nb::handle gradient) {
  const std::size_t i = self.layer_of(number);
  const Array array(gradient, Access::read, "gradient");
  const ConstTensorView view = array.on_host().view();
  self.check(i, array, true, "gradient");
  const auto message = self.pool.take(self.model.max_encoded_bytes(i));
  const auto workspace = self.pool.take(self.model.encode_workspace_bytes(i));
  std::uint64_t bytes = 0;
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    const std::lock_guard alone(self.layers[i]);
    status = self.model.encode_layer(
        i, view, {message.bytes().data(), message.bytes().size(), &bytes},
        {.workspace = workspace.bytes(), .executor = self.threads.executor()});
  }
  check_stage(status,
              "encode_layer: begin_step has to begin a step first, and a layer whose codec has a "
              "memory is sent once a step");
  return bytes_of(message.bytes(), bytes);
}

void end_step(PyCompressor& self) {
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::unique_lock alone(self.step);
    status = self.model.end_step();
  }
  check_stage(status, "end_step: begin_step has to begin a step first");
  self.warning.tell(status, self.policy);
}

/// `alpha` none: overwrites.
void decode_layer(PyCompressor& self, std::size_t number, nb::handle payload, nb::handle out,
                  std::optional<float> alpha) {
  const std::size_t i = self.layer_of(number);
  const Memory message(payload, Access::read, "payload");
  const Array array(out, Access::write, "out");
  const ConstBytes bytes = message.on_host();
  const TensorView view = array.on_host().writable();
  if (alpha) static_cast<void>(array.for_sums());
  self.check(i, array, false, "out");
  const auto workspace = self.pool.take(self.model.decode_workspace_bytes(i));
  const Context context{.workspace = workspace.bytes(), .executor = self.threads.executor()};
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    status = alpha ? self.model.decode_layer_add(i, bytes, *alpha, view, context)
                   : self.model.decode_layer(i, bytes, view, context);
  }
  check_decoded(status);
}

void decode_layer_add_all(PyCompressor& self, std::size_t number, nb::list payloads, nb::handle out,
                          float alpha) {
  const std::size_t i = self.layer_of(number);
  const Messages messages(payloads);
  messages.require_host();
  const Array array(out, Access::write, "out");
  const TensorView view = array.on_host().for_sums().writable();
  self.check(i, array, false, "out");
  const auto workspace = self.pool.take(self.model.decode_workspace_bytes(i));
  std::vector<Status> each(messages.bytes.size());
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    status = self.model.decode_layer_add_all(i, messages.bytes, alpha, view,
                                             {.workspace = workspace.bytes(),
                                              .executor = self.threads.executor(),
                                              .statuses = each.data()});
  }
  check_added(status, each);
}

/// A number that the model knows, read while no other thread changes it.
template <auto Read>
auto read(PyCompressor& self) {
  const nb::gil_scoped_release gil_released;
  const std::shared_lock among_others(self.step);
  return (self.model.*Read)();
}

/// `what`: "all", "learnt" or "memories".
nb::bytes save(PyCompressor& self, const std::string& what) {
  std::vector<std::byte> state;
  {
    const nb::gil_scoped_release gil_released;
    const std::shared_lock among_others(self.step);
    state = self.model.save(what == "all"      ? Saved::all
                            : what == "learnt" ? Saved::learnt
                                               : Saved::memories);
  }
  return nb::bytes(reinterpret_cast<const char*>(state.data()), state.size());
}

/// f32 values, as bytes.
nb::bytes memory(PyCompressor& self, std::size_t number) {
  const std::size_t i = self.layer_of(number);
  std::vector<float> kept;
  {
    const nb::gil_scoped_release gil_released;
    const std::unique_lock alone(self.step);
    kept = self.model.memory(i);
  }
  return nb::bytes(reinterpret_cast<const char*>(kept.data()), kept.size() * sizeof(float));
}

void reset_memory(PyCompressor& self) {
  const nb::gil_scoped_release gil_released;
  const std::unique_lock alone(self.step);
  self.model.reset_memory();
}

void set_budget_share(PyCompressor& self, double share) {
  const nb::gil_scoped_release gil_released;
  const std::unique_lock alone(self.step);
  self.model.set_budget_share(share);
}

void take_memory_back(PyCompressor& self) {
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::unique_lock alone(self.step);
    status = self.model.take_memory_back();
  }
  check_taken_back(status);
}

void load(PyCompressor& self, nb::handle state) {
  const Memory bytes(state, Access::read, "state");
  const ConstBytes saved = bytes.on_host();
  const nb::gil_scoped_release gil_released;
  const std::unique_lock alone(self.step);
  self.model.load(saved);
}

}  // namespace

void check_taken_back(Status status) {
  if (status == Status::unsupported)
    throw Error("take_memory_back: the model was made without takes_back");
  check_stage(status, "take_memory_back: between steps and messages, and not of a part");
}

PyCompressor::PyCompressor(nb::list rows, const std::string& rules, unsigned count,
                           bool names_on_wire, const std::string& device, bool learns_ranks,
                           bool takes_back)
    : model(layers_of(std::move(rows)), Policy::parse(rules),
            {.names_on_wire = names_on_wire,
             .device = device_of(device),
             .learns_ranks = learns_ranks,
             .takes_back = takes_back}),
      policy(rules),
      threads(count),
      names(names_of(model)),
      layers(std::make_unique<std::mutex[]>(names.size())) {
  set_up();
}

PyCompressor::PyCompressor(PyCompressor& whole, std::size_t first, std::size_t count)
    : model(whole.model.part(first, count)),
      policy(whole.policy),
      threads(whole.threads.count()),
      names(names_of(model)),
      step_of_whole(&whole.step),
      layers(std::make_unique<std::mutex[]>(names.size())) {
  set_up();
}

void PyCompressor::set_up() {
  std::size_t sums = 0;
  for (const LayerSpec& layer : model.layers()) {
    decode_workspace_bytes =
        std::max(decode_workspace_bytes, atomo::decode_workspace_bytes(layer.shape, layer.dtype));
    sums = std::max(sums, layer.shape.elements() * sizeof(float) + 64);
  }
  // Several messages that are added into a half are added in f32 before.
  decode_workspace_bytes = std::max(decode_workspace_bytes + sums, model.decode_workspace_bytes());
}

void PyCompressor::check(std::size_t layer, const Array& array, bool encoding,
                         const std::string& what) const {
  const LayerSpec& wanted = model.layers()[layer];
  if (array.shape() != wanted.shape) {
    throw Error(what + ": the shape is " + array.shape().to_string() + ", layer '" + wanted.name +
                "' was registered with " + wanted.shape.to_string());
  }
  if (encoding && array.dtype() != wanted.dtype) {
    throw Error(what + ": the elements are " + std::string(atomo::name_of(array.dtype())) +
                ", layer '" + wanted.name + "' was registered with " +
                std::string(atomo::name_of(wanted.dtype)));
  }
}

void PyCompressor::check(const Arrays& arrays, bool encoding, const std::string& what) const {
  if (arrays.size() != names.size()) {
    throw Error(what + ": " + std::to_string(arrays.size()) + " arrays for " +
                std::to_string(names.size()) + " layers");
  }
  for (std::size_t i = 0; i < names.size(); ++i)
    check(i, arrays[i], encoding, what + "['" + names[i] + "']");
}

std::size_t PyCompressor::layer_of(std::size_t number) const {
  if (number < names.size()) return number;
  throw Error("layer " + std::to_string(number) + ": the model has " +
              std::to_string(names.size()));
}

nb::class_<PyCompressor> bind_compressor(nb::module_& module) {
  module.def(
      "budget_shares",
      [](const std::vector<double>& rates, double power, double least, double momentum) {
        return budget_shares(rates, power, least, momentum);
      },
      nb::arg("rates"), nb::arg("power"), nb::arg("least"), nb::arg("momentum"));
  auto bound =
      nb::class_<PyCompressor>(module, "Compressor", "A model of the library with its threads.")
          .def(nb::init<nb::list, const std::string&, unsigned, bool, const std::string&, bool,
                        bool>(),
               nb::arg("layers"), nb::arg("policy"), nb::arg("threads"), nb::arg("names_on_wire"),
               nb::arg("device"), nb::arg("learns_ranks"), nb::arg("takes_back"))
          .def(nb::init<PyCompressor&, std::size_t, std::size_t>(), nb::arg("whole"),
               nb::arg("first"), nb::arg("count"), nb::keep_alive<1, 2>())
          .def("encode", &encode, nb::arg("gradients").none(), nb::arg("seed").none(),
               nb::arg("step").none(), nb::arg("worker").none(), nb::arg("channel").none())
          .def("begin_message", &begin_message, nb::arg("seed").none(), nb::arg("step").none(),
               nb::arg("worker").none(), nb::arg("channel").none())
          .def("add_layer", &add_layer, nb::arg("number"), nb::arg("gradient").none())
          .def("end_message", &end_message)
          .def("decode", &decode, nb::arg("payload").none(), nb::arg("out").none())
          .def("decode_add_all", &decode_add_all, nb::arg("payloads"), nb::arg("out").none(),
               nb::arg("alpha"))
          .def("begin_step", &begin_step, nb::arg("seed").none(), nb::arg("step").none(),
               nb::arg("worker").none(), nb::arg("channel").none(), nb::arg("prices").none())
          .def("encode_layer", &encode_layer, nb::arg("number"), nb::arg("gradient").none())
          .def("end_step", &end_step)
          .def("decode_layer", &decode_layer, nb::arg("number"), nb::arg("payload").none(),
               nb::arg("out").none(), nb::arg("alpha").none())
          .def("decode_layer_add_all", &decode_layer_add_all, nb::arg("number"),
               nb::arg("payloads"), nb::arg("out").none(), nb::arg("alpha"));
  bound.def("prices", [](PyCompressor& self) { return tuple_of(read<&Compressor::prices>(self)); })
      .def("predicted_prices",
           [](PyCompressor& self) { return tuple_of(read<&Compressor::predicted_prices>(self)); })
      .def("expected_bytes", &read<&Compressor::expected_bytes>)
      .def("wire_bytes", &read<&Compressor::wire_bytes>)
      .def("budget_bytes", &read<&Compressor::budget_bytes>)
      .def("budget_share", &read<&Compressor::budget_share>)
      .def("set_budget_share", &set_budget_share, nb::arg("share"))
      .def("elements", &read<&Compressor::elements>)
      .def("max_encoded_bytes",
           [](const PyCompressor& self) { return self.model.max_encoded_bytes(); })
      .def(
          "layer_max_encoded_bytes",
          [](const PyCompressor& self, std::size_t number) {
            return self.model.max_encoded_bytes(self.layer_of(number));
          },
          nb::arg("number"))
      .def(
          "codec",
          [](const PyCompressor& self, std::size_t number) {
            return self.model.codec(self.layer_of(number)).to_string();
          },
          nb::arg("number"))
      .def(
          "notice",
          [](PyCompressor& self, std::int32_t status) {
            self.warning.tell(static_cast<Status>(status), self.policy);
          },
          nb::arg("status"))
      .def("memory", &memory, nb::arg("number"))
      .def("memory_bytes", &read<&Compressor::memory_bytes>)
      .def("reset_memory", &reset_memory)
      .def("take_memory_back", &take_memory_back)
      .def("save", &save, nb::arg("what"))
      .def("load", &load, nb::arg("state").none());
  return bound;
}

}  // namespace atomo::python
