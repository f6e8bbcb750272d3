// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What a fuzz target is. Each program links one target with one of two fronts: libFuzzer
/// (libfuzzer.cpp), or a driver that needs no more than a compiler (driver.cpp).

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "atomo/types.hpp"
#include "wire/format_cases.hpp"

namespace atomo::fuzz {

using Buffer = std::vector<std::byte>;
using Draw = test::SplitMix;
/// Changes some bytes of an input, whatever they mean. The input may grow to so many bytes.
using AnyMutation = std::function<void(Buffer& input, std::size_t most)>;

struct Target {
  std::size_t most;  ///< bytes of an input
  /// Takes any bytes. Aborts where a contract is broken. Returns a number of what was seen, such as
  /// the statuses of calls: the driver keeps inputs that give new ones.
  std::uint64_t (*run)(ConstBytes input);
  /// Inputs to begin with, made anew at every start.
  std::vector<Buffer> (*seeds)();
  /// One mutation. `any` does most of it; the target mends what nothing could get past.
  void (*mutate)(Buffer& input, const AnyMutation& any, Draw& draw);
  /// Pieces of text that mutations insert; may be null.
  const std::vector<std::string>& (*tokens)();
};

/// The target of this program.
extern const Target kTarget;

/// Ends the process where a contract is broken; the front keeps the input.
inline void require(bool holds, const char* contract) {
  if (holds) return;
  std::fprintf(stderr, "broken contract: %s\n", contract);
  std::abort();
}

/// Sees `value` as one more part of what was seen.
constexpr std::uint64_t seen(std::uint64_t before, std::uint64_t value) noexcept {
  return (before ^ value) * 0x100000001B3;
}

/// Only `any`.
inline void mutate_plainly(Buffer& input, const AnyMutation& any, Draw& draw) {
  static_cast<void>(draw);
  any(input, kTarget.most);
}

inline Buffer buffer_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}
inline std::string text_of(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace atomo::fuzz
