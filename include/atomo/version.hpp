// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The library's version and the container's.

namespace atomo {
inline constexpr int kVersionMajor = 0;           ///< of the library
inline constexpr int kVersionMinor = 1;           ///< of the library
inline constexpr int kVersionPatch = 0;           ///< of the library
inline constexpr const char* kVersion = "0.1.0";  ///< all three
/// Of the container. A decoder refuses another major and accepts any minor (FORMAT.md, "Versions").
inline constexpr int kFormatMajor = 2;
inline constexpr int kFormatMinor = 0;  ///< of the container; written, never refused
}  // namespace atomo
