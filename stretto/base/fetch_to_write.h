// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto {

// Has the cache line at `address` come to this core to be written, while the thread goes on. Of
// memory that other cores read or write, it saves the store the time that the line takes.
inline void fetch_to_write(const void* address) {
#if defined(__x86_64__)
  // The builtin fetches to read, unless the compiler is told that the instruction exists.
  // Processors that do not have it take it for nothing.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1, 3);
#endif
}

}  // namespace stretto
