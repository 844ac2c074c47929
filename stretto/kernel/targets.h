// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// The targets for which Highway compiles a file that includes this header first. Two kinds are left
// out. Processors that have no more than SSSE3 (before 2008) use the portable loops. Vectors of a
// size that the compiler does not know cannot be kept in arrays. With sanitizers there is one
// vector target and the portable one: the others differ only in width, and would take minutes to
// compile.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRETTO_UNSANITIZED_TARGETS (HWY_SSE4 | HWY_AVX3)
#else
#define STRETTO_UNSANITIZED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                               \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | \
   STRETTO_UNSANITIZED_TARGETS)
