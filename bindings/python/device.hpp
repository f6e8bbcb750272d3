// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Calls that neither take memory nor wait, on arrays in a GPU's memory or the host's. The caller's
/// framework lends everything: the message's memory, the workspace, and 16 bytes that the message's
/// length and status are told in.

#include <nanobind/nanobind.h>

#include "codec.hpp"
#include "compressor.hpp"

namespace atomo::python {

/// `..._on`: queued on the stream given, without waiting; what fails on the device is told there.
void bind_device_calls(nb::module_& module, nb::class_<PyCodec>& codec,
                       nb::class_<PyCompressor>& compressor);

}  // namespace atomo::python
