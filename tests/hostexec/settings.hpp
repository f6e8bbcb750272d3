// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The order in which threads and blocks run, from ATOMO_HOSTEXEC_ORDER=ascending|descending|random
/// and ATOMO_HOSTEXEC_SEED=n; and whether races are looked for between all lanes, from ATOMO_TESTS_ALL=1.

#include <cstdint>

namespace hostexec {

enum class Order : std::uint8_t { ascending, descending, random };

struct Settings {
  Order order = Order::ascending;
  bool every_lane = false;
  std::uint64_t state = 1;  ///< of `draw`, never 0

  /// Aborts with a message that names the value where one is none of those accepted.
  static Settings from_environment();
  /// Each launch of a program has draws of its own.
  void vary(std::uint64_t launch) {
    state += launch * 0x9E3779B97F4A7C15u;
    if (state == 0) state = 1;
  }
  std::uint32_t draw() {  // xorshift
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<std::uint32_t>(state >> 16);
  }
};

/// As in the program's symbol table; good until the next call.
const char* kernel_name(const void* kernel);

}  // namespace hostexec
