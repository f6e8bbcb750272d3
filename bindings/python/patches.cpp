// SPDX-License-Identifier: Apache-2.0
/// \file
/// `make_patch`, `inspect_patch` and `apply_patch` of the module `_atomo`. Python gives a tensor as a
/// tuple (name, type, shape, bytes of an element, whether elements are floating-point, memory).

#include "patches.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "arrays.hpp"
#include "atomo/patch.hpp"
#include "atomo/thread_pool.hpp"

namespace atomo::python {
namespace {

/// Tensors of Python's, held while a call reads them.
struct State {
  explicit State(const nb::list& tensors) {
    held.reserve(tensors.size());
    for (const nb::handle item : tensors) {
      const auto row = nb::cast<nb::tuple>(item);
      PatchTensor tensor{nb::cast<std::string>(row[0]),
                         nb::cast<std::string>(row[1]),
                         nb::cast<std::vector<std::uint64_t>>(row[2]),
                         nb::cast<std::uint8_t>(row[3]),
                         nb::cast<bool>(row[4]),
                         {}};
      held.emplace_back(row[5], Access::read, tensor.name);
      tensor.data = held.back().on_host();
      views.push_back(std::move(tensor));
    }
  }
  std::vector<Memory> held;
  std::vector<PatchTensor> views;
};

nb::bytes make(nb::list before, nb::list after, const std::string& note, unsigned threads) {
  const unsigned workers = checked_threads(threads);
  const State old(before), now(after);
  std::vector<std::byte> patch;
  {
    const nb::gil_scoped_release gil_released;
    ThreadPool pool(workers);
    patch = make_patch(old.views, now.views, note, &pool);
  }
  return bytes_of(patch, patch.size());
}

nb::dict inspect(nb::handle payload) {
  const Memory patch(payload, Access::read, "patch");
  const ConstBytes bytes = patch.on_host();
  PatchInfo info;
  {
    const nb::gil_scoped_release gil_released;
    info = inspect_patch(bytes);
  }
  constexpr const char* kForms[] = {"same", "changes", "whole"};
  nb::list tensors;
  for (const PatchEntry& entry : info.tensors) {
    nb::dict row;
    row["name"] = entry.name;
    row["type"] = entry.type;
    row["shape"] = nb::tuple(nb::cast(entry.shape));
    row["form"] = kForms[static_cast<std::size_t>(entry.form)];
    row["tensor_bytes"] = entry.bytes;
    row["changed"] = entry.changed;
    row["bytes"] = entry.sent;
    row["checksum"] = entry.checksum;
    tensors.append(row);
  }
  nb::dict found;
  found["note"] = nb::bytes(info.note.data(), info.note.size());
  found["bytes"] = info.bytes;
  found["tensors"] = tensors;
  return found;
}

void apply(nb::handle payload, nb::list before, nb::list out, unsigned threads) {
  const unsigned workers = checked_threads(threads);
  const Memory patch(payload, Access::read, "patch");
  const ConstBytes bytes = patch.on_host();
  const State old(before);
  std::vector<Memory> held;
  std::vector<Bytes> rooms;
  held.reserve(out.size());
  for (const nb::handle room : out) {
    held.emplace_back(room, Access::write, "out");
    static_cast<void>(held.back().on_host());
    rooms.push_back(held.back().writable());
  }
  const nb::gil_scoped_release gil_released;
  ThreadPool pool(workers);
  apply_patch(bytes, old.views, rooms, &pool);
}

}  // namespace

void bind_patches(nb::module_& module) {
  module.def("make_patch", &make, nb::arg("before"), nb::arg("after"), nb::arg("note"),
             nb::arg("threads"));
  module.def("inspect_patch", &inspect, nb::arg("patch").none());
  module.def("apply_patch", &apply, nb::arg("patch").none(), nb::arg("before"), nb::arg("out"),
             nb::arg("threads"));
}

}  // namespace atomo::python
