// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The cores that a process may use: those of its affinity, and no more than its control group has.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

namespace atomo::programs {

/// The numbers of the cores that this process may run on, ascending; at least one.
[[nodiscard]] std::vector<std::size_t> allowed_cores();

/// The files that tell what a control group may use.
struct CoreQuotaFiles {
  std::filesystem::path membership = "/proc/self/cgroup";
  std::filesystem::path groups = "/sys/fs/cgroup";
};

/// The cores' worth of time that this process's control group, or one around it, gives to all of
/// its processes together; none when it has no limit.
[[nodiscard]] std::optional<double> core_quota(const CoreQuotaFiles& files = {});

/// The number of threads that can work at the same time in this process; at least 1.
[[nodiscard]] unsigned usable_cores();

}  // namespace atomo::programs
