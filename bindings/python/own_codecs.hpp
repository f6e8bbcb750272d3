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

/// Said once by an extension whose calls look for `restore_what_ends`: until one has, no codec is called again in
/// the thread in which it was raised.
void let_callers_see_what_ends();

/// Sets, as Python's current exception, what a codec's code raised that is no `Exception` (KeyboardInterrupt,
/// SystemExit): no failure of the codec's, but what its caller is to see as it is. Of this thread's calls, or
/// `of_any` thread's: those of a pool have no caller of their own. False where there is none. The caller holds the GIL.
[[nodiscard]] bool restore_what_ends(bool of_any);

/// `when_unregistered` is called when a codec was taken out: codecs made before go on living, and belong to the
/// past.
void bind_own_codecs(
    nb::module_& module, void (*when_unregistered)() = [] {});

}  // namespace atomo::python
