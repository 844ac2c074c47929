// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// For which targets Highway compiles a file; included before it. Left out are SSSE3, for processors
// that lack what came in 2008 (they get the portable loops), and vectors whose size the compiler
// does not know, which cannot be kept in arrays. The sanitizers see one vector target and the
// portable one: the others differ in width only, and would compile for minutes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRETTO_UNSANITIZED_TARGETS (HWY_SSE4 | HWY_AVX3)
#else
#define STRETTO_UNSANITIZED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                               \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | \
   STRETTO_UNSANITIZED_TARGETS)
