// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The bits of a number are not converted to one in silence.
// Expected: could not convert|no viable conversion

#include <cstdint>

#include "stretto/base/dtype.h"

stretto::Half use(std::uint16_t bits) {
#ifdef STRETTO_WRONG
  return bits;
#else
  return stretto::Half::from_bits(bits);
#endif
}
