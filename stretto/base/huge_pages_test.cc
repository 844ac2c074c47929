// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

namespace stretto {
namespace {

constexpr std::size_t kHugeBytes = 2 * 1024 * 1024;

// Some huge pages' worth of memory that begins at a huge page's boundary.
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

// What the kernel itself says about the mapping.
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

// PAGEMAP_SCAN came with Linux 6.7.
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

// Without an eighth of it, a buffer is as good as whole; without a quarter, it is not.
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

TEST(HugePagesTest, NonsenseIsNoHugePage) {
  EXPECT_FALSE(lies_in_huge_pages(nullptr, kHugeBytes));
  EXPECT_FALSE(lies_in_huge_pages(reinterpret_cast<void*>(~std::uintptr_t{0} - 10), kHugeBytes));
}

}  // namespace
}  // namespace stretto
