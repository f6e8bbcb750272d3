// SPDX-License-Identifier: Apache-2.0
/// The limit of a control group, as the files of both versions tell it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/cores.hpp"

namespace atomo::programs {
namespace {

namespace fs = std::filesystem;

class CoreQuota : public testing::Test {
 protected:
  CoreQuota() { fs::create_directories(folder_); }
  ~CoreQuota() override { fs::remove_all(folder_); }

  void write(const std::string& file, const std::string& text) {
    fs::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << text;
  }
  [[nodiscard]] std::optional<double> quota() const {
    return core_quota({folder_ / "membership", folder_ / "groups"});
  }

 private:
  fs::path folder_ = fs::temp_directory_path() / ("atomo-cores-" + std::to_string(getpid()));
};

TEST_F(CoreQuota, OfVersion2IsTheSmallestOfAllGroupsAround) {
  write("membership", "0::/job/step\n");
  write("groups/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("groups/job/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota(), 2.5);
  write("groups/job/step/cpu.max", "800000 100000\n");
  EXPECT_EQ(quota(), 2.5);
}

TEST_F(CoreQuota, OfAContainerLiesAtTheRoot) {
  write("membership", "0::/not/seen/here\n");
  write("groups/cpu.max", "300000 100000\n");
  EXPECT_EQ(quota(), 3);
}

TEST_F(CoreQuota, OfVersion2BesideVersion1) {
  write("membership", "1:memory:/job\n0::/job\n");
  write("groups/unified/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CoreQuota, OfVersion1) {
  write("membership", "5:memory:/job\n4:cpu,cpuacct:/job\n0::/job\n");
  write("groups/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  write("groups/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("groups/cpu,cpuacct/job/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CoreQuota, IsNoneWithoutFiles) { EXPECT_EQ(quota(), std::nullopt); }

TEST(Cores, OfThisProcess) {
  const auto cores = allowed_cores();
  ASSERT_FALSE(cores.empty());
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
  EXPECT_GE(usable_cores(), 1u);
  EXPECT_LE(usable_cores(), cores.size());
}

}  // namespace
}  // namespace atomo::programs
