// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Functions of `_atomo` on patches, for tensors given as bytes.

#include <nanobind/nanobind.h>

namespace atomo::python {

/// make_patch, inspect_patch, apply_patch.
void bind_patches(nanobind::module_& module);

}  // namespace atomo::python
