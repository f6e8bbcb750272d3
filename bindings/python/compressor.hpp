// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `_atomo.Compressor`: a model, its threads and the memory that its calls work in.

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "arrays.hpp"
#include "atomo/compressor.hpp"
#include "workspaces.hpp"

namespace atomo::python {

/// What a message of layers that come one by one borrows until it ends.
struct OpenMessage {
  WorkspacePool::Lease message, workspace;
  std::uint64_t bytes = 0;
  std::vector<Array> gradients = {};  ///< in the order in which they were added
};

/// May be used from many threads: what the library wants one thread for waits for the others.
class PyCompressor {
 public:
  /// `layers`: a list of (name, shape, dtype's name); `policy`: rules, or one spec for all.
  PyCompressor(nb::list layers, const std::string& policy, unsigned threads, bool names_on_wire,
               const std::string& device, bool learns_ranks, bool takes_back);
  /// Layers [first, first + count) of `whole`, which outlives it.
  PyCompressor(PyCompressor& whole, std::size_t first, std::size_t count);

  Compressor model;
  std::string policy;  ///< as it was given
  Threads threads;
  WorkspacePool pool;
  OverspentWarning warning;
  std::vector<std::string> names;
  /// Alone for `encode`, what begins or ends a message or a step, and `load`; shared for everything
  /// between.
  std::shared_mutex step;
  std::shared_mutex* step_of_whole = nullptr;  ///< of a part: its messages are between, too
  std::unique_ptr<OpenMessage> open;  ///< between `begin_message` and `end_message`; under the GIL
  std::unique_ptr<std::mutex[]> layers;  ///< one a layer: two threads may not encode the same one
  /// Suffices to decode any message of these shapes into any dtypes, on the CPU.
  std::size_t decode_workspace_bytes = 0;

  /// Sizes that follow from the model.
  void set_up();
  /// Keeps the whole's step from ending in a call that encodes a part.
  [[nodiscard]] std::shared_lock<std::shared_mutex> among_parts() const {
    if (step_of_whole == nullptr) return {};
    return std::shared_lock(*step_of_whole);
  }
  /// \throws Error for an array of another shape (or, to encode, dtype) than was registered.
  void check(std::size_t layer, const Array& array, bool encoding, const std::string& what) const;
  void check(const Arrays& arrays, bool encoding, const std::string& what) const;
  /// \throws Error for a number that is no layer's.
  [[nodiscard]] std::size_t layer_of(std::size_t number) const;
};

/// \throws Failure when `encode` with this key failed; Error that says how a part wants to be called.
void check_model_encoded(const PyCompressor& self, Status status, const Key& key);
/// \throws Error for memories that could not be taken back.
void check_taken_back(Status status);

/// Everything on the host; device.hpp adds the rest.
nb::class_<PyCompressor> bind_compressor(nb::module_& module);

}  // namespace atomo::python
