// SPDX-License-Identifier: Apache-2.0
/// The backend of a build without CUDA: there is none, and a call that asks for it says so.
#include "atomo/cuda.hpp"
#include "backend/backend.hpp"

namespace atomo {

void DestroyHandles::operator()(Handles*) const noexcept {}

HandlesPtr make_handles() {
  throw Error("this build of atomo has no CUDA backend: there are no handles to make");
}

namespace backend {

const DeviceBackend* device_backend() noexcept { return nullptr; }

}  // namespace backend
}  // namespace atomo
