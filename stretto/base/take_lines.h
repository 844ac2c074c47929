// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/base/round_up.h"

namespace stretto {

// Whether this is an AMD processor since Zen 4, as AVX-512 tells. There, the core that has written
// a cache line stays its owner while others read it. When that core writes the line again, each
// store waits until the readers have given it up. A buffer that is filled and read in turns is
// written at 2 to 8 GB/s, and at 17 to 35 GB/s if the reader has taken the lines (Zen 4, on cores
// without and with a common cache). On some machines the processor's copy instruction takes over
// whole lines, and staging is not that slow; memory_probe.h therefore measures whether to take the
// lines of staged data.
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

// Writes to every 64th byte of data that another core has written and this thread has read, without
// changing it, so that this core becomes the only owner of these lines. No thread may write there
// meanwhile, but others may read. So this uses an instruction that neither compilers nor sanitizers
// know as a write. Does nothing except on x86.
inline void take_lines([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef __x86_64__
  const auto* const begin = static_cast<const std::byte*>(data);
  for (std::size_t at = 0; at < bytes; at += kCacheLineBytes) {
    asm volatile("orb $0, %0" : : "m"(begin[at]) : "cc");
  }
#endif
}
// The least size for which taking lines pays. For 8 KiB it saved half of the time, for 4 KiB
// nothing.
inline constexpr std::size_t kTakenBytesMin = 8 * 1024;

}  // namespace stretto
