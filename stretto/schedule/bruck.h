// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/schedule/algorithms.h"

namespace stretto::schedule {

// What each does, what it costs and when to choose it: docs/algorithms.md and bruck.cc.
Schedule bruck_all_gather(const Shape& shape);
Schedule bruck_all_to_all(const Shape& shape);

}  // namespace stretto::schedule
