// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/memory_limit.h"

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace stretto {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

const std::string kSecondVersion =
    "22 1 0:20 / /proc rw - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n";
const std::string kFirstVersion =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

// A folder with the files of a machine of 1000 MiB, of which 800 MiB are available.
class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    write("/proc/meminfo",
          "MemTotal:        1024000 kB\nMemFree:          102400 kB\n"
          "MemAvailable:     819200 kB\nShmem:             10240 kB\n"
          "SwapTotal:             0 kB\nSwapFree:              0 kB\n");
  }

  void write(const std::string& path, const std::string& text) { write_file(root_ / path, text); }
  void write(const std::string& path, std::size_t mebibytes) {
    write(path, std::to_string(mebibytes * kMiB) + "\n");
  }
  // Writes the files of a cgroup of version 2.
  void limit(const std::string& folder, const std::string& max, std::size_t current_mebibytes,
             const std::string& stat = {}) {
    write("/sys/fs/cgroup" + folder + "/memory.max", max + "\n");
    write("/sys/fs/cgroup" + folder + "/memory.current", current_mebibytes);
    write("/sys/fs/cgroup" + folder + "/memory.stat", stat);
  }
  void expect(std::size_t left_mebibytes, const std::string& source, std::size_t promised = 0) {
    const auto left = find_memory_left(promised * kMiB, root_.path());
    ASSERT_TRUE(left.has_value());
    EXPECT_EQ(left->left_bytes / kMiB, left_mebibytes);
    EXPECT_EQ(left->source, source);
  }

  const TemporaryFolder root_;
};

std::string mebibytes(std::size_t count) { return std::to_string(count * kMiB); }

TEST_F(MemoryLimitTest, WithoutGroupsTheMachineDecides) {
  expect(800, "/proc/meminfo");
  EXPECT_EQ(find_memory_left(0, root_.path())->limit_bytes, 1000 * kMiB);
  EXPECT_FALSE(find_memory_left(0, root_ / "nowhere").has_value());
}

TEST_F(MemoryLimitTest, TheTightestOfAllParentsDecides) {
  write("/proc/self/mountinfo", kSecondVersion);
  write("/proc/self/cgroup", "0::/pod/rank\n");
  limit("/pod/rank", mebibytes(600), 100);
  limit("/pod", mebibytes(700), 400);
  limit("", "max", 500);
  expect(300, "/sys/fs/cgroup/pod/memory.max");
  limit("/pod/rank", mebibytes(600), 590);
  expect(10, "/sys/fs/cgroup/pod/rank/memory.max");
  limit("/pod/rank", mebibytes(600), 601);
  expect(0, "/sys/fs/cgroup/pod/rank/memory.max");
  limit("/pod/rank", "max", 590);
  limit("/pod", "max", 590);
  expect(800, "/proc/meminfo");
}

TEST_F(MemoryLimitTest, ThePageCacheIsNotInTheWay) {
  write("/proc/self/mountinfo", kSecondVersion);
  write("/proc/self/cgroup", "0::/\n");
  limit("", mebibytes(500), 450,
        "anon " + mebibytes(250) + "\nfile " + mebibytes(200) + "\nshmem " + mebibytes(80) +
            "\ninactive_file " + mebibytes(70) + "\nactive_file " + mebibytes(40) +
            "\nslab_reclaimable " + mebibytes(10) + "\n");
  expect(170, "/sys/fs/cgroup/memory.max");
}

TEST_F(MemoryLimitTest, SharedMemoryThatNobodyHasTouchedIsNotLeft) {
  write("/proc/self/mountinfo", kSecondVersion);
  write("/proc/self/cgroup", "0::/\n");
  limit("", mebibytes(500), 150, "shmem " + mebibytes(100) + "\n");
  expect(350, "/sys/fs/cgroup/memory.max", 100);
  expect(250, "/sys/fs/cgroup/memory.max", 200);
  expect(0, "/sys/fs/cgroup/memory.max", 500);
  limit("", "max", 150);
  expect(710, "/proc/meminfo", 100);
}

TEST_F(MemoryLimitTest, WhatCanBeSwappedOutIsLeft) {
  write("/proc/meminfo",
        "MemTotal: 1024000 kB\nMemAvailable: 819200 kB\nSwapTotal: 307200 kB\n"
        "SwapFree: 204800 kB\n");
  expect(1000, "/proc/meminfo");
  write("/proc/self/mountinfo", kSecondVersion);
  write("/proc/self/cgroup", "0::/\n");
  limit("", mebibytes(500), 400);
  expect(300, "/sys/fs/cgroup/memory.max");
  write("/sys/fs/cgroup/memory.swap.max", 50);
  write("/sys/fs/cgroup/memory.swap.current", 20);
  expect(130, "/sys/fs/cgroup/memory.max");
  write("/sys/fs/cgroup/memory.swap.max", "0\n");
  expect(100, "/sys/fs/cgroup/memory.max");
}

TEST_F(MemoryLimitTest, ReadsTheFirstVersion) {
  const std::string folder = "/sys/fs/cgroup/memory/docker/4711";
  write("/proc/self/mountinfo", kFirstVersion);
  write("/proc/self/cgroup",
        "9:name=systemd:/docker/x\n4:memory:/docker/4711\n2:cpu,cpuacct:/\n0::/\n");
  write(folder + "/memory.limit_in_bytes", 400);
  write(folder + "/memory.usage_in_bytes", 300);
  write(folder + "/memory.stat", "inactive_file 1\ntotal_inactive_file " + mebibytes(30) +
                                     "\ntotal_active_file " + mebibytes(20) + "\ntotal_shmem " +
                                     mebibytes(60) + "\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", 900);
  expect(150, folder + "/memory.limit_in_bytes");
  expect(110, folder + "/memory.limit_in_bytes", 100);
  write(folder + "/memory.limit_in_bytes", "9223372036854771712\n");
  expect(800, "/proc/meminfo");
}

TEST_F(MemoryLimitTest, TheFirstVersionMayBoundMemoryAndSwapTogether) {
  write("/proc/meminfo",
        "MemTotal: 1024000 kB\nMemAvailable: 819200 kB\nSwapTotal: 307200 kB\n"
        "SwapFree: 204800 kB\n");
  const std::string folder = "/sys/fs/cgroup/memory";
  write("/proc/self/mountinfo", kFirstVersion);
  write("/proc/self/cgroup", "4:memory:/\n");
  write(folder + "/memory.limit_in_bytes", 400);
  write(folder + "/memory.usage_in_bytes", 300);
  expect(300, folder + "/memory.limit_in_bytes");
  write(folder + "/memory.memsw.limit_in_bytes", 450);
  write(folder + "/memory.memsw.usage_in_bytes", 310);
  expect(140, folder + "/memory.limit_in_bytes");
}

// A container mounts its own folder, whatever path this folder has outside of the container.
TEST_F(MemoryLimitTest, FindsTheFolderOfAContainer) {
  const std::string mount = "31 23 0:28 /kubepods/pod7 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
  write("/proc/self/mountinfo", mount);
  limit("", mebibytes(300), 100);
  limit("/inner", mebibytes(200), 90);
  limit("/kubepods/pod7", mebibytes(2), 1);
  write("/proc/self/cgroup", "0::/kubepods/pod7\n");
  expect(200, "/sys/fs/cgroup/memory.max");
  write("/proc/self/cgroup", "0::/kubepods/pod7/inner\n");
  expect(110, "/sys/fs/cgroup/inner/memory.max");
  for (const std::string elsewhere : {"/kubepods/pod77", "/..", "/../pod7", "/other"}) {
    write("/proc/self/cgroup", "0::" + elsewhere + "\n");
    expect(200, "/sys/fs/cgroup/memory.max");
  }
}

TEST_F(MemoryLimitTest, NonsenseIsNoLimit) {
  write("/proc/self/mountinfo", "\n31\n1 2 3 / /sys/fs/cgroup rw\n" + kSecondVersion);
  write("/proc/self/cgroup", "\n:\n0:\n0::\n0::/a\n");
  limit("/a", "12 monkeys", 100);
  limit("", "-1", 100);
  expect(800, "/proc/meminfo");
}

TEST_F(MemoryLimitTest, WhatDoesNotFitIsRefusedInASentence) {
  const MemoryLeft left = {
      .left_bytes = 100 * kMiB, .limit_bytes = 512 * kMiB, .source = "/sys/fs/cgroup/memory.max"};
  EXPECT_TRUE(check_memory_left(3, 100 * kMiB, left).ok());
  EXPECT_TRUE(check_memory_left(3, 100 * kMiB, std::nullopt).ok());
  const Status status = check_memory_left(3, 600 * kMiB, left);
  EXPECT_EQ(status.code(), StatusCode::out_of_memory);
  EXPECT_EQ(status.rank(), Rank(3));
  EXPECT_EQ(status.message(),
            "rank 3: 629145600 bytes (600.0 MiB) of memory do not fit: 104857600 bytes (100.0 MiB) "
            "are left of the 512.0 MiB that /sys/fs/cgroup/memory.max grants, and who takes more "
            "is killed. Allocate less, run fewer ranks on this host, or raise that limit "
            "(STRETTO_MEMORY_CHECK=off: do not look)");
}

TEST(MemoryLimitHereTest, IsWithinReason) {
  const auto left = find_memory_left();
  ASSERT_TRUE(left.has_value());
  EXPECT_LE(left->left_bytes, left->limit_bytes);
  EXPECT_GT(left->left_bytes, kMiB);
  EXPECT_LT(left->limit_bytes, std::size_t{1} << 50);
}

}  // namespace
}  // namespace stretto
