// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto {

// Asks for the cache line at `address` with the intent to write it, without blocking. For memory
// that other cores read or write, the later store does not have to wait for the line.
inline void fetch_to_write(const void* address) {
#if defined(__x86_64__)
  // The builtin fetches for reading, unless the compiler is told that the processor has prefetchw.
  // Processors without that instruction ignore it.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1, 3);
#endif
}

}  // namespace stretto
