// SPDX-License-Identifier: Apache-2.0
/// \file
/// These functions take the place of device_cuda.cpp in a build without the CUDA backend. Each of
/// them fails with an error that says how to build the tool with that backend.
#include "device/device.hpp"
#include "terminal/failure.hpp"

namespace atomo::cli {

void require_cuda() {
  throw InputError(
      "--device cuda: this build has no CUDA backend; build with -DATOMO_CUDA=ON where nvcc is, or "
      "take --device cpu");
}

std::unique_ptr<DeviceModel> make_device_model(std::vector<LayerSpec>, Policy, bool) {
  require_cuda();
  return nullptr;
}

}  // namespace atomo::cli
