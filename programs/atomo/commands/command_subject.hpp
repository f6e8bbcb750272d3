// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// An encoder and a decoder that are command lines: files in, files out.

#include <string>

#include "atomo/verify.hpp"

namespace atomo::cli {

/// A subject whose messages are made by `encode` and read by `decode`, each run by /bin/sh. In both,
/// {input} and {output} stand for paths: a tensor is a .npy file of f32, a message any file. In `encode`
/// {key} is a number of the key, {seed}, {step}, {worker} and {tensor} are its parts; with `outcomes`, which
/// are all that can happen, it is the step, 0 to `outcomes` - 1. A command that ends
/// with another status than 0 refuses what it was given. \throws InputError where a path is missing in a
/// command, or there is no folder for files.
[[nodiscard]] verify::Subject command_subject(const std::string& encode, const std::string& decode,
                                              std::uint32_t outcomes);

}  // namespace atomo::cli
