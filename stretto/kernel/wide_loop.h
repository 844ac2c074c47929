// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// For plain loops that benchmarks compare with, so that the compiler optimizes them well.
// STRETTO_WIDE before a function compiles it for several processors. STRETTO_LOOP_OF_VECTORS before
// a loop says that its buffers do not overlap. Library code does not include this header.
#if defined(__clang__)
#define STRETTO_LOOP_OF_VECTORS _Pragma("clang loop vectorize(assume_safety)")
#define STRETTO_WIDE
#else
#define STRETTO_LOOP_OF_VECTORS _Pragma("GCC ivdep")
#if defined(__x86_64__)
// The loader picks the version for the processor.
#define STRETTO_WIDE \
  __attribute__((optimize("O3"), target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define STRETTO_WIDE __attribute__((optimize("O3")))
#endif
#endif
