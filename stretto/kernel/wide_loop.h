// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// For the plain loops that benchmarks compare with, so that the compiler makes the best of them:
// STRETTO_WIDE before a function, which is then there for several processors, and
// STRETTO_LOOP_OF_VECTORS before a loop whose buffers do not overlap. No header of the library.
#if defined(__clang__)
#define STRETTO_LOOP_OF_VECTORS _Pragma("clang loop vectorize(assume_safety)")
#define STRETTO_WIDE
#else
#define STRETTO_LOOP_OF_VECTORS _Pragma("GCC ivdep")
#if defined(__x86_64__)
// For what the processor has.
#define STRETTO_WIDE \
  __attribute__((optimize("O3"), target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define STRETTO_WIDE __attribute__((optimize("O3")))
#endif
#endif
