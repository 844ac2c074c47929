// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/base/round_up.h"

namespace stretto {

// Whether this processor is one of AMD's since Zen 4, as AVX-512 tells. There, the core that has
// written a line stays its owner while others read it. When it writes there again, each store waits
// until they have let go: to a buffer that is filled and read in turns it writes 2 to 8 GB/s, and
// 17 to 35 where the reader has taken the lines (Zen 4, on cores without and with a cache in
// common). On some machines the processor's instruction for copies takes over whole lines, and
// staging is not as slow: so memory_probe.h measures whether to take the lines of what is staged.
inline bool writers_stay_owners() {
#ifdef __x86_64__
  static const bool is_so = __builtin_cpu_is("amd") != 0 && __builtin_cpu_supports("avx512f") != 0;
  return is_so;
#else
  return false;
#endif
}

// Whether take_lines() does anything.
#ifdef __x86_64__
inline constexpr bool kCanTakeLines = true;
#else
inline constexpr bool kCanTakeLines = false;
#endif

// Writes to every 64th byte of what another core has written and this thread has read, without
// changing it, so that this core has those lines alone. Nobody writes there meanwhile. Others may
// read: so this is an instruction that neither compilers nor sanitizers know as a write. Does
// nothing but on x86.
inline void take_lines([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef __x86_64__
  const auto* const begin = static_cast<const std::byte*>(data);
  for (std::size_t at = 0; at < bytes; at += kCacheLineBytes) {
    asm volatile("orb $0, %0" : : "m"(begin[at]) : "cc");
  }
#endif
}
// Of fewer bytes, that takes about as long as it saves: of 8 KiB it saved a half, of 4 KiB nothing.
inline constexpr std::size_t kTakenBytesMin = 8 * 1024;

}  // namespace stretto
