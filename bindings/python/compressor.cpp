// SPDX-License-Identifier: Apache-2.0
/// \file
/// The methods of `_atomo.Compressor` for arrays in host memory are defined here: calls on a whole
/// model, steps that encode layer by layer, and saving and loading what the model has learnt.
/// Python's global lock is not held while the library works, so a shared mutex for the step and a
/// mutex for each layer keep concurrent calls apart. Gradients are compared with the registered
/// layers before they are encoded.

#include "compressor.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "arguments.hpp"

namespace atomo::python {
namespace {

constexpr const char* kOfParts =
    ": a part has no steps and messages of its own: the model that it is a part of begins and ends "
    "a step, and the part's encode makes its message in between";

/// \throws Error with `rule`, of the call of this name, when it came at the wrong time.
void check_stage(const PyCompressor& self, Status status, const char* call, const char* rule) {
  if (status == Status::wrong_stage && self.step_of_whole != nullptr)
    throw Error(std::string(call) + kOfParts);
  if (status == Status::wrong_stage) throw Error(std::string(call) + ": " + rule);
  check_encoded(status);
}

/// None, or two numbers.
std::optional<Prices> prices_of(nb::handle prices) {
  if (prices.is_none()) return {};
  if (PySequence_Check(prices.ptr()) == 0 || nb::len(prices) != 2) {
    throw Error("prices is " + shown(prices) +
                ": two numbers are expected, the price of atoms and the step of the grid");
  }
  return Prices{f32_of(prices[0], "prices[0]"), f32_of(prices[1], "prices[1]")};
}

nb::tuple tuple_of(const Prices& prices) { return nb::make_tuple(prices.atoms, prices.grid); }

nb::bytes encode(PyCompressor& self, nb::handle gradients, nb::handle seed, nb::handle step,
                 nb::handle worker, nb::handle channel) {
  const Arrays arrays(gradients, Access::read, "gradients", &self.names);
  arrays.require_host();
  self.check(arrays, true, "gradients");
  const std::vector<ConstTensorView> views = arrays.views();
  const Key key = key_of(seed, step, worker, channel);
  self.warning.tell_owed(self.policy);
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
  check_model_encoded(self, status, key);
  self.warning.tell_or_owe(status, self.policy);
  return bytes_of(message.bytes(), bytes);
}

void begin_message(PyCompressor& self, nb::handle seed, nb::handle step, nb::handle worker,
                   nb::handle channel) {
  const Key key = key_of(seed, step, worker, channel);
  self.warning.tell_owed(self.policy);
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
  check_stage(self, status, "begin_message", "the message or the step before has to end first");
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
  check_stage(self, status, "add_layer", "begin_message has to begin a message first");
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
  check_stage(self, status, "end_message", "not every layer was added; the message is given up");
  self.warning.tell_or_owe(status, self.policy);
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

void decode_add_all(PyCompressor& self, nb::list payloads, nb::handle out, nb::handle alpha) {
  const float factor = alpha_of(alpha);
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
    status = self.model.decode_add_all(messages.bytes, factor, views,
                                       {.workspace = workspace.bytes(),
                                        .executor = self.threads.executor(),
                                        .statuses = each.data()});
  }
  check_added(status, each);
}

void begin_step(PyCompressor& self, nb::handle seed, nb::handle step, nb::handle worker,
                nb::handle channel, nb::handle given) {
  const Key key = key_of(seed, step, worker, channel);
  const std::optional<Prices> prices = prices_of(given);
  self.warning.tell_owed(self.policy);
  const nb::gil_scoped_release gil_released;
  const std::unique_lock alone(self.step);
  const Status status = prices ? self.model.begin_step(key, *prices) : self.model.begin_step(key);
  if (status == Status::invalid_argument) {
    throw Error("begin_step: prices are (" + std::to_string(prices->atoms) + ", " +
                std::to_string(prices->grid) +
                "): each has to be one that predicted_prices told, of any worker");
  }
  if (status == Status::unsupported)
    throw Error("begin_step: the layers' heads leave no room under cap=: give more bits");
  check_stage(self, status, "begin_step", "the step before has to end first");
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
  check_stage(self, status, "encode_layer",
              "begin_step has to begin a step first, and a layer whose codec has a memory is sent "
              "once a step");
  return bytes_of(message.bytes(), bytes);
}

void end_step(PyCompressor& self) {
  Status status = Status::ok;
  {
    const nb::gil_scoped_release gil_released;
    const std::unique_lock alone(self.step);
    status = self.model.end_step();
  }
  check_stage(self, status, "end_step", "begin_step has to begin a step first");
  self.warning.tell_or_owe(status, self.policy);
}

/// `alpha` nothing: overwrites.
void decode_or_add_layer(PyCompressor& self, std::size_t number, nb::handle payload, nb::handle out,
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

void decode_layer(PyCompressor& self, std::size_t number, nb::handle payload, nb::handle out) {
  decode_or_add_layer(self, number, payload, out, {});
}

void decode_layer_add(PyCompressor& self, std::size_t number, nb::handle payload, nb::handle out,
                      nb::handle alpha) {
  decode_or_add_layer(self, number, payload, out, alpha_of(alpha));
}

void decode_layer_add_all(PyCompressor& self, std::size_t number, nb::list payloads, nb::handle out,
                          nb::handle alpha) {
  const float factor = alpha_of(alpha);
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
    status = self.model.decode_layer_add_all(i, messages.bytes, factor, view,
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

void set_budget_share(PyCompressor& self, nb::handle given) {
  const double share = number_of(given, "budget_share");
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

nb::class_<PyCompressor> bind_compressor(nb::module_& module) {
  module.def(
      "budget_shares",
      [](const std::vector<double>& rates, nb::handle power, nb::handle least,
         nb::handle momentum) {
        return budget_shares(rates, number_of(power, "power"), number_of(least, "least"),
                             number_of(momentum, "momentum"));
      },
      nb::arg("rates"), nb::arg("power").none(), nb::arg("least").none(),
      nb::arg("momentum").none());
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
               nb::arg("alpha").none())
          .def("begin_step", &begin_step, nb::arg("seed").none(), nb::arg("step").none(),
               nb::arg("worker").none(), nb::arg("channel").none(), nb::arg("prices").none())
          .def("encode_layer", &encode_layer, nb::arg("number"), nb::arg("gradient").none())
          .def("end_step", &end_step)
          .def("decode_layer", &decode_layer, nb::arg("number"), nb::arg("payload").none(),
               nb::arg("out").none())
          .def("decode_layer_add", &decode_layer_add, nb::arg("number"), nb::arg("payload").none(),
               nb::arg("out").none(), nb::arg("alpha").none())
          .def("decode_layer_add_all", &decode_layer_add_all, nb::arg("number"),
               nb::arg("payloads"), nb::arg("out").none(), nb::arg("alpha").none());
  bound.def("prices", [](PyCompressor& self) { return tuple_of(read<&Compressor::prices>(self)); })
      .def("predicted_prices",
           [](PyCompressor& self) { return tuple_of(read<&Compressor::predicted_prices>(self)); })
      .def("expected_bytes", &read<&Compressor::expected_bytes>)
      .def("wire_bytes", &read<&Compressor::wire_bytes>)
      .def("budget_bytes", &read<&Compressor::budget_bytes>)
      .def("budget_share", &read<&Compressor::budget_share>)
      .def("set_budget_share", &set_budget_share, nb::arg("share").none())
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
            self.warning.tell_or_owe(static_cast<Status>(status), self.policy);
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
