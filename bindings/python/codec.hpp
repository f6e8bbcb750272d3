// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `_atomo.Codec`: a codec and the memory that its calls work in.

#include <nanobind/nanobind.h>

#include <string>

#include "arguments.hpp"
#include "atomo/codec.hpp"
#include "workspaces.hpp"

namespace atomo::python {

namespace nb = nanobind;

/// May be used from many threads.
struct PyCodec {
  explicit PyCodec(const std::string& spec) : codec(Codec::parse(spec)) {}

  Codec codec;
  WorkspacePool pool;
  OverspentWarning warning;
};

/// Everything on the host; device.hpp adds the rest.
nb::class_<PyCodec> bind_codec(nb::module_& module);

}  // namespace atomo::python
