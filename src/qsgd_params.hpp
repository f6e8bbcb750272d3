// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The parameters of a qsgd kind (FORMAT.md): bits - 1 in bits 0-2, the norm in bit 3, the bucket's
/// entries - 1 in bits 4-27.

#include <cstdint>

#include "atomo/qsgd.hpp"

namespace atomo::detail {

[[nodiscard]] inline std::uint32_t qsgd_params(const QsgdConfig& config) noexcept {
  return static_cast<std::uint32_t>(config.bits - 1) |
         (static_cast<std::uint32_t>(config.norm) << 3) | ((config.bucket - 1) << 4);
}

[[nodiscard]] inline QsgdConfig qsgd_config(std::uint32_t params) noexcept {
  QsgdConfig config;
  config.bits = static_cast<int>(params & 7u) + 1;
  config.norm = static_cast<QsgdNorm>((params >> 3) & 1u);
  config.bucket = ((params >> 4) & 0xFFFFFFu) + 1;
  return config;
}

}  // namespace atomo::detail
