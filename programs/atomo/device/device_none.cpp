// SPDX-License-Identifier: Apache-2.0
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
