// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace stretto::bench {

// Returns zeroed private memory, in huge pages as far as the kernel has them. It is always a new
// mapping, because memory that malloc hands out again would keep its small pages.
inline std::shared_ptr<std::byte> allocate_huge(std::size_t bytes) {
  constexpr std::size_t kPageBytes = 2 * 1024 * 1024;
  const std::size_t used_bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::size_t mapped_bytes = used_bytes + kPageBytes;  // Room to begin at a huge page.
  void* const mapping =
      ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  const std::shared_ptr<void> owner(mapping,
                                    [mapped_bytes](void* p) { ::munmap(p, mapped_bytes); });
  const std::size_t past_page = reinterpret_cast<std::uintptr_t>(mapping) % kPageBytes;
  auto* const memory =
      static_cast<std::byte*>(mapping) + (past_page == 0 ? 0 : kPageBytes - past_page);
  (void)::madvise(memory, used_bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, used_bytes);
  return {owner, memory};
}

}  // namespace stretto::bench
