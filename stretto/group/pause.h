// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto::group {

// Tells the processor that this thread spins, and lets some tens of cycles pass.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` does nothing on cores that run one thread each.
#endif
}

}  // namespace stretto::group
