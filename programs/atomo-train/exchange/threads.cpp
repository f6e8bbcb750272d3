// SPDX-License-Identifier: Apache-2.0
/// \file
/// Processes tell each other which cores they may run on. A process that is bound to cores of its
/// own has all of these; of cores that several may run on it has a part. A limit of the control
/// group is taken as one for all processes of the machine.

#include "exchange/threads.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "common/cores.hpp"
#include "exchange/transport.hpp"

namespace train {
namespace {

constexpr std::size_t kCores = 8192;
/// One byte for eight cores.
using CoreMask = std::array<std::uint8_t, kCores / 8>;

[[nodiscard]] bool holds(const CoreMask& mask, std::size_t core) {
  return (mask[core / 8] >> (core % 8) & 1) != 0;
}

}  // namespace

unsigned threads_of_this_process(Transport& transport) {
  const auto cores = atomo::programs::allowed_cores();
  CoreMask mine{};
  for (const std::size_t core : cores)
    mine[core / 8] = static_cast<std::uint8_t>(mine[core / 8] | 1U << (core % 8));
  std::vector<CoreMask> masks(static_cast<std::size_t>(transport.size()));
  auto transfer = transport.all_gather(bytes_of(mine), std::as_writable_bytes(std::span(masks)));
  transport.wait(transfer);

  double here = 0;  // processes of this machine
  std::array<double, kCores> sharers{};
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (!transport.shares_machine(rank)) continue;
    ++here;
    for (const std::size_t core : cores)
      sharers[core] += holds(masks[static_cast<std::size_t>(rank)], core) ? 1 : 0;
  }
  double share = 0;
  for (const std::size_t core : cores) share += 1 / sharers[core];
  if (const auto quota = atomo::programs::core_quota()) share = std::min(share, *quota / here);
  constexpr double kRounding = 1e-6;  // of the sum of fractions
  return static_cast<unsigned>(std::max(1.0, share + kRounding));
}

}  // namespace train
