// SPDX-License-Identifier: Apache-2.0
/// \file
/// The affinity is asked of the kernel. The limit of a control group is read from the files of
/// cgroup v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`), of the group itself and of all around it: the
/// smallest counts. In a container the path of a group may not be visible, its limit then lies at
/// the root.

#include "common/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>

namespace atomo::programs {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostCores = 8192;

/// "200000 100000" is a limit of 2 cores, "max 100000" is none.
std::optional<double> quota_of_v2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double microseconds = 0, period = 0;
  if (!(file >> microseconds >> period) || !(period > 0)) return std::nullopt;
  return microseconds / period;
}

std::optional<double> quota_of_v1(const fs::path& group) {
  std::ifstream quota(group / "cpu.cfs_quota_us"), of_period(group / "cpu.cfs_period_us");
  double microseconds = 0, period = 0;
  if (!(quota >> microseconds) || !(of_period >> period) || !(microseconds > 0) || !(period > 0))
    return std::nullopt;
  return microseconds / period;
}

/// The smallest limit of `path` below `root` and of all groups around it.
template <typename QuotaOf>
std::optional<double> least_quota(const fs::path& root, const fs::path& path, QuotaOf quota_of) {
  std::optional<double> least;
  for (fs::path group = path.relative_path();; group = group.parent_path()) {
    const auto quota = quota_of(root / group);
    if (quota && (!least || *quota < *least)) least = quota;
    if (group.empty()) return least;
  }
}

}  // namespace

std::vector<std::size_t> allowed_cores() {
  const auto free_set = [](cpu_set_t* set) { CPU_FREE(set); };
  const std::unique_ptr<cpu_set_t, decltype(free_set)> set(CPU_ALLOC(kMostCores), free_set);
  const std::size_t bytes = CPU_ALLOC_SIZE(kMostCores);
  std::vector<std::size_t> cores;
  if (set != nullptr && sched_getaffinity(0, bytes, set.get()) == 0) {
    for (std::size_t core = 0; core < kMostCores; ++core) {
      if (CPU_ISSET_S(core, bytes, set.get())) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

std::optional<double> core_quota(const CoreQuotaFiles& files) {
  std::ifstream membership(files.membership);
  std::optional<double> least;
  for (std::string line; std::getline(membership, line);) {  // number:controllers:path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    std::optional<double> quota;
    if (controllers.empty()) {
      const bool beside_v1 = fs::exists(files.groups / "unified");
      quota = least_quota(beside_v1 ? files.groups / "unified" : files.groups, path, quota_of_v2);
    }
    if (("," + controllers + ",").find(",cpu,") != std::string::npos)
      quota = least_quota(files.groups / controllers, path, quota_of_v1);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

unsigned usable_cores() {
  const auto cores = static_cast<double>(allowed_cores().size());
  return static_cast<unsigned>(std::max(1.0, std::min(cores, core_quota().value_or(cores))));
}

}  // namespace atomo::programs
