// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/cores.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace stretto {
namespace {

// A machine's files about cgroups, in a folder.
class CoresTest : public testing::Test {
 protected:
  ~CoresTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << text << '\n';
  }
  void second_version(const std::string& own_folder) {
    write("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
    write("/proc/self/cgroup", "0::" + own_folder);
  }

  std::string root_ = testing::TempDir() + "cores_" + std::to_string(::getpid());
};

TEST_F(CoresTest, WithoutGroupsThereIsNoQuota) {
  EXPECT_EQ(cgroup_quota_cores(root_), std::nullopt);
  second_version("/job");
  EXPECT_EQ(cgroup_quota_cores(root_), std::nullopt);
  write("/sys/fs/cgroup/job/cpu.max", "max 100000");
  EXPECT_EQ(cgroup_quota_cores(root_), std::nullopt);
}

TEST_F(CoresTest, TheTightestOfAllParentsHolds) {
  second_version("/user.slice/job");
  write("/sys/fs/cgroup/user.slice/job/cpu.max", "400000 100000");
  EXPECT_EQ(cgroup_quota_cores(root_), 4.0);
  write("/sys/fs/cgroup/user.slice/cpu.max", "150000 100000");
  EXPECT_EQ(cgroup_quota_cores(root_), 1.5);
}

TEST_F(CoresTest, TheFirstVersionHasTwoFiles) {
  write("/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct");
  write("/proc/self/cgroup", "4:cpu,cpuacct:/job");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(cgroup_quota_cores(root_), std::nullopt);
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000");
  EXPECT_EQ(cgroup_quota_cores(root_), 0.5);
}

TEST_F(CoresTest, NonsenseIsNoQuota) {
  second_version("/job");
  for (const char* text : {"", "100000", "100000 0", "100000 -5", "many 100000"}) {
    write("/sys/fs/cgroup/job/cpu.max", text);
    EXPECT_EQ(cgroup_quota_cores(root_), std::nullopt) << text;
  }
}

TEST(UsableCores, IsAtLeastOneAndAtMostThoseOfTheMask) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(affinity().count()));
  EXPECT_EQ(usable_cores(ProcessorSet(1)), 1);
}

}  // namespace
}  // namespace stretto
