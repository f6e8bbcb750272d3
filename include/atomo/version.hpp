// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The library's version and the container's.

namespace atomo {
inline constexpr int kVersionMajor = 0, kVersionMinor = 1, kVersionPatch = 0;
inline constexpr const char* kVersion = "0.1.0";
/// Of the container. A decoder refuses another major and accepts any minor (FORMAT.md, "Versions").
inline constexpr int kFormatMajor = 0, kFormatMinor = 1;
}  // namespace atomo
