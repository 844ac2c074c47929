// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Nothing computes with numbers of 8 bits: what looks like one would be taken for its bits.
// Expected: Float8E4M3

#include "stretto/base/dtype.h"

bool use() {
  const auto one = stretto::Float8E4M3::from_bits(0x38);
#ifdef STRETTO_WRONG
  const stretto::Float8E4M3 wrong(1.0f);
  return wrong == one;
#else
  return one.bits == 0x38;
#endif
}
