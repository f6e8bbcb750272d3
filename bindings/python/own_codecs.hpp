// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Codecs that are written in Python.

#include <nanobind/nanobind.h>

namespace atomo::python {

namespace nb = nanobind;

/// The exception with which a codec's code in Python failed last, which is given up; invalid where there
/// is none. The caller holds the GIL.
[[nodiscard]] nb::object take_codec_exception();

/// `when_unregistered` is called when a codec was taken out: codecs made before go on living, and belong to the
/// past.
void bind_own_codecs(
    nb::module_& module, void (*when_unregistered)() = [] {});

}  // namespace atomo::python
