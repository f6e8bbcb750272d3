// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A model, its data and its optimiser whose code is in Python, as the trainer has them.

#include <nanobind/nanobind.h>

#include "learning/own_model.hpp"

namespace atomo::python {

namespace nb = nanobind;

/// `model` is a `atomo.train._model.Model`. Its functions are called under the GIL, which the trainer
/// does not hold; what they raise is a std::runtime_error with the traceback. The caller holds the GIL.
[[nodiscard]] train::OwnModel own_model_of(nb::object model);

}  // namespace atomo::python
