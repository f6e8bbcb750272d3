// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Functions of `_atomo` on messages, whatever codec wrote them.

#include <nanobind/nanobind.h>

namespace atomo::python {

/// inspect, decode, decode_add, decode_add_all, add, vote, join, codecs.
void bind_messages(nanobind::module_& module);

}  // namespace atomo::python
