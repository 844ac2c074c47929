// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/schedule/algorithms.h"

namespace stretto::testing {

// The algorithms of one collective over one kind of access.
inline std::vector<const schedule::Algorithm*> algorithms_for(Collective collective,
                                                              schedule::Access access) {
  std::vector<const schedule::Algorithm*> found;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective == collective && algorithm.access == access) {
      found.push_back(&algorithm);
    }
  }
  return found;
}

}  // namespace stretto::testing
