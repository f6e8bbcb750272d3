// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What codecs and functions claim, looked at (atomo/verify.hpp).

#include <nanobind/nanobind.h>

namespace atomo::python {

namespace nb = nanobind;

void bind_verify(nb::module_& module);

}  // namespace atomo::python
