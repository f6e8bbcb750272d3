// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hostexec {

namespace {

[[noreturn]] void refuse(const char* name, const char* value, const char* accepted) {
  std::fprintf(stderr, "hostexec: %s is '%s'; %s\n", name, value, accepted);
  std::abort();
}

Order read_order() {
  const char* const value = std::getenv("ATOMO_HOSTEXEC_ORDER");
  if (value == nullptr || std::strcmp(value, "ascending") == 0) return Order::ascending;
  if (std::strcmp(value, "descending") == 0) return Order::descending;
  if (std::strcmp(value, "random") == 0) return Order::random;
  refuse("ATOMO_HOSTEXEC_ORDER", value, "ascending, descending and random are accepted");
}

std::uint64_t read_seed() {
  const char* const value = std::getenv("ATOMO_HOSTEXEC_SEED");
  if (value == nullptr) return 0;
  const std::size_t digits = std::strspn(value, "0123456789");
  if (digits == 0 || digits > 18 || value[digits] != '\0')
    refuse("ATOMO_HOSTEXEC_SEED", value, "a whole number of up to 18 digits is accepted");
  return std::strtoull(value, nullptr, 10);
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  settings.order = read_order();
  const char* const all = std::getenv("ATOMO_TESTS_ALL");
  settings.every_lane = all != nullptr && std::strcmp(all, "1") == 0;
  settings.state = 0x9E3779B97F4A7C15u + read_seed() * 0xD1342543DE82EF95u;
  if (settings.state == 0) settings.state = 1;
  return settings;
}

}  // namespace hostexec
