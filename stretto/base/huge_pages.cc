// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/huge_pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/round_up.h"

namespace stretto {
namespace {

// The structures of the kernel's interface, which the headers of many systems lack. See
// Documentation/admin-guide/mm/pagemap.rst in the source of Linux.
struct PageRegion {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t categories;
};
struct PagemapScan {
  std::uint64_t size_bytes = sizeof(PagemapScan);
  std::uint64_t flags = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t walk_end = 0;  // Filled in: where the scan has ended.
  std::uint64_t regions = 0;   // Address of an array that is filled in.
  std::uint64_t regions_max = 0;
  std::uint64_t pages_max = 0;
  std::uint64_t inverted_categories = 0;
  std::uint64_t categories = 0;
  std::uint64_t any_of_categories = 0;
  std::uint64_t returned_categories = 0;
};
static_assert(sizeof(PagemapScan) == 96, "as the kernel has it");
constexpr std::uint64_t kHuge = 1 << 6;
constexpr std::uint64_t kHugePageBytes = 2 * 1024 * 1024;

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t bytes() const { return end - begin; }
};

// How many bytes of a range of whole pages lie in huge pages. 0 if the kernel does not tell, or if
// they are too scattered to be worth knowing.
std::uint64_t huge_bytes(int pagemap, const Range& range) {
  std::array<PageRegion, 16> regions{};
  PagemapScan scan;
  scan.begin = range.begin;
  scan.end = range.end;
  scan.regions = reinterpret_cast<std::uintptr_t>(regions.data());
  scan.regions_max = regions.size();
  scan.categories = scan.returned_categories = kHuge;
  const int found = ::ioctl(pagemap, _IOWR('f', 16, PagemapScan), &scan);
  if (found < 0 || scan.walk_end < scan.end) return 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(found); ++i) {
    bytes += regions[i].end - regions[i].begin;
  }
  return bytes;
}

}  // namespace

bool lies_in_huge_pages(const void* data, std::size_t bytes) {
  // Opened on each call: a descriptor from before a fork would describe the parent.
  const FileDescriptor pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap.valid()) return false;
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const Range all{address / page_bytes * page_bytes, round_up(address + bytes, page_bytes)};
  const auto is_huge = [&](const Range& range) {
    return huge_bytes(pagemap.get(), range) >= range.bytes() - range.bytes() / 8;
  };
  // Most buffers lie completely in one kind of page. So the middle is checked first, which is fast.
  const std::uint64_t middle = all.begin + all.bytes() / 2 / page_bytes * page_bytes;
  return is_huge({middle, std::min(middle + kHugePageBytes, all.end)}) && is_huge(all);
}

}  // namespace stretto
