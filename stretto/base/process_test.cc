// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "stretto/base/cores.h"
#include "stretto/base/descriptor_limit.h"
#include "stretto/base/environment.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/file_size_signal.h"
#include "stretto/base/huge_pages.h"
#include "stretto/base/own_folder.h"
#include "stretto/base/owner_process.h"
#include "stretto/base/sealed_memory.h"
#include "stretto/base/status.h"
#include "stretto/base/thread.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"
#include "tests/support/forbid.h"
#include "tests/support/in_child.h"
#include "tests/support/shortage.h"

namespace stretto {
namespace {

// A folder with the files in which a machine describes its cgroups.
class CoresTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    write_file(root_ / path, text + '\n');
  }
  void second_version(const std::string& own_folder) {
    write("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
    write("/proc/self/cgroup", "0::" + own_folder);
  }

  const TemporaryFolder root_;
};

TEST_F(CoresTest, WithoutGroupsThereIsNoQuota) {
  EXPECT_EQ(cgroup_quota_cores(root_.path()), std::nullopt);
  second_version("/job");
  EXPECT_EQ(cgroup_quota_cores(root_.path()), std::nullopt);
  write("/sys/fs/cgroup/job/cpu.max", "max 100000");
  EXPECT_EQ(cgroup_quota_cores(root_.path()), std::nullopt);
}

TEST_F(CoresTest, TheTightestOfAllParentsHolds) {
  second_version("/user.slice/job");
  write("/sys/fs/cgroup/user.slice/job/cpu.max", "400000 100000");
  EXPECT_EQ(cgroup_quota_cores(root_.path()), 4.0);
  write("/sys/fs/cgroup/user.slice/cpu.max", "150000 100000");
  EXPECT_EQ(cgroup_quota_cores(root_.path()), 1.5);
}

TEST_F(CoresTest, TheFirstVersionHasTwoFiles) {
  write("/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct");
  write("/proc/self/cgroup", "4:cpu,cpuacct:/job");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(cgroup_quota_cores(root_.path()), std::nullopt);
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000");
  EXPECT_EQ(cgroup_quota_cores(root_.path()), 0.5);
}

TEST_F(CoresTest, NonsenseIsNoQuota) {
  second_version("/job");
  for (const char* text : {"", "100000", "100000 0", "100000 -5", "many 100000"}) {
    write("/sys/fs/cgroup/job/cpu.max", text);
    EXPECT_EQ(cgroup_quota_cores(root_.path()), std::nullopt) << text;
  }
}

TEST(UsableCores, IsAtLeastOneAndAtMostThoseOfTheMask) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(affinity().count()));
  EXPECT_EQ(usable_cores(ProcessorSet(1)), 1);
}

constexpr const char* kVariable = "STRETTO_ENVIRONMENT_TEST";

TEST(EnvironmentTest, ReadsTheProcessEnvironment) {
  ::setenv(kVariable, "some value", 1);
  EXPECT_EQ(process_environment().get(kVariable), "some value");
  ::unsetenv(kVariable);
  EXPECT_EQ(process_environment().get(kVariable), std::nullopt);
}

TEST(EnvironmentTest, EmptyCountsAsNotSet) {
  ::setenv(kVariable, "", 1);
  EXPECT_EQ(process_environment().get(kVariable), std::nullopt);
  ::unsetenv(kVariable);
}

bool is_open(int number) { return ::fcntl(number, F_GETFD) != -1; }

int open_something() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(FileDescriptorTest, ClosesWhatItOwns) {
  int number = -1;
  {
    const FileDescriptor file(open_something());
    ASSERT_TRUE(file.valid());
    number = file.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(FileDescriptorTest, MovingHandsOverAndClosesTheFormer) {
  FileDescriptor first(open_something());
  FileDescriptor second(open_something());
  const int kept = first.get();
  const int closed = second.get();
  second = std::move(first);
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.get(), kept);
  EXPECT_TRUE(is_open(kept));
  EXPECT_FALSE(is_open(closed));
}

TEST(FileDescriptorTest, ReleasedIsNotClosed) {
  FileDescriptor file(open_something());
  const int number = file.release();
  EXPECT_FALSE(file.valid());
  file.reset();
  EXPECT_TRUE(is_open(number));
  ::close(number);
}

// Makes a file exceed the size limit. Returns `errno`, or 0 if there was no failure.
int exceed_limit() {
  const FileDescriptor file(::memfd_create("too-large", MFD_CLOEXEC));
  return ::ftruncate(file.get(), 1 << 20) == 0 ? 0 : errno;
}

class FileSizeSignal : public ::testing::Test {
 protected:
  FileSizeSignal() {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{.rlim_cur = 4096, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FileSizeSignal() override { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(FileSizeSignal, BecomesAnErrorThatSaysWhichLimit) {
  {
    const FileSizeSignalBlocked blocked;
    EXPECT_EQ(exceed_limit(), EFBIG);
    EXPECT_EQ(exceed_limit(), EFBIG);
  }
  EXPECT_EQ(system_status("reserving memory", EFBIG).message(),
            "reserving memory: File too large; raise `ulimit -f`");
}

TEST_F(FileSizeSignal, EndsTheProcessAgainAfterwards) {
  { const FileSizeSignalBlocked blocked; }
  EXPECT_EXIT(exceed_limit(), ::testing::KilledBySignal(SIGXFSZ), "");
}

TEST(AllowDescriptors, RaisesTheSoftLimitAsFarAsTheHardOne) {
  const auto soft_limit = [] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
  };
  // This runs in a child, because a process cannot undo the lowering of its hard limit.
  EXPECT_EQ(stretto::testing::exit_code_in_child([&] {
              const rlimit few{.rlim_cur = 100, .rlim_max = 1100};
              if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
              allow_descriptors(1024);
              if (soft_limit() != 100) return 2;
              allow_descriptors(1050);
              if (soft_limit() != 1050) return 3;
              allow_descriptors(1025);
              if (soft_limit() != 1050) return 4;
              allow_descriptors(5000);
              return soft_limit() == 1100 ? 0 : 5;
            }),
            0);
}

TEST(OwnerProcessTest, AForkedChildIsElsewhere) {
  const OwnerProcess home;
  EXPECT_TRUE(home.is_here());
  const int code = stretto::testing::exit_code_in_child([&] {
    return home.is_here() ? 1 : OwnerProcess().is_here() ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(home.is_here());
}

TEST(Thread, AnExceptionEndsItAndNotTheProcess) {
  ::testing::internal::CaptureStderr();
  start_thread("test", [] { throw std::runtime_error("no luck"); }).or_throw().join();
  expect_contains(::testing::internal::GetCapturedStderr(), "the thread test has ended: no luck");
}

TEST(Thread, WhateverIsThrownEndsItAndNotTheProcess) {
  ::testing::internal::CaptureStderr();
  start_thread("test", [] { throw 1; }).or_throw().join();
  expect_contains(::testing::internal::GetCapturedStderr(),
                  "the thread test has ended: something that is no std::exception was thrown");
}

// `pthread_exit()` unwinds the stack. The process would end if anything stopped the unwinding.
TEST(Thread, MayExit) {
  bool goes_on = false;
  start_thread("test",
               [&] {
                 ::pthread_exit(nullptr);
                 goes_on = true;
               })
      .or_throw()
      .join();
  EXPECT_FALSE(goes_on);
}

TEST(Thread, SaysWhichLimitsToLookAtWhereThereIsNone) {
  const int code = stretto::testing::exit_code_in_child([&] {
    stretto::testing::forbid({SYS_clone, SYS_clone3}, EAGAIN);
    const Result<std::thread> thread = start_thread("test", [] {});
    const std::string message(thread.status().message());
    const bool said = thread.status().code() == StatusCode::system &&
                      message.find(
                          "the thread test could not be started: Resource temporarily "
                          "unavailable. Look at the limits on threads") == 0;
    return said ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

TEST(OwnFolder, StaysKnownInOtherFolders) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").filename();
  const int code = stretto::testing::exit_code_in_child(
      [&] { return ::chdir("/") == 0 && std::filesystem::exists(own_folder() + program) ? 0 : 1; });
  EXPECT_EQ(code, 0);
}

TEST(OwnFolder, IsThatOfAProgramHoweverItIsCalled) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string call = "./" + program.filename().string();
  const int code = stretto::testing::exit_code_in_child([&] {
    if (::chdir(program.parent_path().c_str()) != 0) return 1;
    ::execl(call.c_str(), call.c_str(), "--gtest_filter=OwnFolder.StaysKnownInOtherFolders",
            "--gtest_brief=1", nullptr);
    return 2;
  });
  EXPECT_EQ(code, 0);
}

bool blocks(int signal) {
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return ::sigismember(&blocked, signal) == 1;
}

// A program may wait for a signal on a thread that blocks it. Another thread must not take it.
TEST(Thread, TakesNoSignalsOfTheProcess) {
  bool blocks_term = false;
  bool blocks_fault = true;
  start_thread("test",
               [&] {
                 blocks_term = blocks(SIGTERM);
                 blocks_fault = blocks(SIGSEGV);
               })
      .or_throw()
      .join();
  EXPECT_TRUE(blocks_term);
  EXPECT_FALSE(blocks_fault);
  EXPECT_FALSE(blocks(SIGTERM)) << "the thread that has started it goes on as before";
}

constexpr std::size_t kHugeBytes = 2 * 1024 * 1024;

// Memory of several huge pages that begins at a huge page's boundary.
class Mapped {
 public:
  explicit Mapped(int advice) {
    EXPECT_NE(mapping_, MAP_FAILED);
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = static_cast<char*>(mapping_) + (kHugeBytes - address % kHugeBytes) % kHugeBytes;
    EXPECT_EQ(::madvise(data_, kBytes, advice), 0);
  }
  ~Mapped() { ::munmap(mapping_, kBytes + kHugeBytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  static constexpr std::size_t kBytes = 8 * kHugeBytes;
  char* data() const { return data_; }
  void touch() { std::memset(data_, 1, kBytes); }

 private:
  void* mapping_ = ::mmap(nullptr, kBytes + kHugeBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* data_ = nullptr;
};

// Returns how many bytes of the mapping lie in huge pages, according to the kernel.
std::size_t huge_bytes_by_smaps(const void* data) {
  std::ifstream smaps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(data);
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    }
    unsigned long kib = 0;
    if (inside && std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

// Whether the kernel has PAGEMAP_SCAN, which came with Linux 6.7.
bool kernel_tells() {
  utsname system{};
  int major = 0, minor = 0;
  return ::uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(6, 7);
}

TEST(HugePagesTest, AreFoundWhereTheyAre) {
  Mapped memory(MADV_HUGEPAGE);
  EXPECT_FALSE(lies_in_huge_pages(memory.data(), Mapped::kBytes)) << "nobody has touched them";
  memory.touch();
  if (huge_bytes_by_smaps(memory.data()) < Mapped::kBytes) {
    GTEST_SKIP() << "the kernel gives no huge pages here";
  }
  if (!kernel_tells()) GTEST_SKIP() << "the kernel does not say where huge pages are";
  EXPECT_TRUE(lies_in_huge_pages(memory.data(), Mapped::kBytes));
  EXPECT_TRUE(lies_in_huge_pages(memory.data() + 100, Mapped::kBytes - 1000));
  EXPECT_TRUE(lies_in_huge_pages(memory.data() + kHugeBytes - 1, 2));
}

TEST(HugePagesTest, SmallOnesAreNotTakenForHugeOnes) {
  Mapped memory(MADV_NOHUGEPAGE);
  memory.touch();
  EXPECT_FALSE(lies_in_huge_pages(memory.data(), Mapped::kBytes));
  EXPECT_FALSE(lies_in_huge_pages(memory.data(), kHugeBytes));
}

// A buffer may lack an eighth of its huge pages, but not a quarter of them.
TEST(HugePagesTest, AFewSmallOnesMayBeAmongThem) {
  Mapped memory(MADV_HUGEPAGE);
  memory.touch();
  if (huge_bytes_by_smaps(memory.data()) < Mapped::kBytes || !kernel_tells()) {
    GTEST_SKIP() << "there are none, or the kernel does not say";
  }
  ASSERT_EQ(::madvise(memory.data(), kHugeBytes, MADV_DONTNEED), 0);
  EXPECT_TRUE(lies_in_huge_pages(memory.data(), Mapped::kBytes));
  ASSERT_EQ(::madvise(memory.data(), 2 * kHugeBytes, MADV_DONTNEED), 0);
  EXPECT_FALSE(lies_in_huge_pages(memory.data(), Mapped::kBytes));
}

TEST(SealedMemoryTest, MayHaveMoreSealsAndNotFewer) {
  const auto is_sealed_by = [](int seals) {
    const FileDescriptor file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return is_sealed_memory(file.get());
  };
  EXPECT_TRUE(is_sealed_memory(make_sealed_memory("test", 1).or_throw().get()));
  // F_SEAL_WRITE stands for F_SEAL_EXEC, which older kernels do not know.
  EXPECT_TRUE(is_sealed_by(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE));
  EXPECT_FALSE(is_sealed_by(F_SEAL_SHRINK | F_SEAL_SEAL));
  EXPECT_FALSE(is_sealed_by(F_SEAL_GROW | F_SEAL_SEAL));
  EXPECT_FALSE(is_sealed_memory(FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get()));
  EXPECT_FALSE(is_sealed_memory(-1));
}

TEST(HugePagesTest, NonsenseIsNoHugePage) {
  EXPECT_FALSE(lies_in_huge_pages(nullptr, kHugeBytes));
  EXPECT_FALSE(lies_in_huge_pages(reinterpret_cast<void*>(~std::uintptr_t{0} - 10), kHugeBytes));
}

}  // namespace
}  // namespace stretto
