// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The two ways a command fails, each told in one line on standard error.

#include <stdexcept>
#include <string>

namespace atomo::cli {

/// Wrong usage, a path that cannot be read or written, a tensor of a kind atomo does not take. Exit
/// code 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The bytes of a payload were refused. Exit code 1.
class PayloadRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr int kExitRefused = 1;
inline constexpr int kExitInput = 2;

}  // namespace atomo::cli
