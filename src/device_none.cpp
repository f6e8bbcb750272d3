// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

namespace atomo::detail {

const DeviceBackend* device_backend() noexcept { return nullptr; }

}  // namespace atomo::detail
