// SPDX-License-Identifier: Apache-2.0
/// \file
/// What `_atomo.Compressor` is made of, and what its calls are held against: gradients against the
/// registered layers, and what the library refused against what a part and a model take.

#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "atomo/container.hpp"
#include "compressor.hpp"

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
    } catch (const nb::builtin_exception& error) {  // what is no integer
      throw nb::type_error(("layer '" + name + "': " + error.what()).c_str());
    }
  }
  return layers;
}

std::vector<std::string> names_of(const Compressor& model) {
  std::vector<std::string> names;
  for (const LayerSpec& layer : model.layers()) names.push_back(layer.name);
  return names;
}

}  // namespace

void check_taken_back(Status status) {
  if (status == Status::unsupported)
    throw Error("take_memory_back: the model was made without takes_back");
  if (status == Status::wrong_stage)
    throw Error("take_memory_back: between steps and messages, and not of a part");
  check_encoded(status);
}

void check_model_encoded(const PyCompressor& self, Status status, const Key& key) {
  if (self.step_of_whole != nullptr && status == Status::wrong_stage)
    throw Error(
        "encode: a part is encoded between begin_step and end_step of the model that it is a part "
        "of, and once in between where a codec has a memory");
  // Of what a model refuses so, a part's key alone can come from here.
  if (self.step_of_whole != nullptr && status == Status::invalid_argument) {
    throw Error(
        "encode: seed " + std::to_string(key.seed) + ", step " + std::to_string(key.step) +
        ", worker " + std::to_string(key.worker) + ", channel " + std::to_string(key.channel) +
        ": a part is encoded with the key of the step under way, as begin_step was given it");
  }
  check_encoded(status);
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

}  // namespace atomo::python
