// SPDX-License-Identifier: Apache-2.0
/// \file
/// The extension `atomo._atomo`: the library's calls on Python's arrays. The package around it is
/// in `atomo/`.
#include <nanobind/nanobind.h>

#include "arguments.hpp"
#include "atomo/version.hpp"
#include "codec.hpp"
#include "compressor.hpp"
#include "device.hpp"
#include "messages.hpp"
#include "own_codecs.hpp"
#include "patches.hpp"
#include "verify.hpp"

NB_MODULE(_atomo, module) {
  using namespace atomo::python;
  module.doc() = "The library's calls on arrays; use the package atomo.";
  module.attr("__version__") = atomo::kVersion;
  // Torch keeps hooks, and the models that their states hold, until the process ends.
  nanobind::set_leak_warnings(false);
  register_failures();
  module.def("status_of", &status_of, nanobind::arg("number"));
  auto codec = bind_codec(module);
  auto compressor = bind_compressor(module);
  bind_messages(module);
  bind_own_codecs(module);
  bind_patches(module);
  bind_verify(module);
  bind_device_calls(module, codec, compressor);
#ifdef ATOMO_PYTHON_CUDA
  module.attr("cuda") = true;
#else
  module.attr("cuda") = false;
#endif
}
